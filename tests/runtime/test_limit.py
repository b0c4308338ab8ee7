"""The end of a process that does not end by itself: when it begins to count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.runtime.limit import HARD_LIMIT, HardLimit
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
