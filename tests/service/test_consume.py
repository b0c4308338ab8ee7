"""The consumer by itself, with a source in memory: what it claims, keeps, hands back and settles."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import pytest

from rota.clock import Deadline
from rota.errors import DatabaseUnavailable
from rota.facts import DatabaseBack, DatabaseLost, Drained, Facts
from rota.service.consume import Consumer
from rota.testing import until


class Shelf:
    """Numbers to be consumed. `away` makes every call fail, as a database does that is out of reach."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.settled: list[int] = []
        self.batches: list[int] = []
        self.handed_back: list[int] = []
        self.hindered: set[int] = set()
        self.away = False
        self.open = True
        self.more = asyncio.Event()

    async def claim(self, limit: int) -> Sequence[int]:
        await self._answer()
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    async def wait_for_more(self) -> None:
        await self.more.wait()
        self.more.clear()

    async def settle(self, outcomes: Sequence[int]) -> Sequence[int]:
        await self._answer()
        self.settled += [n for n in outcomes if n not in self.hindered]
        self.batches.append(len(outcomes))
        return [n for n in outcomes if n in self.hindered]

    async def hand_back(self, items: Sequence[int], begun: Sequence[int] = ()) -> Sequence[int]:
        await self._answer()
        self.handed_back += [item for item in (*items, *begun) if item not in self.hindered]
        return [item for item in (*items, *begun) if item in self.hindered]

    def may_start(self) -> bool:
        return self.open

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise DatabaseUnavailable("away")


def consumer(
    shelf: Shelf, run: Callable[[int], Awaitable[int]], concurrency: int, facts: Facts | None = None
) -> Consumer[int, int]:
    started: Consumer[int, int] = Consumer(
        shelf, run, lambda n, error: -n, concurrency=concurrency, facts=facts or Facts(), part="test"
    )
    started.start()
    return started


async def at_once(n: int) -> int:
    return n


async def test_everything_is_run_once_and_settled_in_batches() -> None:
    shelf = Shelf(5000)
    pump = consumer(shelf, at_once, concurrency=10)

    await until(lambda: len(shelf.settled) == 5000, what="all are settled")
    await pump.drain(Deadline.after(1))

    assert sorted(shelf.settled) == list(range(5000))
    assert shelf.handed_back == []
    assert len(shelf.batches) <= 1000


async def test_each_runs_in_the_context_of_the_start_and_not_in_that_of_who_made_room_for_it() -> None:
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")
    seen: list[str] = []

    async def note(n: int) -> int:
        seen.append(whose.get())
        whose.set(f"that of {n}")
        return n

    class Generous(Shelf):
        async def claim(self, limit: int) -> Sequence[int]:
            return await super().claim(len(self.waiting))  # so that the end of one makes room for the next

    whose.set("the worker's")
    shelf = Generous(3)
    pump = consumer(shelf, note, concurrency=1)
    whose.set("another's")

    await until(lambda: len(shelf.settled) == 3, what="all are settled")
    await pump.drain(Deadline.after(1))

    assert seen == ["the worker's"] * 3


async def test_no_more_run_at_once_than_allowed() -> None:
    now, most = 0, 0

    async def count(n: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        return n

    shelf = Shelf(200)
    pump = consumer(shelf, count, concurrency=7)
    await until(lambda: len(shelf.settled) == 200, what="all are settled")
    await pump.drain(Deadline.after(1))

    assert most == 7


async def test_slow_work_is_not_claimed_ahead() -> None:
    shelf = Shelf(100)
    pump = consumer(shelf, lambda n: asyncio.sleep(60, n), concurrency=5)

    await until(lambda: len(shelf.waiting) == 95, what="the slots are filled")
    await pump.drain(Deadline.after(0))

    assert len(shelf.waiting) == 95
    assert sorted(shelf.handed_back) == [0, 1, 2, 3, 4]


async def test_what_comes_slowly_is_claimed_in_large_batches() -> None:
    class Far(Shelf):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            self.claims: list[int] = []

        async def claim(self, limit: int) -> Sequence[int]:
            await asyncio.sleep(0.1)
            self.claims.append(limit)
            return await super().claim(limit)

    shelf = Far(3_000)
    pump = consumer(shelf, at_once, concurrency=10)

    await until(lambda: len(shelf.settled) == 3_000, what="all are settled")
    await pump.drain(Deadline.after(1))

    # by what ends while something is at hand: the time of a claim counted, no claim would ask for more than a few hundred
    assert 700 < max(shelf.claims) <= 2_000
    # and by what the claim before has brought
    assert all(after <= 4 * before + 10 for before, after in itertools.pairwise(shelf.claims[:-1]))


async def test_a_consumer_is_not_idle_while_it_begins_a_body() -> None:
    """A body may run at once as far as it gets, and another thread may ask meanwhile."""
    seen: list[bool] = []

    async def looking(n: int) -> int:
        seen.append(pump.idle)
        return n

    shelf = Shelf(1)
    pump = consumer(shelf, looking, concurrency=1)

    await until(lambda: shelf.settled == [0], what="it is settled")
    await until(lambda: pump.idle, what="nothing is held any more")
    await pump.drain(Deadline.after(1))

    assert seen == [False]


async def test_work_that_turns_out_slower_than_its_predecessors_is_handed_back() -> None:
    shelf = Shelf(24_000)
    release = asyncio.Event()

    async def slow_in_the_end(n: int) -> int:
        if n >= 20_000:
            await release.wait()
        return n

    pump = consumer(shelf, slow_in_the_end, concurrency=5)

    await until(lambda: shelf.handed_back, what="what was claimed ahead goes back")
    assert not pump.idle
    await until(
        lambda: len(shelf.settled) + len(shelf.handed_back) + len(shelf.waiting) == 23_995,
        what="only the running are held",
    )
    release.set()
    await pump.drain(Deadline.after(1))
    assert len(shelf.settled) + len(shelf.handed_back) + len(shelf.waiting) == 24_000
    assert not set(shelf.settled) & set(shelf.handed_back)


async def test_outcomes_wait_for_the_database_and_it_is_said_once() -> None:
    shelf, facts = Shelf(50), Facts()
    go = asyncio.Event()

    async def when_told(n: int) -> int:
        await go.wait()
        return n

    with facts.recorded(DatabaseLost, DatabaseBack) as heard:
        pump = consumer(shelf, when_told, concurrency=50, facts=facts)
        await until(lambda: not shelf.waiting, what="all are claimed")
        shelf.away = True
        go.set()
        await until(lambda: any("settle" in fact.part for fact in heard), what="the loss is noticed")
        assert shelf.settled == []
        shelf.away = False
        await until(lambda: len(shelf.settled) == 50, what="all are settled")
        shelf.more.set()
        await pump.drain(Deadline.after(1))

    assert sorted(shelf.settled) == list(range(50))
    settling = [type(fact) for fact in heard if "settle" in fact.part]
    assert settling == [DatabaseLost, DatabaseBack]


async def test_every_reason_of_an_outage_is_said_once() -> None:
    shelf, facts = Shelf(1), Facts()
    reasons = iter(["the session was ended", *["too many clients"] * 3])

    async def settle(outcomes: Sequence[int]) -> Sequence[int]:
        if reason := next(reasons, None):
            raise DatabaseUnavailable(reason)
        shelf.settled += outcomes
        return []

    shelf.settle = settle  # type: ignore[method-assign]
    with facts.recorded(DatabaseLost) as lost, facts.recorded(DatabaseBack) as back:
        pump = consumer(shelf, at_once, concurrency=1, facts=facts)
        await until(lambda: back, what="it is back")
        await pump.drain(Deadline.after(1))

    assert [fact.error for fact in lost] == ["the session was ended", "too many clients"]
    assert shelf.settled == [0]


async def test_an_outcome_that_is_hindered_comes_again_and_holds_up_no_other() -> None:
    shelf, facts = Shelf(20), Facts()
    shelf.hindered = {3}
    with facts.recorded(Drained) as drained:
        pump = consumer(shelf, at_once, concurrency=5, facts=facts)
        await until(lambda: len(shelf.settled) == 19, what="the others are settled")
        assert pump.held() == [3]
        assert not pump.idle
        shelf.hindered = set()
        await until(lambda: pump.idle, what="the last one is settled too")
        await pump.drain(Deadline.after(1))

    assert sorted(shelf.settled) == list(range(20))
    assert drained == [Drained(20, 0, 0)]


async def test_a_stop_with_the_database_away_ends_and_says_what_is_left_to_rescue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rota.service.consume._LAST_WORDS_SECONDS", 0.2)
    shelf, facts = Shelf(3), Facts()
    pump = consumer(shelf, lambda n: asyncio.sleep(60, n), concurrency=3, facts=facts)
    await until(lambda: not shelf.waiting, what="all are claimed")
    shelf.away = True

    with facts.recorded(Drained) as heard:
        await pump.drain(Deadline.after(0))

    assert heard == [Drained(finished=0, handed_back=0, abandoned=3)]


async def test_what_is_dropped_is_named_and_settles_nothing() -> None:
    shelf = Shelf(30)
    pump = consumer(shelf, lambda n: asyncio.sleep(60, n), concurrency=10)
    await until(lambda: len(shelf.waiting) == 20, what="the slots are filled")

    void = pump.drop()

    assert sorted(void) == list(range(10))
    await until(lambda: len(shelf.waiting) == 10, what="the freed slots are filled again")
    await pump.drain(Deadline.after(0))
    assert shelf.settled == []
    assert sorted(shelf.handed_back) == list(range(10, 20))


class Panic(BaseException):
    """What extension modules raise when they are at their wits' end."""


@pytest.mark.parametrize("how", ["panic", "cancels itself", "raises a cancellation"])
async def test_a_body_that_ends_in_an_odd_way_is_accounted_for_and_frees_its_slot(how: str) -> None:
    async def odd(n: int) -> int:
        if n:
            match how:
                case "panic":
                    raise Panic
                case "cancels itself":
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await asyncio.sleep(1)
                case _:
                    raise asyncio.CancelledError
        return n

    shelf = Shelf(5)
    pump = consumer(shelf, odd, concurrency=1)

    await until(lambda: sorted(shelf.settled) == [-4, -3, -2, -1, 0], what="all five have an outcome")
    await pump.drain(Deadline.after(1))


async def test_nothing_is_started_while_it_may_not_be() -> None:
    shelf = Shelf(1)
    shelf.open = False
    pump = consumer(shelf, at_once, concurrency=1)
    await until(lambda: not shelf.waiting, what="it is claimed")
    assert shelf.settled == []

    shelf.open = True

    await until(lambda: shelf.settled or shelf.handed_back, what="it is started, or given to others")
    await pump.drain(Deadline.after(1))


async def test_all_that_is_held_is_known() -> None:
    shelf = Shelf(10)
    pump = consumer(shelf, lambda n: asyncio.sleep(60 if n else 0, n), concurrency=3)
    await until(lambda: shelf.settled == [0], what="one is settled")

    await until(lambda: sorted(pump.held()) == [1, 2, 3], what="three are running")
    await pump.drain(Deadline.after(0))
    assert pump.held() == []


@pytest.mark.parametrize("when", ["while it waits", "before it begins"])
async def test_who_is_in_a_hurry_does_not_wait_for_a_body_that_ignores_its_cancellation(when: str) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn(n: int) -> int:
        started.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        return n

    shelf = Shelf(1)
    pump = consumer(shelf, stubborn, concurrency=1)
    await started.wait()

    if when == "before it begins":
        pump.hurry()
    draining = asyncio.create_task(pump.drain(Deadline.after(3600)))
    await until(lambda: pump._loops[0].done(), what="it has begun")
    pump.hurry()
    try:
        await asyncio.wait_for(draining, 10)
    finally:
        release.set()

    assert shelf.handed_back == [0]


async def test_who_is_in_a_hurry_waits_for_the_database_no_longer_than_it_takes_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rota.service.consume._LAST_WORDS_SECONDS", 0.2)
    shelf, facts = Shelf(1), Facts()
    pump = consumer(shelf, lambda n: asyncio.sleep(3600, n), concurrency=1, facts=facts)
    await until(lambda: not shelf.waiting, what="it is claimed")
    shelf.away = True

    pump.hurry()
    with facts.recorded(Drained) as heard:
        await asyncio.wait_for(pump.drain(Deadline.after(3600)), 10)

    assert [each.abandoned for each in heard] == [1]


async def test_what_was_not_begun_is_handed_back_while_what_runs_has_its_time() -> None:
    class Generous(Shelf):
        async def claim(self, limit: int) -> Sequence[int]:
            return await super().claim(limit + 2)

    release, started = asyncio.Event(), asyncio.Event()

    async def slow(n: int) -> int:
        started.set()
        await release.wait()
        return n

    shelf, facts = Generous(3), Facts()
    pump = consumer(shelf, slow, concurrency=1, facts=facts)
    await started.wait()

    with facts.recorded(Drained) as heard:
        draining = asyncio.create_task(pump.drain(Deadline.after(3600)))
        await until(lambda: sorted(shelf.handed_back) == [1, 2], what="others have what was not begun")
        assert not draining.done()
        release.set()
        await draining

    assert shelf.settled == [0]
    assert heard == [Drained(finished=1, handed_back=2, abandoned=0)]


async def test_a_pause_begins_nothing_of_what_a_claim_under_way_brings_and_hands_it_back() -> None:
    asked, free, begun = asyncio.Event(), asyncio.Event(), list[int]()

    class Slow(Shelf):
        async def claim(self, limit: int) -> Sequence[int]:
            asked.set()
            await free.wait()
            return await super().claim(limit)

    async def note(n: int) -> int:
        begun.append(n)
        return n

    shelf = Slow(3)
    pump = consumer(shelf, note, concurrency=10)
    await asked.wait()
    pump.pause()
    free.set()
    await until(lambda: sorted(shelf.handed_back) == [0, 1, 2], what="all are handed back")
    asked.clear()
    shelf.waiting.extend([3, 4])
    shelf.more.set()
    paused = (pump.paused, pump.idle, list(begun), asked.is_set())
    pump.resume()
    await until(lambda: sorted(shelf.settled) == [3, 4], what="it goes on")
    await pump.drain(Deadline.after(1))

    assert paused == (True, True, [], False)
    assert begun == [3, 4]
