"""Schedules that code declares, and how they become rows.

Each process says what its code says when its worker starts. Equal words change nothing, so any number of them may. Words that
were never heard before are newer code, and take effect. Words that were heard before are older code: they take effect only
when no live process says the present ones any more. So a rolling deploy does not flap between two versions, and rolling back
takes effect once the newer processes are gone; until then whoever was left aside looks again now and then.

What people put by hand into a declared schedule stays until code says something new. What is declared no more is told, and
never erased: it may be another service's, or come back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from rota.clock import Duration
from rota.errors import DatabaseUnavailable
from rota.facts import Facts, ScheduleOrphaned, SchedulesDeclared
from rota.jobs.codec import Codec
from rota.jobs.definition import AsyncTask, SyncTask, Task
from rota.jobs.package import Package
from rota.postgres.audit import actor, record
from rota.postgres.notify import notify, schedule_channel
from rota.postgres.pool import Database
from rota.postgres.query import Query, Steps, statement
from rota.schedules.definition import ScheduleDefinition, ScheduleOptions, define
from rota.schedules.gather import gather
from rota.schedules.put import Author, SchedulesPut, write
from rota.schedules.store import StoredSchedule, live_digests, lock_definitions, lock_rows, read_rows

__all__ = ["Declarations", "Declared", "declare_schedules"]

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])

CODE = "code"
_REMEMBERED = 50  # words of older code, per schedule
_AGAIN_SECONDS = 30.0


class Scheduled(Protocol):
    """What `@app.cron(...)` returns: leaves a task as it is, and makes one of a function."""

    @overload
    def __call__(self, function: AnyTask, /) -> AnyTask: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class Declarations:
    """The schedules that code declares on an app. They are checked when a worker starts, all of them at once."""

    def __init__(self, tasks: Package) -> None:
        self._tasks = tasks
        self.said: list[dict[str, Any]] = []

    def cron(
        self,
        expression: str,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled:
        """Run the task, or the function, which becomes one, by this cron expression: `@app.cron("0 9 * * mon-fri", tz=...)`.

        `name` is that of the schedule (the task's without it), `args` what each run is called with; `options` are those of
        `app.schedules.put`. It is put when a worker of this app starts.
        """
        return self._declared(name, args, {"cron": expression, **options})

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled:
        """Run the task, or the function, which becomes one, at this pace: `@app.every("30s")`. See cron."""
        return self._declared(name, args, {"every": interval, **options})

    def _declared(self, name: str | None, args: Mapping[str, Any] | None, options: dict[str, Any]) -> Scheduled:
        def declare(function: Any) -> Any:
            task = function if isinstance(function, Task) else self._tasks.task(function)
            item = {"name": task.name if name is None else name, "task": task, "args": args, **options}
            # a module that is imported twice declares the same again, of a task that is the same but for its identity
            self.said[:] = [known for known in self.said if _named(known) != _named(item)]
            self.said.append(item)
            return task

        return declare

    def definitions(self) -> list[ScheduleDefinition]:
        """All that was declared. Raises ConfigurationError, or InvalidArguments, which tells of all mistakes at once."""
        return gather(
            self.said, lambda name, task, args=None, **options: define(name, task, args, options, self._tasks)
        )

    @contextlib.asynccontextmanager
    async def kept(
        self,
        definitions: Sequence[ScheduleDefinition],
        database: Database,
        codec: Codec | None,
        facts: Facts,
        *,
        again: float = _AGAIN_SECONDS,
    ) -> AsyncIterator[None]:
        """Declare these now; and while newer code is in the way of some, look again now and then."""

        async def declare() -> bool:
            declared = await database.run_steps(declare_schedules(definitions, schema=database.schema, codec=codec))
            if declared.put or declared.left:
                facts.emit(SchedulesDeclared(declared.put.added, declared.put.changed, declared.left))
            for name in declared.orphans:
                facts.emit(ScheduleOrphaned(name))
            return bool(declared.left)

        async def insist() -> None:
            is_left = True
            while is_left:
                await asyncio.sleep(again)
                with contextlib.suppress(DatabaseUnavailable):
                    is_left = await declare()

        insisting = asyncio.create_task(insist()) if await declare() else None
        try:
            yield
        finally:
            if insisting is not None:
                insisting.cancel()
                await asyncio.gather(insisting, return_exceptions=True)


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "task": item["task"].name}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a declaration came to: what was put, what was left to newer code, and what no live process declares any more."""

    put: SchedulesPut
    left: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


def declare_schedules(
    definitions: Sequence[ScheduleDefinition], *, schema: str, codec: Codec | None
) -> Steps[Declared]:
    """Put what code says, where it is new. The member that says so must have joined: its peers look for it."""
    names = [definition.name for definition in definitions]
    rows: dict[str, StoredSchedule] = (yield read_rows(names)) if names else {}
    put = SchedulesPut()
    left: tuple[str, ...] = ()
    if not all(new.name in rows and rows[new.name].digest == new.digest() for new in definitions):
        yield lock_definitions(schema)
        yield lock_rows(names)
        rows = yield read_rows(names)
        alive: dict[str, set[str]] = yield live_digests()
        authors: dict[str, Author] = {}
        left = tuple(new.name for new in definitions if _is_older(new, rows.get(new.name), alive))
        for new in definitions:
            old = rows.get(new.name)
            if new.name not in left and (old is None or old.digest != new.digest()):
                authors[new.name] = _author(new, old)
        put = yield from write([new for new in definitions if new.name in authors], authors, actor=CODE, codec=codec)
        if put:
            yield record(actor(None), "schedule.declare", {"added": put.added, "changed": put.changed})
            yield notify(schedule_channel(schema), "")
    orphans: list[str] = yield find_orphans(names)
    return Declared(put, left, tuple(orphans))


def _is_older(new: ScheduleDefinition, old: StoredSchedule | None, alive: Mapping[str, set[str]]) -> bool:
    return (
        old is not None
        and old.digest != (digest := new.digest())
        and digest in old.digests
        and str(old.digest) in alive.get(new.name, ())
    )


def _author(new: ScheduleDefinition, old: StoredSchedule | None) -> Author:
    digest = new.digest()
    if old is None:
        return Author(CODE, digest)
    before = [each for each in (*old.digests, old.digest) if each is not None and each != digest]
    return Author(CODE, digest, tuple(before[-_REMEMBERED:]))


FIND_ORPHANS = statement(
    "find_orphans",
    """
    select known.name
    from {schema}.schedules as known
    where known.digest is not null
      and known.name <> all (%(names)s::text[])
      and not exists (
          select from {schema}.members as member where member.ended_at is null and member.work -> 'schedules' ? known.name
      )
    order by known.name
    limit 100
    """,
)


def find_orphans(names: Sequence[str]) -> Query[list[str]]:
    """Schedules that code declared and that no live process does any more, nor does this one with these names."""
    return FIND_ORPHANS.query({"names": list(names)}, read=lambda rows: [row[0] for row in rows])
