from __future__ import annotations

import statistics

import pytest

from rota.postgres import notify
from rota.postgres.notify import Probe, Throttle
from rota.testing import TestRota, WorkerProcess

APP = """
from rota import Rota

app = Rota()

@app.task(name="echo")
def echo(n: int) -> int:
    return n
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(notify, "boottime", lambda: now[0])
    return now


def test_a_listener_is_believed_when_its_own_probe_comes_back(clock: list[float]) -> None:
    probe = Probe(every=10, patience=2)
    assert not probe.hears

    assert probe.due()
    assert probe.heard()

    assert probe.hears
    assert not probe.due()
    clock[0] += 10
    assert probe.due()


def test_who_hears_another_need_not_speak(clock: list[float]) -> None:
    probe = Probe(every=10, patience=2)
    assert probe.due()
    assert probe.heard()

    clock[0] += 9
    assert not probe.heard()

    clock[0] += 9
    assert not probe.due()
    assert not probe.check()
    clock[0] += 1
    assert probe.due()


def test_a_probe_that_does_not_come_back_makes_a_listener_deaf_until_one_does(clock: list[float]) -> None:
    probe = Probe(every=10, patience=2)
    assert probe.due()
    assert probe.heard()
    clock[0] += 10
    assert probe.due()
    clock[0] += 1.9
    assert not probe.check()

    clock[0] += 0.2
    assert probe.check()
    assert not probe.hears
    assert not probe.check()

    clock[0] += 2
    assert probe.due()
    assert probe.heard()
    assert probe.hears


def test_a_new_connection_has_proved_nothing(clock: list[float]) -> None:
    probe = Probe()
    probe.due()
    probe.heard()

    probe.reset()

    assert not probe.hears
    assert probe.due()


def test_wake_ups_are_coalesced_per_queue(clock: list[float]) -> None:
    throttle = Throttle(window=0.005)

    assert [throttle.admits("mail"), throttle.admits("mail"), throttle.admits("other")] == [True, False, True]
    clock[0] += 0.006
    assert throttle.admits("mail")


def test_who_was_left_out_speaks_when_no_wake_up_was_sent_for_a_moment_and_only_one_of_them(clock: list[float]) -> None:
    throttle = Throttle(window=0.005)

    throttle.admits("mail")
    first, second = throttle.is_overdue("mail"), throttle.is_overdue("mail")
    clock[0] += 1
    throttle.sent("mail")
    clock[0] += 0.02 - 0.001
    soon = throttle.is_overdue("mail")
    clock[0] += 0.002

    assert (first, second, soon) == (True, False, False)
    assert throttle.is_overdue("mail")


async def test_a_job_nobody_was_woken_for_is_found_by_polling(
    rota_app: TestRota, rota_worker: type[WorkerProcess]
) -> None:
    rota_app.task(name="echo")(lambda n: n)
    rota_worker(APP)
    first = await rota_app.tasks["echo"].enqueue(1)
    await first.wait(10)

    quiet = await rota_app.tasks["echo"].using(wake=False).enqueue(2)

    assert await quiet.wait(10) == 2


@pytest.mark.long
async def test_a_delayed_job_starts_when_it_is_due_without_being_woken(
    rota_app: TestRota, rota_worker: type[WorkerProcess]
) -> None:
    rota_app.task(name="echo")(lambda n: n)
    rota_worker(APP)

    late = []
    for n in range(3):
        job = await rota_app.tasks["echo"].using(delay="1s").enqueue(n)
        assert await job.wait(20) == n
        done = await job.refresh()
        assert done.started_at is not None
        late.append((done.started_at - done.due_at).total_seconds())

    # by then the worker looks only every 1.28 s: without the timer on the next due time it would start 0.7 s late;
    # a busy machine may spoil one of them
    assert statistics.median(late) < 0.4
