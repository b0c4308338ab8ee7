"""Every state of the protocol is looked at: no two valid terms, no late commit; and each guard is needed for it."""

from __future__ import annotations

import os

import pytest
from tests.leases.protocol import GUARDS, Protocol, Violation


def test_no_two_terms_are_valid_at_once_and_nothing_is_committed_late() -> None:
    assert Protocol().explore() > 10_000


@pytest.mark.skipif("ROTA_WHOLE_PROTOCOL" not in os.environ, reason="takes minutes: make protocol")
@pytest.mark.timeout(0)
def test_the_same_holds_when_both_processes_suffer() -> None:
    assert Protocol(faulty=2).explore() > 1_000_000


@pytest.mark.parametrize(
    "guard",
    [pytest.param(guard, marks=pytest.mark.long) if number % 4 else guard for number, guard in enumerate(GUARDS)],
)
def test_no_guard_can_be_left_out(guard: str) -> None:
    with pytest.raises(Violation):
        Protocol(without=guard).explore()
