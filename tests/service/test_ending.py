"""That a process is to end: asked from a thread or a signal handler, once or again."""

from __future__ import annotations

import os
import signal
import threading

from rota.service.ending import Ending


def test_it_begins_once_and_everyone_is_told_once() -> None:
    ending, told = Ending(), []
    ending.on_begin(lambda: told.append("first"))
    ending.on_begin(lambda: told.append("second"))

    assert not ending.begun
    assert ending.begin("SIGTERM")
    assert not ending.begin("SIGINT")

    assert (ending.begun, ending.hurried, ending.reason, told) == (True, False, "SIGTERM", ["first", "second"])


def test_who_asks_too_late_is_told_at_once() -> None:
    ending, told = Ending(), []
    ending.begin("SIGTERM")

    ending.on_begin(lambda: told.append("begun"))
    ending.on_hurry(lambda: told.append("hurried"))
    assert told == ["begun"]

    ending.hurry()
    ending.hurry()
    assert told == ["begun", "hurried"]


def test_a_hurry_begins_it() -> None:
    ending, told = Ending(), []
    ending.on_begin(lambda: told.append("begun"))
    ending.on_hurry(lambda: told.append("hurried"))

    ending.hurry("the deadline")

    assert (told, ending.reason) == (["begun", "hurried"], "the deadline")


def test_who_takes_it_back_is_not_told() -> None:
    ending, told = Ending(), []
    take_back = ending.on_begin(lambda: told.append("begun"))
    take_back()
    take_back()

    ending.begin("SIGTERM")

    assert told == []


def test_a_reset_is_as_if_nobody_had_asked() -> None:
    ending, told = Ending(), []
    ending.on_begin(lambda: told.append("begun"))
    ending.hurry()
    ending.reset()

    assert (ending.begun, ending.hurried, ending.reason, ending.began_at) == (False, False, None, None)
    assert ending.begin("again")
    assert told == ["begun", "begun"]


def test_a_signal_that_comes_while_its_thread_is_inside_does_not_wait_for_itself() -> None:
    ending, told = Ending(), []
    before = signal.signal(signal.SIGUSR1, lambda *_: told.append(ending.begin("SIGUSR1")))
    try:
        with ending._lock:  # as within any of its methods
            os.kill(os.getpid(), signal.SIGUSR1)
            signal.pthread_kill(threading.get_ident(), 0)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert told == [True]


def test_of_many_threads_one_is_the_first() -> None:
    ending, gate, firsts = Ending(), threading.Barrier(8), []

    def ask() -> None:
        gate.wait()
        firsts.append(ending.begin("a thread"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert firsts.count(True) == 1


def test_who_only_drains_leaves_the_exit_to_who_ends_it() -> None:
    ending, told = Ending(), list[str]()
    ending.on_begin(lambda: told.append("begin"))
    ending.on_exit(lambda: told.append("exit"))

    assert ending.begin("the drain endpoint", exits=False)
    assert told == ["begin"]
    assert not ending.begin("SIGTERM")
    assert not ending.begin("SIGTERM")

    assert told == ["begin", "exit"]
    assert ending.reason == "the drain endpoint"
