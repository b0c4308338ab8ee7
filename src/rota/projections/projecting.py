"""All projections of one worker: each is led by one process of all, spread over them like every leadership."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rota.facts import Facts
from rota.leases.control import Reactions
from rota.leases.singletons import Singleton
from rota.postgres.pool import Database
from rota.projections.checkpoint import declare_projection
from rota.projections.definition import ProjectionDefinition
from rota.projections.owner import Owner
from rota.projections.rebase import check_order

__all__ = ["Projecting"]

# Everything here is found by its place, and that must not turn into a scan because statistics are stale.
_LOOKING: dict[str, str | None] = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
}
_MOST = 3  # looks are short
_KEPT = 8  # a handler that hangs in a thread keeps its connection, though its session has ended; the next needs another


class Projecting:
    """Reads for the projections that this worker comes to lead. `reactions` belong into the control thread."""

    def __init__(
        self,
        database: Database,
        definitions: Sequence[ProjectionDefinition],
        facts: Facts,
        *,
        hears: Callable[[], bool],
    ) -> None:
        self.definitions = definitions
        self._loop = asyncio.get_running_loop()
        self._looking = database.apart("feed", size=min(max(1, len(definitions)), _MOST), settings=_LOOKING)
        self._applying = database.apart("project", size=max(1, sum(map(_connections, definitions))) + _KEPT)
        self._owners = [
            Owner(each, partition, looking=self._looking, applying=self._applying, facts=facts, hears=hears)
            for each in definitions
            for partition in range(each.partitions)
        ]
        self.reactions = Reactions(on_event=self._on_event)

    def singletons(self) -> list[Singleton]:
        """What the worker is to lead."""
        return [Singleton(each.definition.lease(each.partition), each.lead) for each in self._owners]

    @property
    def connections(self) -> int:
        """How many it opens at its busiest."""
        return min(len(self.definitions), _MOST) + sum(map(_connections, self.definitions))

    def told(self) -> dict[str, dict[str, Any]]:
        """How those stand that this process reads for, by name; asks nobody."""
        return {name: standing for each in self._owners for name, standing in each.told().items()}

    @contextlib.asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Have the projections declared, and their connections, for the length of a block.

        Raises ConfigurationError for a source that is not what it is said to be, and ForeignDatabase for one that was restored from
        another server and not rebased, before anything starts.
        """
        try:
            for each in self.definitions:
                if (check := getattr(each.readable, "check", None)) is not None:
                    await check()
                check_order(each, await self._looking.run(each.feed.ahead()))
                await self._looking.run(declare_projection(each.name, each.version, each.told(), each.partitions))
            yield
        finally:
            for owner in self._owners:
                await owner.close()
            await self._applying.close()
            await self._looking.close()

    def _on_event(self, log: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody cares any more
            self._loop.call_soon_threadsafe(self._wake, log)

    def _wake(self, log: str) -> None:
        for owner in self._owners:
            if log in ("", owner.definition.source.name):
                owner.wake()


def _connections(definition: ProjectionDefinition) -> int:
    """One for each partition, and one more while it is rebuilt."""
    return definition.partitions * (2 if definition.takes_build else 1)
