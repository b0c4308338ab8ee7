"""A process tells how it is: seldom, only what is new, and never at the cost of its lease."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rota.facts import Facts
from rota.figures import Figures
from rota.leases import condition as condition_module
from rota.leases.condition import Condition, resident_bytes


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(condition_module, "boottime", clock)
    return clock


def told(condition: Condition) -> Any:
    """What a beat carries that arrives."""
    news = condition.news()
    condition.told(news)
    return None if news is None else json.loads(news)


def test_numbers_are_told_at_once_then_seldom_and_only_when_they_changed(clock: Clock) -> None:
    now: dict[str, Any] = {"rss": 100, "running": 0}
    condition = Condition(lambda: dict(now))

    first = told(condition)
    now["running"] = 1
    too_soon = told(condition)
    clock.now += 3
    second = told(condition)
    clock.now += 3
    the_same = told(condition)
    now["rss"] = 104
    clock.now += 3
    memory_breathes = told(condition)
    now["rss"] = 106
    clock.now += 3
    more_memory = told(condition)

    assert (first, too_soon) == ({"rss": 100, "running": 0}, None)
    assert (second, the_same, memory_breathes) == ({"rss": 100, "running": 1}, None, None)
    assert more_memory == {"rss": 106, "running": 1}


def test_what_did_not_arrive_is_told_again_and_so_it_is_under_a_new_name(clock: Clock) -> None:
    condition = Condition(lambda: {"running": 1})

    lost = condition.news()
    clock.now += 3
    again = told(condition)
    condition.forget()
    anew = told(condition)

    assert lost is not None
    assert again == anew == {"running": 1}


def test_numbers_that_cannot_be_had_are_left_out_and_raise_nothing(clock: Clock) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("deque mutated during iteration")

    assert told(Condition(fail)) is None
    assert told(Condition(dict)) is None


class Worker:
    def __init__(self, running: int, slots: int) -> None:
        self.running, self.slots = running, slots


def test_the_numbers_are_of_all_workers_and_the_wait_is_that_of_late() -> None:
    pool = {"pool_size": 3, "pool_available": 1, "pool_max": 10, "requests_waiting": 2}
    told = [
        {**pool, "requests_queued": 4, "requests_wait_ms": 100},
        {**pool, "requests_queued": 5, "requests_wait_ms": 400},
        {**pool, "requests_queued": 5, "requests_wait_ms": 400},
    ]
    figures = Figures(Facts(), lambda: (Worker(1, 20), Worker(2, 4)), lambda: {"app": told.pop(0)})

    looks = [figures.look() for _ in range(3)]

    assert (looks[0]["running"], looks[0]["slots"]) == (3, 24)
    assert [look["pools"]["app"]["wait_ms"] for look in looks] == [25, 300, 0]
    assert looks[0]["pools"]["app"] == {"size": 3, "most": 10, "used": 2, "waiting": 2, "wait_ms": 25}
    assert looks[0]["rss"] == pytest.approx(resident_bytes(), rel=0.2)
