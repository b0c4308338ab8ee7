"""What the author of a projection runs around its events: `prepare` makes its tables, `switch` gives them to readers.

Both run in a transaction of ours that says whether it is time for them, and notes that it was done.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from rota.errors import DatabaseUnavailable, LeadershipLost
from rota.facts import Facts, HookHindered, ProjectionStopped
from rota.failure import describe
from rota.leases.term import Term
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.projections.apply import Applier
from rota.projections.checkpoint import Owned, fail_projection
from rota.projections.definition import ProjectionDefinition
from rota.projections.feed import Feed, Found, Pair
from rota.projections.rebuild import find_places, may_prepare, may_switch, note_prepared, note_switched

__all__ = ["Hooks"]

# That the connection has ended (which may have no code), the server stops, or has no more to give.
_AWAY = ("08", "53", "57P", "58")
# What is no fault of a hook: someone else holds what it needs. How long it rests at most before the next attempt.
_IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_LONGEST_PAUSE = 10.0


class Hooks:
    """Of one build of one partition. `rest` waits before the next attempt, unless someone has moved the projection meanwhile."""

    def __init__(
        self,
        definition: ProjectionDefinition,
        feed: Feed,
        applier: Applier,
        looking: Database,
        facts: Facts,
        *,
        build: int,
        partition: int,
        rest: Callable[[Owned, Pair, float], Awaitable[None]],
    ) -> None:
        self._definition = definition
        self._applier = applier
        self._looking = looking
        self._facts = facts
        self._partition = partition
        # the end of each fact
        self._which = (build, None if definition.partitions == 1 else partition)
        self._feed = feed
        self._rest = rest
        self._hindrances = 0
        self._others_at: Pair | None = None

    async def prepare(self, term: Term, owned: Owned, found: Found) -> bool:
        """Have its tables made, if that was not done."""
        prepare = self._definition.prepare
        assert prepare is not None
        return await self._change(term, owned, found, prepare, (may_prepare(owned), note_prepared(owned)))

    async def switch(self, term: Term, owned: Owned, found: Found) -> bool:
        """Give readers this, if it has a `switch` and is as far as those before it. The first partition sees to that for all."""
        if self._definition.switch is None or found.replays or self._partition:
            return False
        if self._definition.partitions > 1:
            mine, others = await self._looking.run(find_places(owned))
            if mine < others and (self._others_at is None or mine < self._others_at):
                # some are far behind: those before it are not held up for them
                self._others_at = self._others_at or others
                return False
            self._others_at = None
        switch = self._definition.switch
        return await self._change(term, owned, found, switch, (may_switch(owned), note_switched(owned)))

    async def _change(
        self,
        term: Term,
        owned: Owned,
        found: Found,
        hook: Callable[..., Any],
        around: tuple[Query[Any], Query[Any]],
    ) -> bool:
        """Run a hook of the author's. One that raises stops the projection: without its tables it is nothing.

        True when something was done about it, and it is time for another look.
        """
        try:
            changed = await self._applier.change(term, hook, *around)
            self._hindrances = 0
            return changed
        except (LeadershipLost, DatabaseUnavailable):
            raise
        except psycopg.Error as error:
            if isinstance(error, _IN_THE_WAY):
                await self._hindered(owned, found, "prepare" if hook is self._definition.prepare else "switch", error)
                return True
            if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_AWAY):
                raise DatabaseUnavailable(str(error)) from error
            await self._stopped(owned, found, error)
        except Exception as error:
            await self._stopped(owned, found, error)
        return True

    async def _hindered(self, owned: Owned, found: Found, hook: str, error: BaseException) -> None:
        """Others hold what a hook needs. They end some time, so it is told of and tried again, however often."""
        self._hindrances += 1
        pause = min(_LONGEST_PAUSE, 0.1 * 2 ** min(self._hindrances, 10)) * random.uniform(0.5, 1.0)
        self._facts.emit(HookHindered(owned.name, owned.version, hook, self._hindrances, error, pause, *self._which))
        place = (await self._looking.run(self._feed.look(1)) or found).at
        await self._looking.run(fail_projection(owned, place, describe(error), stop=False, counts=False))
        await self._rest(owned, place, pause)

    async def _stopped(self, owned: Owned, found: Found, error: BaseException) -> None:
        place = (await self._looking.run(self._feed.look(1)) or found).at
        await self._looking.run(fail_projection(owned, place, describe(error), stop=True))
        told = (self._definition.name, self._definition.version, place.position, 1)
        self._facts.emit(ProjectionStopped(*told, error, *self._which))
