"""`app.projection` and `app.projections`: the registry, and what can be done with projections by name, in both colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from rota.errors import ConfigurationError
from rota.postgres.audit import actor
from rota.postgres.notify import event_channel
from rota.postgres.query import Steps
from rota.projections.builds import cancel_rebuild, rebuild_projection
from rota.projections.definition import ProjectionDefinition, define
from rota.projections.feed import Feed, FeedRow, Pair, Readable
from rota.projections.inspect import ProjectionView, list_projections
from rota.projections.operate import (
    Asked,
    drop_parked,
    find_builds,
    find_parked,
    find_projection,
    forget_projection,
    pause_projection,
    read_stored,
    replay_parked,
    resume_projection,
    skip_event,
)
from rota.projections.parked import ParkedEvent
from rota.projections.projection import Home, Projection
from rota.projections.rebase import Rebased, rebase, rebase_sync
from rota.projections.rewind import Rewind, preview_rewind, rewind_projection
from rota.projections.trouble import OnError, Stop

__all__ = ["Projections"]

P = ParamSpec("P")
R = TypeVar("R")

_STOP = Stop()


class Decorator(Protocol):
    """What `@app.projection(...)` returns: keeps the function's signature and result type."""

    def __call__(self, function: Callable[P, R], /) -> Projection[P, R]: ...


class Projections(Mapping[str, Projection[..., Any]]):
    """The projections of an app, and what can be done with them."""

    def __init__(self, home: Home, known: Mapping[str, Projection[..., Any]] | None = None) -> None:
        self._home = home
        self._projections: dict[str, Projection[..., Any]] = {
            name: Projection(projection.definition, home) for name, projection in (known or {}).items()
        }

    def projection(
        self,
        name: str,
        *,
        source: Readable,
        types: Sequence[str] | None = None,
        streams: Sequence[str] | None = None,
        batch: int = 500,
        version: int = 1,
        on_error: OnError = _STOP,
        partition_by: Literal["stream"] | None = None,
        partitions: int | None = None,
        prepare: Callable[..., Any] | None = None,
        switch: Callable[..., Any] | None = None,
    ) -> Decorator:
        """Have a function called with each event of a log or table, once and in order, by one worker of all.

        The function is given the event and an open connection, psycopg's, whose transaction has the checkpoint as well: what it
        writes through that, and that the event was taken in, is committed together. Whatever else it does may be done again.
        One that is annotated to take a list of events is given a whole batch at once. `async def` runs on the event loop, `def`
        in a thread with a sync connection.

        `types` and `streams` choose what concerns it; a stream that ends in * is a prefix. `batch` is how many events one
        transaction takes in at most. `version` begins anew: each has its own checkpoint. `on_error` says what becomes of an event
        that cannot be taken in: the projection stops at it, tries it again as a Retry says and then stops, or parks it.

        `partition_by="stream"` and `partitions=4` have four workers share it, or fewer if there are not so many: each partition has a
        checkpoint and an owner of its own, and all events of a stream are in one of them. Between streams there is no order then, and
        trouble with an event concerns its partition. The number stays what it is for as long as the version.

        `prepare(connection)` is called once for each version, before its first event: there it makes its tables. `switch(connection)`
        is called once when a version has caught up and is as far as those before it: there readers are given the new tables. In the
        same transaction the versions before it retire. When the function and both of these have a parameter `build`, they are given
        a number to name tables by, and `rebuild` makes the next one from all events beside the one that readers use.
        """

        def register(function: Callable[..., Any]) -> Any:
            definition = define(
                function,
                name=name,
                source=source,
                types=types,
                streams=streams,
                batch=batch,
                version=version,
                on_error=on_error,
                partition_by=partition_by,
                partitions=partitions,
                prepare=prepare,
                switch=switch,
            )
            if definition.name in self._projections:
                raise ConfigurationError(f"There is a projection {name!r} already. Give one of them another name.")
            definition = replace(definition, handler=self._home.around(function))
            self._projections[name] = projection = Projection[Any, Any](definition, self._home)
            return projection

        return register

    @property
    def definitions(self) -> Sequence[ProjectionDefinition]:
        return [projection.definition for projection in self._projections.values()]

    async def list(self) -> Sequence[ProjectionView]:
        """All projections that a process has declared, each version; also those of other apps on this database."""
        return await self._home.database.run(list_projections())

    def list_sync(self) -> Sequence[ProjectionView]:
        return self._home.database.run_sync(list_projections())

    async def show(self, name: str, *, version: int | None = None, build: int | None = None) -> ProjectionView:
        """That version of it, or the one of this app, or the last; of that the build that readers use, unless one is named.

        Raises NotPossible when nobody has declared it.
        """
        return await self._home.database.run_steps(find_projection(self._asked(name, version, None, build)))

    def show_sync(self, name: str, *, version: int | None = None, build: int | None = None) -> ProjectionView:
        return self._home.database.run_steps_sync(find_projection(self._asked(name, version, None, build)))

    async def builds(self, name: str, *, version: int | None = None) -> Sequence[ProjectionView]:
        """The builds of that version that are at work: the one that readers use, and one that is to take its place."""
        return await self._home.database.run_steps(find_builds(self._asked(name, version, None)))

    def builds_sync(self, name: str, *, version: int | None = None) -> Sequence[ProjectionView]:
        return self._home.database.run_steps_sync(find_builds(self._asked(name, version, None)))

    async def pause(
        self,
        name: str,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> ProjectionView:
        """Have nobody read for it, until it is resumed; a batch in hand is undone, and read again then. Raises NotPossible.

        All its partitions, and a rebuild that is under way, unless one is named.
        """
        steps = pause_projection(self._asked(name, version, by, build, partition))
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def pause_sync(
        self,
        name: str,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> ProjectionView:
        steps = pause_projection(self._asked(name, version, by, build, partition))
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def resume(
        self,
        name: str,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> ProjectionView:
        """Go on at once, be it paused or stopped: with the event it stopped at, and all its attempts.

        All its partitions, and a rebuild that is under way, unless one is named.
        """
        steps = resume_projection(self._asked(name, version, by, build, partition))
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def resume_sync(
        self,
        name: str,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> ProjectionView:
        steps = resume_projection(self._asked(name, version, by, build, partition))
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def rewind(
        self,
        name: str,
        position: int | None = None,
        *,
        since: datetime | None = None,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> ProjectionView:
        """Read again from the event at this position, or from the first. What the handler has written stays: make room first.

        `since` is a time instead of a position: from the first of the last 100,000 events that was stored then or later. Of all
        partitions those that have come further, unless one is named. What is parked from there on leaves the list, as it is read
        again as well. Raises NotPossible when there is no such event, it lies ahead, or a checkpoint moves at this moment: pause it
        first.
        """
        asked = self._asked(name, version, by, build, partition)
        steps = rewind_projection(asked, self._feed(name, version), *_place(position, since))
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def rewind_sync(
        self,
        name: str,
        position: int | None = None,
        *,
        since: datetime | None = None,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> ProjectionView:
        asked = self._asked(name, version, by, build, partition)
        steps = rewind_projection(asked, self._feed(name, version), *_place(position, since))
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def preview_rewind(
        self,
        name: str,
        position: int | None = None,
        *,
        since: datetime | None = None,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
    ) -> Rewind:
        """How many events a rewind would have read again, counted up to 100,000, and from where. Raises what it would."""
        asked = self._asked(name, version, None, build, partition)
        steps = preview_rewind(asked, self._feed_of(name, version), *_place(position, since))
        return await self._home.database.run_steps(steps)

    def preview_rewind_sync(
        self,
        name: str,
        position: int | None = None,
        *,
        since: datetime | None = None,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
    ) -> Rewind:
        asked = self._asked(name, version, None, build, partition)
        steps = preview_rewind(asked, self._feed_of(name, version), *_place(position, since))
        return self._home.database.run_steps_sync(steps)

    async def rebuild(
        self, name: str, *, cancel: bool = False, by: str | None = None, dry_run: bool = False
    ) -> ProjectionView:
        """Replay all events beside what readers use, and give readers the result when it has caught up; returns the new build.

        For a projection of this app whose function, `prepare` and `switch` take a build. A rebuild that is under way is given up for
        it; with `cancel` it is given up, and nothing is begun. Others begin anew with a version that readers do not use yet. Raises
        NotPossible for one that they do, and says what to do.
        """
        return await self._home.database.run_steps(self._rebuild(name, cancel, by), dry_run=dry_run)

    def rebuild_sync(
        self, name: str, *, cancel: bool = False, by: str | None = None, dry_run: bool = False
    ) -> ProjectionView:
        return self._home.database.run_steps_sync(self._rebuild(name, cancel, by), dry_run=dry_run)

    def _rebuild(self, name: str, cancel: bool, by: str | None) -> Steps[ProjectionView]:
        definition = self[name].definition
        asked = self._asked(name, definition.version, by)
        if cancel:
            return cancel_rebuild(asked)
        return rebuild_projection(asked, has_prepare=definition.prepare is not None, takes_build=definition.takes_build)

    async def skip(
        self,
        name: str,
        *,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> FeedRow:
        """Pass over the event that comes next, such as the one it stopped at, and return it as it is stored.

        For a projection of this app. Of several partitions in the one that has stopped, unless one is named. It does not resume one
        that is stopped.
        """
        steps = skip_event(self._asked(name, self[name].version, by, build, partition), self[name].definition.feed_of)
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def skip_sync(
        self,
        name: str,
        *,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> FeedRow:
        steps = skip_event(self._asked(name, self[name].version, by, build, partition), self[name].definition.feed_of)
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def parked(
        self,
        name: str,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        limit: int = 100,
        after: Pair | None = None,
    ) -> Sequence[ParkedEvent]:
        """What could not be taken in, in the order of the log; `after` is the place of the last of the page before."""
        asked = self._asked(name, version, None, build, partition)
        return await self._home.database.run_steps(find_parked(asked, limit=limit, after=after))

    def parked_sync(
        self,
        name: str,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        limit: int = 100,
        after: Pair | None = None,
    ) -> Sequence[ParkedEvent]:
        asked = self._asked(name, version, None, build, partition)
        return self._home.database.run_steps_sync(find_parked(asked, limit=limit, after=after))

    async def stored(self, name: str, pairs: Sequence[Pair]) -> Sequence[FeedRow | None]:
        """The events at these places as they are stored, None where there is none; for a projection of this app."""
        return await self._home.database.run_steps(read_stored(self[name].definition.feed, pairs))

    def stored_sync(self, name: str, pairs: Sequence[Pair]) -> Sequence[FeedRow | None]:
        return self._home.database.run_steps_sync(read_stored(self[name].definition.feed, pairs))

    async def replay(
        self,
        name: str,
        positions: Sequence[int] | None = None,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Have the events at these positions, or all that are parked, taken in by whoever reads for it; returns how many there are.

        They are tried in the order of the log, and each leaves the list in the transaction that takes it in. One that fails again
        stays parked.
        """
        steps = replay_parked(self._asked(name, version, by, build, partition), positions)
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def replay_sync(
        self,
        name: str,
        positions: Sequence[int] | None = None,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        steps = replay_parked(self._asked(name, version, by, build, partition), positions)
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def drop(
        self,
        name: str,
        positions: Sequence[int] | None = None,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Give up the parked events at these positions, or all of them; returns how many there were."""
        steps = drop_parked(self._asked(name, version, by, build, partition), positions)
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def drop_sync(
        self,
        name: str,
        positions: Sequence[int] | None = None,
        *,
        version: int | None = None,
        build: int | None = None,
        partition: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        steps = drop_parked(self._asked(name, version, by, build, partition), positions)
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def forget(
        self, name: str, *, version: int | None = None, by: str | None = None, dry_run: bool = False
    ) -> ProjectionView:
        """Forget a version that is no longer in any code, with its checkpoint and what is parked. What it wrote is left alone.

        Raises NotPossible while a live process has it.
        """
        steps = forget_projection(self._asked(name, version, by))
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def forget_sync(
        self, name: str, *, version: int | None = None, by: str | None = None, dry_run: bool = False
    ) -> ProjectionView:
        steps = forget_projection(self._asked(name, version, by))
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def rebase(self, *, restored_to: int | None = None, by: str | None = None, dry_run: bool = False) -> Rebased:
        """Give the events of a database that was restored into another cluster an order that this server understands.

        For all logs of the schema that have ids of the future, while no worker runs and nobody appends; all or nothing. Checkpoints
        and parked events are moved along. What was appended since the restore comes behind what was restored; `restored_to` is the
        position of the last event that was, for when that cannot be told. Raises NotPossible then, and when there is nothing to do.
        Pairs that were kept elsewhere mean nothing afterwards.
        """
        return await rebase(self._home.database, actor(by), restored_to, dry_run=dry_run)

    def rebase_sync(self, *, restored_to: int | None = None, by: str | None = None, dry_run: bool = False) -> Rebased:
        return rebase_sync(self._home.database, actor(by), restored_to, dry_run=dry_run)

    def _asked(
        self, name: str, version: int | None, by: str | None, build: int | None = None, partition: int | None = None
    ) -> Asked:
        if version is None and name in self._projections:
            version = self._projections[name].version
        return Asked(name, version, actor(by), event_channel(self._home.database.schema), build, partition)

    def _feed(self, name: str, version: int | None) -> Feed | None:
        feed_of = self._feed_of(name, version)
        return None if feed_of is None else feed_of()

    def _feed_of(self, name: str, version: int | None) -> Callable[..., Feed] | None:
        known = self._projections.get(name)
        return known.definition.feed_of if known is not None and version in (None, known.version) else None

    def __getitem__(self, name: str) -> Projection[..., Any]:
        try:
            return self._projections[name]
        except KeyError:
            known = ", ".join(sorted(self._projections)) or "none"
            raise KeyError(f"this app has no projection {name!r}; it has {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._projections)

    def __len__(self) -> int:
        return len(self._projections)


def _place(position: int | None, since: datetime | None) -> tuple[int | None, datetime | None]:
    if position is not None and since is not None:
        raise ConfigurationError("position and since cannot both say where to begin: give one of them.")
    if since is not None and since.tzinfo is None:
        raise ConfigurationError(f"since cannot be {since!r}: it needs a time zone, such as datetime(..., tzinfo=UTC).")
    return position, since
