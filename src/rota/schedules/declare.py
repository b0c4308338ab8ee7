"""Schedules that code declares, and how they become rows.

Each process says what its code says when its worker starts. Equal words change nothing, so any number of them may. Words that
were never heard before are newer code, and take effect. Words that were heard before are older code: they take effect only
when no live process says the present ones any more. So a rolling deploy does not flap between two versions, and rolling back
takes effect once the newer processes are gone: each process looks now and then whether its words are those that hold.

What people put by hand into a declared schedule stays until code says something new. What is declared no more is told, and
never erased: it may be another service's, or come back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from rota.clock import Duration
from rota.errors import DatabaseUnavailable
from rota.facts import Facts, ScheduleOrphaned, SchedulesDeclared, SchedulesNotDeclared
from rota.jobs.codec import Codec
from rota.jobs.definition import AsyncTask, SyncTask, Task
from rota.jobs.package import Package
from rota.postgres.audit import actor, record
from rota.postgres.notify import notify, schedule_channel
from rota.postgres.pool import Database
from rota.postgres.query import Query, Steps, statement
from rota.schedules.definition import ScheduleDefinition, ScheduleOptions, define
from rota.schedules.gather import gather
from rota.schedules.put import Author, SchedulesPut, told_changes, write
from rota.schedules.store import live_digests, lock_definitions, lock_rows

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
        """Declare these now, and look now and then whether they still hold: newer code may have come, and be gone again.

        What is in the way, such as a row that someone holds locked, is told and tried again: no job waits for that.
        """
        told: tuple[str, ...] = ()

        async def declare(*, starts: bool) -> None:
            nonlocal told
            steps = declare_schedules(definitions, schema=database.schema, codec=codec, starts=starts)
            declared = await database.run_steps(steps)
            if declared.put or declared.left not in ((), told):
                facts.emit(SchedulesDeclared(declared.put.added, declared.put.changed, declared.left))
            told = declared.left
            for name in declared.orphans:
                facts.emit(ScheduleOrphaned(name))

        async def insist(*, starts: bool) -> None:
            while True:
                await asyncio.sleep(again)
                try:
                    await declare(starts=starts)
                    starts = False
                except Exception as error:  # whatever it is, the next look may find it gone
                    facts.emit(SchedulesNotDeclared(error, again))

        starts = False
        try:
            await declare(starts=True)
        except DatabaseUnavailable as error:
            starts = True
            facts.emit(SchedulesNotDeclared(error, again))
        insisting = asyncio.create_task(insist(starts=starts)) if definitions or starts else None
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
    definitions: Sequence[ScheduleDefinition], *, schema: str, codec: Codec | None, starts: bool = True
) -> Steps[Declared]:
    """Put what code says, where it is new. The member that says so must have joined: its peers look for it.

    A process that `starts` also brings back what was deleted, and mends what is broken; one that looks again leaves both as
    they are, and takes one cheap read for it.
    """
    names = [definition.name for definition in definitions]
    words: dict[str, Words] = (yield read_words(names)) if names else {}
    put = SchedulesPut()
    left: tuple[str, ...] = ()
    differ = [new for new in definitions if _differs(new, words.get(new.name), starts=starts)]
    if differ:
        alive: dict[str, set[str]] = yield live_digests()
        left = _left(differ, words, alive)
    if len(differ) > len(left):
        yield lock_definitions(schema)
        yield lock_rows(names)
        words = yield read_words(names)
        alive = yield live_digests()
        differ = [new for new in definitions if _differs(new, words.get(new.name), starts=starts)]
        left = _left(differ, words, alive)
        ours = [new for new in differ if new.name not in left]
        authors = {new.name: _author(new, words.get(new.name)) for new in ours}
        put = yield from write(ours, authors, actor=CODE, codec=codec)
        if put:
            told = {"added": put.added, "changed": put.changed, "changes": told_changes(put)}
            yield record(actor(None), "schedule.declare", told)
            yield notify(schedule_channel(schema), "")
    orphans: list[str] = (yield find_orphans(names)) if starts else []
    return Declared(put, left, tuple(orphans))


def _differs(new: ScheduleDefinition, old: Words | None, *, starts: bool) -> bool:
    if old is None:
        return starts
    # what people put is theirs to mend
    return old.digest != new.digest() or (starts and old.is_broken and old.owner == CODE)


def _left(
    differ: Sequence[ScheduleDefinition], words: Mapping[str, Words], alive: Mapping[str, set[str]]
) -> tuple[str, ...]:
    return tuple(new.name for new in differ if _is_older(new, words.get(new.name), alive))


def _is_older(new: ScheduleDefinition, old: Words | None, alive: Mapping[str, set[str]]) -> bool:
    return (
        old is not None
        and old.digest != (digest := new.digest())
        and digest in old.digests
        and str(old.digest) in alive.get(new.name, ())
    )


def _author(new: ScheduleDefinition, old: Words | None) -> Author:
    digest = new.digest()
    if old is None:
        return Author(CODE, digest)
    before = [each for each in (*old.digests, old.digest) if each is not None and each != digest]
    return Author(CODE, digest, tuple(before[-_REMEMBERED:]))


class Words(NamedTuple):
    """Whose words a schedule has, and whether they came to nothing."""

    digest: UUID | None
    digests: list[UUID]
    owner: str | None
    is_broken: bool


READ_WORDS = statement(
    "read_declared",
    """
    select known.name, known.digest, known.digests, known.owner, known.problem is not null
    from {schema}.schedules as known
    where known.name = any (%(names)s::text[])
    """,
)


def read_words(names: Sequence[str]) -> Query[dict[str, Words]]:
    """Whose words those of these have that there are, by name."""
    return READ_WORDS.query({"names": list(names)}, read=lambda rows: {name: Words(*told) for name, *told in rows})


FIND_ORPHANS = statement(
    "find_orphans",
    """
    select known.name
    from {schema}.schedules as known
    left join {schema}.live_names('schedules') as declared on declared.name = known.name
    where known.digest is not null
      and known.name <> all (%(names)s::text[])
      and declared.name is null
    order by known.name
    limit 100
    """,
)


def find_orphans(names: Sequence[str]) -> Query[list[str]]:
    """Schedules that code declared and that no live process does any more, nor does this one with these names."""
    return FIND_ORPHANS.query({"names": list(names)}, read=lambda rows: [row[0] for row in rows])
