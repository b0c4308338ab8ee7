"""What pages read: once for all who ask, and anew after a change."""

from __future__ import annotations

import asyncio

import pytest

from rota import DatabaseUnavailable, JobNotFound
from rota.dashboard import looking
from rota.dashboard.looking import Readings, bounded, paid_after
from rota.postgres.spent import spend


class Source:
    """Counts how often it is asked."""

    def __init__(self, statements: int = 0) -> None:
        self.asked = 0
        self.trouble: Exception | None = None
        self._statements = statements

    async def read(self) -> int:
        self.asked = number = self.asked + 1
        spend(self._statements)
        await asyncio.sleep(0)
        if self.trouble is not None:
            raise self.trouble
        return number


async def test_ten_who_ask_at_once_and_soon_after_cost_one_reading() -> None:
    readings, source = Readings(), Source()

    found = await asyncio.gather(*(readings.read("key", source.read) for _ in range(10)))
    again = await readings.read("key", source.read)

    assert source.asked == 1
    assert {each.value for each in [*found, again]} == {1}


async def test_after_a_change_it_is_read_anew_also_if_a_reading_was_under_way() -> None:
    readings, source = Readings(), Source()
    under_way = asyncio.create_task(readings.read("key", source.read))
    await asyncio.sleep(0)

    readings.forget()
    found = await readings.read("key", source.read)

    assert (await under_way).value == 1
    assert found.value == 2
    assert (await readings.read("key", source.read)).value == 2


async def test_one_who_goes_away_does_not_end_the_reading_of_the_others() -> None:
    readings, source = Readings(), Source()
    first = asyncio.create_task(readings.read("key", source.read))
    await asyncio.sleep(0)
    second = asyncio.create_task(readings.read("key", source.read))
    await asyncio.sleep(0)

    first.cancel()

    assert (await second).value == 1


async def test_what_was_known_is_given_when_the_database_is_away_and_what_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looking, "_FRESH_SECONDS", 0.0)
    readings, source = Readings(), Source()
    await readings.read("key", source.read)

    source.trouble = DatabaseUnavailable("it is away")
    stale = await readings.read("key", source.read)
    source.trouble = JobNotFound("there is none")

    assert (stale.value, stale.trouble) == (1, "it is away")
    with pytest.raises(JobNotFound):
        await readings.read("key", source.read)


async def test_no_more_is_kept_than_is_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_KEPT", 3)
    readings, source = Readings(), Source()

    for key in range(10):
        await readings.read(key, source.read)

    assert list(readings._known) == [7, 8, 9]


async def test_an_open_page_reads_nothing_anew_before_that_is_paid_for_and_who_asks_by_hand_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looking, "_FRESH_SECONDS", 0.0)
    readings, dear, cheap = Readings(), Source(statements=4_000), Source(statements=0)

    for _ in range(3):
        await readings.read("dear", dear.read, paced=True)
        await readings.read("cheap", cheap.read, paced=True)

    assert (dear.asked, cheap.asked) == (1, 3)
    assert (await readings.read("dear", dear.read)).value == 2
    readings.forget()
    assert (await readings.read("dear", dear.read, paced=True)).value == 3


async def test_whoever_has_it_read_owes_it_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_PER_SECOND", 4.0)
    readings, source = Readings(), Source(statements=6)

    together = await asyncio.gather(*(readings.read("key", source.read) for _ in range(3)))
    again = await readings.read("key", source.read)

    assert sorted(each.statements for each in together) == [0, 0, 6]
    assert again.statements == 0
    assert paid_after(6) == 1.5


async def test_nobody_is_kept_waiting_for_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_DEADLINE_SECONDS", 0.01)

    with pytest.raises(DatabaseUnavailable, match="did not answer within"):
        await bounded(asyncio.Event().wait())
