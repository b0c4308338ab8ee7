"""One partition of a projection in the process that leads it: a reader for each build that is at work.

Mostly that is one. While a rebuild is under way there are two, the build that readers use and the one that replays the log beside
it, both under one term: so they move together when their process ends, and none is left without an owner. When the new one has
taken over, the reader of the old one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

from rota.errors import DatabaseUnavailable
from rota.facts import Facts
from rota.leases.term import Term
from rota.postgres.pool import Database
from rota.projections.builds import builds_to_read
from rota.projections.checkpoint import declare_projection
from rota.projections.definition import ProjectionDefinition
from rota.projections.projector import Projector

__all__ = ["Owner"]

_AWAY_SECONDS = 0.5
# The net under what readers notice.
_LOOK_SECONDS = 60.0


class Owner:
    """Reads for one partition while it leads it. Belongs to the event loop it is made on."""

    def __init__(
        self,
        definition: ProjectionDefinition,
        partition: int,
        *,
        looking: Database,
        applying: Database,
        facts: Facts,
        hears: Callable[[], bool],
    ) -> None:
        self.definition = definition
        self.partition = partition
        self._looking = looking
        self._applying = applying
        self._facts = facts
        self._hears = hears
        self._readers: dict[int, Projector] = {}
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        """What people call it."""
        partition = "" if self.definition.partitions == 1 else f"#{self.partition}"
        return f"{self.definition.name}{partition}"

    def wake(self) -> None:
        """There may be something new."""
        for reader in self._readers.values():
            reader.wake()

    def told(self) -> dict[str, dict[str, Any]]:
        """How its builds stand, by name: the last, and those before it while they are read for."""
        standings = {build: reader.standing.told() for build, reader in sorted(self._readers.items())}
        there = {build: standing for build, standing in standings.items() if standing is not None}
        first = min(there, default=0)
        return {self.name if build == first else f"{self.name} (build {build})": it for build, it in there.items()}

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()

    async def lead(self, term: Term) -> NoReturn:
        """Take in events for as long as the term lasts."""
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                self._changed.clear()
                for build in await self._builds():
                    if build not in tasks or tasks[build].done():
                        tasks[build] = asyncio.create_task(self._reader(build).lead(term))
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait(
                        [*tasks.values(), changed], timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    changed.cancel()
                for build, task in [*tasks.items()]:
                    if task.done():
                        del tasks[build]
                        task.result()
                        await self._readers.pop(build).close()
        finally:
            await _end(tasks.values())

    def _reader(self, build: int) -> Projector:
        if build not in self._readers:
            self._readers[build] = Projector(
                self.definition,
                build=build,
                partition=self.partition,
                looking=self._looking,
                applying=self._applying,
                facts=self._facts,
                hears=self._hears,
                noticed=self._notice,
            )
        return self._readers[build]

    def _notice(self, build: int) -> None:
        """There is this build."""
        if build not in self._readers and self.definition.takes_build:
            self._changed.set()

    async def _builds(self) -> list[int]:
        definition = self.definition
        while True:
            try:
                found = await self._looking.run(builds_to_read(definition.name, definition.version, self.partition))
                if found:
                    # without tables of their own, two would write into the same
                    return found if definition.takes_build else found[:1]
                # it was forgotten, and is there again because we have it
                told = (definition.name, definition.version, definition.told(), definition.partitions)
                await self._looking.run(declare_projection(*told))
            except DatabaseUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)


async def _end(tasks: Any) -> None:
    """Cancel these and wait for all: each brings what it has in hand to an end first."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
