"""An event loop that does not turn is seen from outside, with the culprit; a process that stood still is not blamed."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rota.facts import Facts, LoopBlocked, LoopFree
from rota.service import watchdog as watchdog_module
from rota.service.loop import off_the_loop
from rota.service.watchdog import Watchdog, watchdogs, watched
from rota.testing import fact, until, until_sync


def culprit(free: threading.Event) -> None:
    free.wait(20)


def deep(free: threading.Event, depth: int) -> None:
    if depth:
        deep(free, depth - 1)
    else:
        free.wait(20)


def freed_by(facts: Facts, kind: type[LoopBlocked], times: int = 1) -> tuple[threading.Event, list[LoopBlocked]]:
    """An event that is set when it has been told so many times that something blocks."""
    free, told = threading.Event(), list[LoopBlocked]()

    def hear(blocked: LoopBlocked) -> None:
        told.append(blocked)
        if len(told) == times:
            free.set()

    facts.subscribe(hear, kind)
    return free, told


async def test_a_blocked_loop_is_told_once_with_the_culprit_and_again_when_it_turns() -> None:
    facts = Facts()
    free, told = freed_by(facts, LoopBlocked)
    turns = fact(facts, LoopFree)

    with watched(facts) as dog:
        culprit(free)
        again = await turns

        assert again.seconds >= told[0].seconds >= 1.0
        assert (dog.blocked_for, dog.lag.longest) == (0.0, again.seconds)
    (blocked,) = told
    assert "in culprit" in blocked.stack
    assert "free.wait(20)" in blocked.stack
    assert "asyncio/base_events.py" not in blocked.stack
    assert "asyncio/runners.py" not in blocked.stack


@pytest.mark.long
async def test_one_that_stays_blocked_is_told_again_at_growing_intervals() -> None:
    facts = Facts()
    free, told = freed_by(facts, LoopBlocked, times=2)

    with watched(facts):
        culprit(free)

    assert [blocked.seconds >= at for blocked, at in zip(told, (1, 4), strict=True)] == [True, True]


async def test_the_stack_of_a_deep_culprit_stays_short_and_keeps_both_ends() -> None:
    facts = Facts()
    free, told = freed_by(facts, LoopBlocked)

    with watched(facts):
        deep(free, 400)

    stack = told[0].stack
    assert len(stack) <= 8000
    assert "calls in between" in stack
    assert "test_the_stack_of_a_deep_culprit" in stack
    assert "free.wait(20)" in stack


async def test_a_loop_that_turns_is_told_of_never_and_has_next_to_no_lag() -> None:
    facts = Facts()

    with facts.recorded() as told, watched(facts) as dog:
        await until(lambda: len(dog._lags) >= 3, what="three looks")

        await until(lambda: dog.lag.last < 0.5, what="next to no lag")  # as soon as the machine has time
        assert dog.blocked_for == 0.0

    assert told == []


async def test_one_watchdog_serves_all_apps_of_a_loop_and_ends_with_the_last() -> None:
    one, other = Facts(), Facts()

    with watched(one) as first:
        with watched(other) as second, watched(one) as third:
            assert first is second is third
            assert watchdogs(one) == watchdogs(other) == [first]
        assert watchdogs(other) == []
        assert first._thread.is_alive()

    assert watchdogs(one) == []
    await until(lambda: not first._thread.is_alive(), what="its thread has ended")


def stand_still(dog: Watchdog, seconds: float) -> None:
    """What the thread sees after the whole process was stopped: it comes that much too late itself."""
    now = watchdog_module.boottime()
    dog._look(now, stood_still=0.0)  # hands the loop a call
    dog._look(now + seconds, stood_still=seconds - 0.5)


async def test_a_process_that_stood_still_does_not_blame_its_loop() -> None:
    facts = Facts()
    dog = Watchdog(asyncio.get_running_loop(), facts)

    with facts.recorded() as told:
        stand_still(dog, 3600)

        assert dog.blocked_for <= 0.5
        await until(lambda: dog._ran_at is not None)
        dog._look(watchdog_module.boottime() + 3600, stood_still=0.0)

    assert told == []
    assert dog.lag.longest < 1.0


async def test_a_call_that_was_run_after_the_stand_still_counts_without_it() -> None:
    facts = Facts()
    dog = Watchdog(asyncio.get_running_loop(), facts)
    now = watchdog_module.boottime()
    dog._look(now, stood_still=0.0)
    dog._ran_at = now + 3600  # the loop had its turn before the watchdog

    dog._look(now + 3600, stood_still=3599.5)

    assert dog.lag.longest <= 0.5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_nobody_runs_is_not_blocked() -> None:
    facts, loop = Facts(), asyncio.new_event_loop()
    dog = Watchdog(loop, facts)

    with facts.recorded() as told:
        dog._look(1000.0, stood_still=0.0)
        dog._look(1005.0, stood_still=0.0)

        assert dog.blocked_for == 0.0
    assert told == []
    loop.close()


@contextlib.contextmanager
def loop_elsewhere() -> Iterator[tuple[asyncio.AbstractEventLoop, Watchdog]]:
    """A loop in a thread of its own, and its watchdog, which has seen it turn."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    dog = Watchdog(loop, Facts())
    try:
        dog._look(100.0, stood_still=0.0)
        until_sync(lambda: dog._ran_at is not None)
        dog._look(100.5, stood_still=0.0)
        until_sync(lambda: dog._ran_at is not None)
        dog._turned(0.0, 100.5)
        yield loop, dog
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_loop_that_waits_is_mostly_left_in_peace() -> None:
    with loop_elsewhere() as (_, dog):
        until_sync(lambda: dog._waits)
        asked = []
        for look in range(16):
            dog._look(101.0 + look, stood_still=0.0)
            asked.append(dog._posted_at is not None)
            if asked[-1]:
                until_sync(lambda: dog._ran_at is not None and dog._waits)
                dog._turned(0.0, 101.0 + look)

    assert asked == [False] * 7 + [True] + [False] * 7 + [True]


def wait_on_a_selector(free: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(free, selectors.EVENT_READ)
        selector.select(20)


def wait_on_another_loop(free: socket.socket) -> None:
    async def wait() -> None:
        free.setblocking(False)
        await asyncio.get_running_loop().sock_recv(free, 1)

    with off_the_loop():
        asyncio.run(wait())


@pytest.mark.parametrize("culprit", [wait_on_a_selector, wait_on_another_loop])
def test_who_waits_within_a_body_blocks_the_loop(culprit: Callable[[socket.socket], None]) -> None:
    freeing, free = socket.socketpair()

    async def body() -> None:
        began.set()
        culprit(free)

    with loop_elsewhere() as (loop, dog), freeing, free:
        began = threading.Event()
        running = asyncio.run_coroutine_threadsafe(body(), loop)
        began.wait(20)
        until_sync(lambda: "select" in {frame.f_code.co_name for frame in sys._current_frames().values()})
        waits = dog._waits
        freeing.send(b"!")
        running.result(20)

    assert not waits


async def test_it_wakes_up_a_few_times_a_second_only() -> None:
    looks = list[float]()
    dog = Watchdog(asyncio.get_running_loop(), Facts())
    look = dog._look
    dog._look = lambda now, *, stood_still: (looks.append(now), look(now, stood_still=stood_still))[1]  # type: ignore[method-assign]

    dog.start()
    began = time.monotonic()
    await until(lambda: len(looks) >= 4)
    dog.stop()

    assert time.monotonic() - began >= 1.0


def test_the_culprit_is_named_on_another_kind_of_loop_as_well() -> None:
    uvloop = pytest.importorskip("uvloop")
    facts = Facts()
    free, told = freed_by(facts, LoopBlocked)

    async def main() -> None:
        with watched(facts):
            culprit(free)

    uvloop.run(main())

    assert "asyncio/runners.py" not in told[0].stack
    assert "in culprit" in told[0].stack
