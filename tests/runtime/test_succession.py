"""How a fleet replaces those that have done enough: the order of it, with processes that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rota.runtime.fleet import Fleet
from rota.service.ending import ENDING
from rota.testing import until


class Child:
    """Stands in for a SupervisedWorker."""

    def __init__(self, number: int, pid: int) -> None:
        self.number, self.pid = number, pid
        self.ready, self.enough, self.asked, self.gone = (asyncio.Event() for _ in range(4))
        self.live_at: float | None = None
        self.replaced = False

    @property
    def running(self) -> bool:
        return not self.gone.is_set()

    async def wait(self) -> int:
        await self.gone.wait()
        return 0

    def replace(self) -> None:
        self.replaced = True
        self.asked.set()

    def terminate(self) -> None:
        self.asked.set()
        self.gone.set()

    hurry = kill = terminate


class Started:
    """A fleet of two that has started, and all children it ever had, in order."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.fleet = Fleet(2, self._start, grace=60)

    async def _start(self, number: int) -> Any:
        self.children.append(Child(number, pid=len(self.children) + 1))
        return self.children[-1]


@pytest.fixture
async def started() -> AsyncIterator[Started]:
    ENDING.reset()
    started = Started()
    running = asyncio.create_task(started.fleet.run())
    await until(lambda: len(started.children) == 2)
    yield started
    started.fleet.stop()
    assert await running == 0
    ENDING.reset()


async def _turns() -> None:
    """As many turns of the loop as anything could need that is about to happen."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_one_is_replaced_after_the_other_and_none_before_its_successor_is_ready(started: Started) -> None:
    first, second = started.children
    first.enough.set()
    second.enough.set()

    await until(lambda: len(started.children) == 3)
    await _turns()
    assert (len(started.children), first.replaced, second.replaced) == (3, False, False)
    assert started.children[2].number == first.number

    started.children[2].ready.set()
    await until(lambda: first.replaced)
    await _turns()
    assert len(started.children) == 3  # the first is still there

    first.gone.set()
    await until(lambda: len(started.children) == 4)
    started.children[3].ready.set()
    await until(lambda: second.replaced)
    second.gone.set()


async def test_one_that_waits_for_its_turn_and_dies_is_replaced_as_any_other(started: Started) -> None:
    first, second = started.children
    first.enough.set()
    await until(lambda: len(started.children) == 3)
    second.enough.set()
    await _turns()

    second.gone.set()

    await until(lambda: len(started.children) == 4)
    assert started.children[3].number == second.number
    assert not first.replaced


async def test_a_successor_that_dies_while_the_old_one_drains_is_not_waited_for(started: Started) -> None:
    first = started.children[0]
    first.enough.set()
    await until(lambda: len(started.children) == 3)
    started.children[2].ready.set()
    await until(lambda: first.replaced)

    started.children[2].gone.set()

    await until(lambda: len(started.children) == 4)
    assert first.running
    first.gone.set()
