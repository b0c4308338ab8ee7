"""The end of a process that does not end by itself: when it begins to count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.runtime.budgets import Budgets
from rota.runtime.doctor.budgets import Budgets as Stop
from rota.runtime.limit import GONE_SECONDS, HARD_LIMIT, HardLimit
from rota.runtime.supervisor import LEAVE_SECONDS
from rota.service.ending import ENDING


class Told(HardLimit):
    def __init__(self, grace: float) -> None:
        self.moments: list[float] = []
        super().__init__(grace)

    def within(self, seconds: float) -> None:
        self.moments.append(seconds)


@pytest.fixture
def limit() -> Iterator[Told]:
    ENDING.reset()
    limit = Told(25)
    yield limit
    limit.lift()
    ENDING.reset()


def test_it_counts_from_the_signal_and_less_from_the_second(limit: Told) -> None:
    ENDING.begin("SIGTERM")
    ENDING.hurry("SIGTERM")

    assert limit.moments == [25 + HARD_LIMIT, HARD_LIMIT]


def test_a_process_that_is_only_drained_is_left_alone_until_a_signal(limit: Told) -> None:
    ENDING.begin("the drain endpoint", exits=False)
    assert limit.moments == []

    ENDING.begin("SIGTERM")
    assert limit.moments == [25 + HARD_LIMIT]


def test_who_kills_waits_for_as_long_as_the_doctor_says_and_all_is_gone_by_then() -> None:
    """One after the other: a process ends itself, who watches it kills it, and whoever watches that one kills all."""
    usual = Budgets()

    assert HARD_LIMIT < LEAVE_SECONDS < GONE_SECONDS
    assert Stop(usual.window, usual.grace).least_termination == usual.grace + GONE_SECONDS
