"""The bounds of one run's log: its first lines and its newest are kept, whatever order writing and logging come in."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rota.jobs.claim import ClaimedJob
from rota.jobs.logs import run as run_room
from rota.jobs.logs.run import Line, Run

CLAIM = ClaimedJob(7, "default", "t", 0, 1, 0, 0.0, "{}", 42)
BOUNDS = {"FIRST_LINES": 3, "FIRST_SIZE": 50, "NEWEST_LINES": 4, "NEWEST_SIZE": 60}

# a line of so many characters is logged, or so many lines at most are written
steps = st.lists(
    st.integers(0, 40).map(lambda size: ("log", size)) | st.integers(1, 9).map(lambda most: ("write", most))
)


def line(number: int, size: int = 10) -> Line:
    return Line(number, 0.0, 30, "", "x" * size)


def write(run: Run, stored: set[int], most: int) -> None:
    lines = run.next(most)
    if lines:
        stored |= {line.number for line in lines}
        run.wrote(lines, 0.0)
    if (between := run.unwanted()) is not None:
        above, below = between
        stored -= set(range(above + 1, below))
        run.forgot(between)


def first_of(sizes: Sequence[int]) -> int:
    """How many of the first lines fit."""
    fit = 0
    while fit < min(len(sizes), 3) and sum(sizes[: fit + 1]) <= 50:
        fit += 1
    return fit


def newest_of(sizes: Sequence[int]) -> int:
    """How many of the newest do; one at least."""
    fit = min(1, len(sizes))
    while fit < min(len(sizes), 4) and sum(sizes[-fit - 1 :]) <= 60:
        fit += 1
    return fit


@given(steps)
def test_what_is_stored_in_the_end_are_the_first_lines_and_the_newest(steps: list[tuple[str, int]]) -> None:
    run, stored, sizes = Run(CLAIM), set[int](), list[int]()

    with patch.multiple(run_room, **BOUNDS):
        for what, much in steps:
            if what == "log":
                sizes.append(much)
                run.add(line(len(sizes), much))
            else:
                write(run, stored, much)
        write(run, stored, most=100)

    first = first_of(sizes)
    newest = newest_of(sizes[first:])
    assert stored == {*range(1, first + 1), *range(len(sizes) - newest + 1, len(sizes) + 1)}
    assert (run.waiting, run.waiting_size) == (0, 0)


def test_what_is_pushed_out_while_it_is_being_written_is_forgotten_after_that() -> None:
    run = Run(CLAIM)
    with patch.multiple(run_room, **BOUNDS):
        for number in range(1, 8):
            run.add(line(number))
        under_way = run.next(100)
        for number in range(8, 14):
            run.add(line(number))
        run.wrote(under_way, 0.0)

        assert [line.number for line in under_way] == [1, 2, 3, 4, 5, 6, 7]
        assert run.unwanted() == (3, 10)
        assert [line.number for line in run.next(100)] == [10, 11, 12, 13]


def test_a_line_longer_than_all_room_is_kept_alone() -> None:
    run = Run(CLAIM)
    with patch.multiple(run_room, **BOUNDS):
        for number in range(1, 4):
            run.add(line(number, 1000))

    assert [line.number for line in run.next(100)] == [3]
