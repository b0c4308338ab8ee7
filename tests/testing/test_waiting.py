"""Moments are awaited; a moment that does not come says what was there instead."""

from __future__ import annotations

import threading

import pytest

from rota.facts import Facts, MemberLeft, MigrationApplied
from rota.testing import fact, until, until_sync


async def test_until_returns_the_first_true_answer() -> None:
    answers = iter([0, None, 3, 4])

    assert await until(lambda: next(answers)) == 3


async def test_until_takes_async_functions() -> None:
    answers = iter([[], ["here"]])

    async def look() -> list[str]:
        return next(answers)

    assert await until(look) == ["here"]


async def test_until_says_what_was_awaited_and_what_was_there() -> None:
    with pytest.raises(AssertionError, match=r"Waited 0.01 s for: the moon. It was still \[\]"):
        await until(list, timeout=0.01, what="the moon")
    with pytest.raises(AssertionError, match="the moon"):
        until_sync(list, timeout=0.01, what="the moon")


def test_until_looks_once_even_without_time() -> None:
    assert until_sync(lambda: "there", timeout=0) == "there"


async def test_a_fact_is_awaited_from_the_call_on_and_may_come_from_any_thread() -> None:
    facts = Facts()
    applied = fact(facts, MigrationApplied, where=lambda it: it.number == 2)

    for number in (1, 2, 3):
        threading.Thread(target=facts.emit, args=[MigrationApplied(number, "x", 0.0)]).start()

    assert (await applied).number == 2


def test_sync_code_waits_for_a_fact_too() -> None:
    facts = Facts()
    applied = fact(facts, MigrationApplied)

    threading.Thread(target=facts.emit, args=[MigrationApplied(7, "x", 0.0)]).start()

    assert applied.wait().number == 7


async def test_a_fact_that_does_not_come_says_which_came_instead() -> None:
    facts = Facts()
    left = fact(facts, MemberLeft, timeout=0.01)
    facts.emit(MigrationApplied(1, "ground", 0.0))

    with pytest.raises(AssertionError, match=r"(?s)for a MemberLeft.*MigrationApplied\(number=1"):
        await left


async def test_a_mistake_in_where_is_raised_in_the_test() -> None:
    facts = Facts()
    applied = fact(facts, MigrationApplied, where=lambda it: it.nowhere)  # type: ignore[attr-defined]

    facts.emit(MigrationApplied(1, "ground", 0.0))

    with pytest.raises(AttributeError, match="nowhere"):
        await applied
