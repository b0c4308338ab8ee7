"""Outcomes are written in pieces: how large they are, what is tried first, and when others have their turn."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from rota.errors import DatabaseUnavailable, RotaError
from rota.pollers import pieces
from rota.pollers.pieces import Pieces

Error = type[psycopg.Error]
ROLLED_BACK = psycopg.errors.SerializationFailure
TOO_SLOW = psycopg.errors.QueryCanceled


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pieces, "boottime", clock)
    return clock


class Table:
    """Refuses each piece that has one of the bad in it, or is larger than it has time for; that takes so long each time."""

    def __init__(
        self, clock: Clock, *bad: str, error: Error = ROLLED_BACK, takes: float = 0.0, most: int = 10**6
    ) -> None:
        self.clock, self.bad, self.error, self.takes, self.most = clock, bad, error, takes, most
        self.written: list[str] = []
        self.sizes: list[int] = []

    async def write(self, piece: Sequence[str]) -> None:
        self.sizes.append(len(piece))
        if len(piece) > self.most or set(piece) & set(self.bad):
            self.clock.now += self.takes
            raise DatabaseUnavailable("not now") from self.error("not now")
        self.written += piece


def outcomes(count: int) -> list[str]:
    return [f"row {n}" for n in range(count)]


async def test_no_piece_is_larger_than_five_hundred(clock: Clock) -> None:
    table = Table(clock)

    assert await Pieces[str]().write(outcomes(1200), table.write) == ([], [])
    assert (table.sizes, sorted(table.written)) == ([500, 500, 200], sorted(outcomes(1200)))


async def test_the_one_that_is_refused_is_found_and_all_others_are_written(clock: Clock) -> None:
    rows = outcomes(1200)
    table = Table(clock, rows[777])

    refused, left = await Pieces[str]().write(rows, table.write)

    assert ([each for each, _ in refused], left) == ([rows[777]], [])
    assert sorted(table.written) == sorted(set(rows) - {rows[777]})
    assert len(table.sizes) < 40


async def test_refusals_that_take_long_leave_others_their_turn_and_the_search_goes_on_where_it_was(
    clock: Clock,
) -> None:
    rows = outcomes(500)
    table, written = Table(clock, rows[7], takes=3.0), Pieces[str]()

    assert await written.write(rows, table.write) == ([], rows)
    refused, left = await written.write([*rows, "fresh"], table.write)
    assert (refused, table.written[0]) == ([], "fresh")
    while left:
        refused, left = await written.write([*left, *(each for each, _ in refused)], table.write)

    assert ([each for each, _ in refused], len(table.written)) == ([rows[7]], 500)
    assert [size for size in table.sizes if size > 62] == [500]


async def test_of_those_that_are_refused_alone_all_are_tried_in_turn(clock: Clock) -> None:
    rows = outcomes(6)
    table, written = Table(clock, *rows, takes=1.0), Pieces[str]()
    tried: list[str] = []
    for _ in range(8):
        refused, _ = await written.write(rows, table.write)
        tried += [each for each, _ in refused]

    assert set(tried[:6]) == set(rows)
    assert all(written.refused_for(row) is not None for row in tried[6:])


async def test_pieces_that_took_too_long_stay_small_for_a_while(clock: Clock) -> None:
    table, written = Table(clock, error=TOO_SLOW, takes=30.0, most=100), Pieces[str]()

    _, left = await written.write(outcomes(500), table.write)
    assert (table.sizes, len(left)) == ([500], 500)
    await written.write(left, table.write)
    await written.write(outcomes(500), table.write)
    assert max(table.sizes[1:]) == 62
    for _ in range(5):
        clock.now += 61
        await written.write([], table.write)
    table.most = 500
    await written.write(outcomes(500), table.write)
    assert table.sizes[-1] == 500


async def test_one_slow_row_does_not_make_the_pieces_of_others_ever_smaller(clock: Clock) -> None:
    rows, written = outcomes(500), Pieces[str]()
    table = Table(clock, rows[7], error=TOO_SLOW, takes=30.0)
    left, refused = rows, list[tuple[str, RotaError]]()
    while not refused:
        refused, left = await written.write(left, table.write)
    table.sizes.clear()

    await written.write([f"other {n}" for n in range(62)], table.write)

    assert table.sizes == [62]


async def test_no_answer_is_not_a_refusal(clock: Clock) -> None:
    table = Table(clock, "row 1", error=psycopg.OperationalError)

    with pytest.raises(DatabaseUnavailable):
        await Pieces[str]().write(outcomes(2), table.write)
    assert table.sizes == [2]
