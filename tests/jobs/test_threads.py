"""Threads for bodies that block: each is called once, none waits behind another that blocks, all that end are heard of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rota.jobs.threads import Threads
from rota.testing import until

MOST = 4


@asynccontextmanager
async def threads_of(most: int = MOST) -> AsyncIterator[Threads]:
    threads = Threads(most, asyncio.get_running_loop())
    try:
        yield threads
    finally:
        threads.close()


async def test_each_is_called_once_and_its_result_is_its_own() -> None:
    called: list[int] = []

    def body(i: int) -> int:
        called.append(i)
        return i

    async with threads_of() as threads:
        calls = [threads.call(lambda i=i: body(i)) for i in range(2_000)]  # type: ignore[misc]
        assert await asyncio.gather(*(call.result for call in calls)) == list(range(2_000))
    assert sorted(called) == list(range(2_000))


async def test_calls_that_come_while_others_end_are_not_forgotten() -> None:
    async with threads_of() as threads:

        async def one_after_the_other() -> None:
            for i in range(300):
                assert await threads.call(lambda i=i: i).result == i  # type: ignore[misc]

        async with asyncio.timeout(20):
            await asyncio.gather(*(one_after_the_other() for _ in range(MOST)))


async def test_none_waits_behind_one_that_blocks() -> None:
    met = threading.Barrier(MOST)
    async with threads_of() as threads:
        # the second time all threads are there, and who comes first finds all four
        for _ in range(2):
            calls = [threads.call(lambda: met.wait(20)) for _ in range(MOST)]
            # each of them waits for all: together they end only if each has a thread
            assert sorted(await asyncio.gather(*(call.result for call in calls))) == list(range(MOST))


async def test_one_more_than_there_are_threads_waits_for_the_first_that_ends() -> None:
    release, begun = [threading.Event() for _ in range(MOST)], [threading.Event() for _ in range(MOST)]
    late = threading.Event()

    def body(i: int) -> bool:
        begun[i].set()
        return release[i].wait(60)

    async with threads_of() as threads:
        calls = [threads.call(lambda i=i: body(i)) for i in range(MOST)]  # type: ignore[misc]
        await until(lambda: all(each.is_set() for each in begun))
        after = threads.call(late.set)
        assert not late.is_set()
        release[1].set()
        await after.result
        assert [call.ended for call in calls] == [False, True, False, False]
        for each in release:
            each.set()
        await asyncio.gather(*(call.result for call in calls))


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()])
async def test_what_it_raises_is_raised_where_it_is_awaited(error: BaseException) -> None:
    def body() -> None:
        raise error

    async with threads_of() as threads:
        with pytest.raises(type(error)):
            await threads.call(body).result
        assert await threads.call(lambda: "the thread goes on").result == "the thread goes on"


async def test_one_cancelled_before_it_begins_is_never_called() -> None:
    release, called = threading.Event(), threading.Event()
    async with threads_of(1) as threads:
        first = threads.call(lambda: release.wait(60))
        second, third = threads.call(called.set), threads.call(lambda: 3)
        assert second.cancel()
        assert not second.cancel(), "whoever took it out has it"
        release.set()
        assert (await first.result, await third.result) == (True, 3)
    assert not called.is_set()


async def test_one_that_has_begun_is_told_of_when_it_ends_though_nobody_awaits_it() -> None:
    release, begun = threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        release.wait(60)

    async with threads_of() as threads:
        call = threads.call(body)
        await until(begun.is_set)
        call.result.cancel()
        assert not call.cancel()
        ended = call.outlives()
        assert not call.ended
        assert not ended.done()
        release.set()
        await until(ended.done)
        assert call.ended


async def test_nothing_begins_after_the_close() -> None:
    release, begun, called = threading.Event(), threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        release.wait(60)

    async with threads_of(1) as threads:
        first = threads.call(body)
        await until(begun.is_set)
        threads.call(called.set)
        threads.close()
        release.set()
        await first.result
    assert not called.is_set()
