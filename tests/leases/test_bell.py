"""Resting until someone rings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.clock import boottime
from rota.leases.bell import Bell


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


@pytest.mark.timeout(10)
def test_who_rings_never_waits_for_who_rests(bell: Bell) -> None:
    """Asking a question rings, also in an event loop, and the control thread may be waiting for a server that is silent."""
    for _ in range(10_000):
        bell.ring()

    since = boottime()
    bell.rest(5.0)

    assert boottime() - since < 4


def test_a_bell_that_was_rung_many_times_rests_again_after_one_rest(bell: Bell) -> None:
    for _ in range(100):
        bell.ring()
    bell.rest(5.0)

    since = boottime()
    bell.rest(0.05)

    assert boottime() - since >= 0.04


def test_a_bell_that_is_closed_is_rung_in_vain(bell: Bell) -> None:
    bell.close()

    bell.ring()
