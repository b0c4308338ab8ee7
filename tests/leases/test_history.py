"""The checker of histories finds each way in which one can be wrong, and nothing in one that is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.leases.history import Begun, Look, Write, violations

START = datetime(2026, 1, 1, tzinfo=UTC)


def looks(who: str, epoch: int, *moments: float) -> list[Look]:
    return [Look(who, epoch, moment, moment + 0.001) for moment in moments]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


GOOD = [*looks("one", 10, 0.0, 1.0, 2.0), *looks("two", 11, 2.5, 4.0), *looks("one", 12, 5.0, 6.0)]
TERMS = [Begun(10, at(0)), Begun(11, at(2.2)), Begun(12, at(4.5))]
WRITES = [Write(1, 10, at(1)), Write(2, 10, at(2)), Write(4, 11, at(3)), Write(5, 12, at(5))]


def test_terms_one_after_the_other_are_fine() -> None:
    assert violations([], [], []) == []
    assert violations(GOOD, WRITES, TERMS) == []
    assert violations(reversed(GOOD), WRITES[::-1], TERMS[::-1]) == []


def test_two_valid_terms_at_once_are_found() -> None:
    (found,) = violations([*GOOD, *looks("one", 10, 3.0)])
    assert "one was valid in epoch 10 until 3.000, and two in epoch 11 from 2.501" in found


def test_a_leader_that_comes_back_for_a_moment_after_two_other_terms_is_found() -> None:
    assert len(violations([*GOOD, *looks("one", 10, 5.5)])) == 2  # it was beside both of them


def test_two_leaders_of_one_epoch_are_found() -> None:
    (found,) = violations([*GOOD, *looks("three", 12, 7.0, 8.0)])
    assert found == "epoch 12 was led by both one and three"


def test_an_epoch_that_is_smaller_than_the_one_before_is_found() -> None:
    assert violations([*GOOD, *looks("two", 9, 7.0, 8.0)])


def test_a_process_that_is_stopped_in_the_middle_of_a_look_is_not_blamed() -> None:
    stopped = Look("one", 10, 2.0, 30.0)  # whenever in between it was told
    assert violations([*GOOD, stopped]) == []
    assert violations([*GOOD, Look("three", 13, 0.0, 30.0)]) == []


def test_a_write_that_lands_after_one_of_a_later_term_is_found() -> None:
    (found,) = violations(GOOD, [*WRITES, Write(6, 11, at(4.2))])
    assert found == "write 6 of epoch 11 landed after one of epoch 12"


def test_a_write_that_is_made_after_the_next_term_began_is_found() -> None:
    (found,) = violations(GOOD, [Write(1, 10, at(2.3))], TERMS)
    assert found == "write 1 of epoch 10 was made after epoch 11 had begun"


def test_a_write_of_a_term_that_never_was_is_found() -> None:
    (found,) = violations(GOOD, [Write(1, 13, at(7))], TERMS)
    assert found == "write 1 is of epoch 13, and there was no such term"
