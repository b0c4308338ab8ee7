from __future__ import annotations

import asyncio

import pytest

from rota.jobs.claim import ClaimedJob
from rota.jobs.suspects import Gate

pytestmark = pytest.mark.usefixtures("history_aside")


def suspect(token: int, losses: int) -> ClaimedJob:
    return ClaimedJob(1, "q", "t", 0, losses + 1, losses, 0.0, "{}", token)


async def test_a_suspect_keeps_others_out_until_it_has_shown_itself_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.jobs.suspects._PROBATION_SECONDS", 0.01)
    opened = asyncio.Event()
    gate = Gate(opened.set)
    first = suspect(1, losses=1)
    assert gate.most_losses > 3

    gate.close(first)
    assert gate.most_losses == 0
    with gate.passed(first):
        await asyncio.wait_for(opened.wait(), 20)
        # another that was lost once may join it; one that was lost twice must have no suspect beside it
        assert gate.most_losses == 1
    assert gate.most_losses > 3


async def test_a_suspect_that_was_lost_twice_keeps_others_out_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.jobs.suspects._PROBATION_SECONDS", 0.001)
    gate = Gate(lambda: None)
    second = suspect(1, losses=2)

    gate.close(second)
    with gate.passed(second):
        await asyncio.sleep(0.02)
        assert gate.most_losses == 0
    assert gate.most_losses > 3


async def test_a_suspect_that_is_handed_back_opens_the_gate() -> None:
    opened: list[int] = []
    gate = Gate(lambda: opened.append(1))
    first = suspect(1, losses=1)

    gate.close(first)
    gate.leave(first)

    assert gate.most_losses > 3
    assert opened
