"""`app.schedules`: schedules as rows, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Page
from datetime import datetime
from typing import Any, Unpack

from rota.clock import Duration
from rota.errors import ScheduleNotFound
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.job import Job, Owner
from rota.postgres.audit import actor
from rota.postgres.look import look
from rota.postgres.names import check_name
from rota.postgres.pool import Database
from rota.postgres.query import Steps
from rota.schedules.arguments import check_arguments
from rota.schedules.backfill import Range, clear_slots, find_gaps, put_backfill
from rota.schedules.change import change_schedule
from rota.schedules.definition import ScheduleDefinition, ScheduleOptions, check_schedule_name, define
from rota.schedules.gather import gather
from rota.schedules.history import ScheduleRun, list_runs
from rota.schedules.operate import delete_schedule, find_schedule, pause_schedule, resume_schedule, skip_slot
from rota.schedules.preview import SchedulePreview, preview_slots
from rota.schedules.put import SchedulesPut, put_schedules
from rota.schedules.store import StoredSchedule
from rota.schedules.timeline import Timeline, draw_timeline
from rota.schedules.trigger import trigger_schedule
from rota.schedules.view import Schedule, get_schedule, list_schedules

__all__ = ["Schedules"]


class Schedules:
    """Put schedules at run time, look at them, and change what becomes of them.

    `by` is who is on record for a change; by default this process. With `dry_run` nothing is changed, and what is returned or
    raised is what would be.
    """

    def __init__(
        self, database: Database, tasks: Mapping[str, Task[..., Any]], codec: Codec | None, app: Owner
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._codec = codec
        self._app = app

    def define(
        self,
        name: str,
        *,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDefinition:
        """A schedule as a value, checked: for put_many and preview. Raises ConfigurationError or InvalidArguments."""
        return define(name, task, args, options, self._tasks)

    async def put(
        self,
        name: str,
        *,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        dry_run: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Add the schedule, or have the one of this name say this from now on, and return it.

        `task` is one, or its name, and `args` what each run is called with. When: one of `cron`, `every` (with
        `counted_from="end"`: that long after a run has ended, in elapsed time), `at`, `after` (names of schedules) and `on`
        (an event); with none it runs when it is triggered. What says the same as before changes nothing. A change takes
        effect without losing or doubling a slot, and leaves a paused schedule paused. Raises ConfigurationError or
        InvalidArguments, with the field and the reason, before anything is stored.
        """
        definition = define(name, task, args, options, self._tasks)
        return await self._database.run_steps(self._putting(definition, by), dry_run=dry_run)

    def put_sync(
        self,
        name: str,
        *,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        dry_run: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        definition = define(name, task, args, options, self._tasks)
        return self._database.run_steps_sync(self._putting(definition, by), dry_run=dry_run)

    async def change(
        self,
        name: str,
        *,
        task: Task[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        reset: Page[str] = (),
        by: str | None = None,
        dry_run: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Have the schedule say this, and all else as before, and return it.

        `args` go over those it has, name by name, and `options` are those of `put`; `reset` names options that are to be as if
        they had never been given. Another word for when takes the place of the one there is, and of rules that mean nothing
        beside it. Raises ScheduleNotFound, and what `put` raises.
        """
        return await self._database.run_steps(self._changing(name, task, args, reset, by, options), dry_run=dry_run)

    def change_sync(
        self,
        name: str,
        *,
        task: Task[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        reset: Page[str] = (),
        by: str | None = None,
        dry_run: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        return self._database.run_steps_sync(self._changing(name, task, args, reset, by, options), dry_run=dry_run)

    async def preview_put(
        self,
        name: str,
        *,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        n: int = 10,
        **options: Unpack[ScheduleOptions],
    ) -> SchedulePreview:
        """What `put` would make of it: the schedule, and its next n slots. Puts nothing; raises what `put` would."""
        definition = define(name, task, args, options, self._tasks)
        return await self._database.run_steps(self._foreseen(self._putting(definition, None), n), dry_run=True)

    def preview_put_sync(
        self,
        name: str,
        *,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        n: int = 10,
        **options: Unpack[ScheduleOptions],
    ) -> SchedulePreview:
        definition = define(name, task, args, options, self._tasks)
        return self._database.run_steps_sync(self._foreseen(self._putting(definition, None), n), dry_run=True)

    async def preview_change(
        self,
        name: str,
        *,
        task: Task[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        reset: Page[str] = (),
        n: int = 10,
        **options: Unpack[ScheduleOptions],
    ) -> SchedulePreview:
        """What `change` would make of it, in the same way."""
        changing = self._changing(name, task, args, reset, None, options)
        return await self._database.run_steps(self._foreseen(changing, n), dry_run=True)

    def preview_change_sync(
        self,
        name: str,
        *,
        task: Task[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        reset: Page[str] = (),
        n: int = 10,
        **options: Unpack[ScheduleOptions],
    ) -> SchedulePreview:
        changing = self._changing(name, task, args, reset, None, options)
        return self._database.run_steps_sync(self._foreseen(changing, n), dry_run=True)

    async def put_many(
        self,
        items: Iterable[ScheduleDefinition | Mapping[str, Any]],
        *,
        prune_prefix: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> SchedulesPut:
        """Put all of these in one transaction: made by `define`, or mappings of what `put` takes, `name` among it.

        With `prune_prefix`, schedules whose names begin with it and that are not among these are deleted, but never those that
        code declares. All mistakes are told at once, and nothing is put then. Returns which were added, changed, left as they
        were, and deleted.
        """
        return await self._database.run_steps(self._putting_many(items, prune_prefix, by), dry_run=dry_run)

    def put_many_sync(
        self,
        items: Iterable[ScheduleDefinition | Mapping[str, Any]],
        *,
        prune_prefix: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> SchedulesPut:
        return self._database.run_steps_sync(self._putting_many(items, prune_prefix, by), dry_run=dry_run)

    async def get(self, name: str) -> Schedule:
        """The schedule as it is now. Raises ScheduleNotFound."""
        return _found(name, await self._database.run(get_schedule(check_schedule_name(name), self._app)))

    def get_sync(self, name: str) -> Schedule:
        return _found(name, self._database.run_sync(get_schedule(check_schedule_name(name), self._app)))

    async def list(
        self, *, prefix: str | None = None, state: str | None = None, limit: int = 100, after: str | None = None
    ) -> Page[Schedule]:
        """Schedules by name: those with this prefix, and in this state (active, waiting, paused, broken or ended).

        `after` is the last name of the page before.
        """
        query = list_schedules(self._app, prefix=prefix, state=state, limit=limit, after=after)
        return await self._database.run(query)

    def list_sync(
        self, *, prefix: str | None = None, state: str | None = None, limit: int = 100, after: str | None = None
    ) -> Page[Schedule]:
        return self._database.run_sync(list_schedules(self._app, prefix=prefix, state=state, limit=limit, after=after))

    async def pause(self, name: str, *, by: str | None = None, dry_run: bool = False) -> Schedule:
        """Give out no more runs of it until it is resumed; what is queued or running goes on. Raises ScheduleNotFound."""
        return await self._database.run_steps(self._pausing(name, by), dry_run=dry_run)

    def pause_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> Schedule:
        return self._database.run_steps_sync(self._pausing(name, by), dry_run=dry_run)

    async def resume(self, name: str, *, by: str | None = None, dry_run: bool = False) -> Schedule:
        """End its pause. What it missed meanwhile is not made up for (see backfill). Raises ScheduleNotFound.

        One that is broken is tried anew, from its next slot. If it is still wrong it stays broken, and `problem` says why.
        """
        return await self._database.run_steps(self._resuming(name, by), dry_run=dry_run)

    def resume_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> Schedule:
        return self._database.run_steps_sync(self._resuming(name, by), dry_run=dry_run)

    async def trigger(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> Job[Any]:
        """Run it by hand, now or later, whatever its rules say, and return the job.

        `args` go over those of the schedule, name by name. One that was asked for before, with the same arguments, for at once
        or for the same `at`, and has not begun is returned in its place (`job.existing`); each `delay` is another moment, and
        so another run. Raises ScheduleNotFound, InvalidArguments.
        """
        return await self._database.run_steps(self._triggering(name, args, at, delay, by), dry_run=dry_run)

    def trigger_sync(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> Job[Any]:
        return self._database.run_steps_sync(self._triggering(name, args, at, delay, by), dry_run=dry_run)

    async def skip(self, name: str, *, by: str | None = None, dry_run: bool = False) -> datetime:
        """Leave out its next slot, and return that. Raises NotPossible where none is to come, ScheduleNotFound."""
        return await self._database.run_steps(self._skipping(name, by), dry_run=dry_run)

    def skip_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> datetime:
        return self._database.run_steps_sync(self._skipping(name, by), dry_run=dry_run)

    async def delete(self, name: str, *, by: str | None = None, dry_run: bool = False) -> Page[str]:
        """Delete it, and what waits of it; jobs that are queued or running go on, and its runs stay on record.

        One that code declares comes back when a process that does starts. Returns the names of those that follow it: they
        stay, and are idle until it is back or they are put anew. Raises ScheduleNotFound.
        """
        return await self._database.run_steps(self._deleting(name, by), dry_run=dry_run)

    def delete_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> Page[str]:
        return self._database.run_steps_sync(self._deleting(name, by), dry_run=dry_run)

    async def preview(self, schedule: str | ScheduleDefinition, n: int = 10) -> Page[datetime]:
        """Its next n slots, or as many as there are, without jitter: of the one of this name, or of one that `define` made."""
        return await self._database.run_steps(preview_slots(schedule, n))

    def preview_sync(self, schedule: str | ScheduleDefinition, n: int = 10) -> Page[datetime]:
        return self._database.run_steps_sync(preview_slots(schedule, n))

    async def timeline(
        self,
        back: Duration = "6h",
        ahead: Duration = "24h",
        *,
        most: int = 50,
        deadline: Duration | None = None,
    ) -> Timeline:
        """What became of the last runs and what is to come, on one axis: lanes of the `most` schedules that are due next, the next ten
        runs, what jumps of the clock do to them, and how many runs of all begin in each quarter of an hour.

        The load is of ten thousand schedules at most, counted for no longer than a fraction of a second; `counted` says of how many.
        """
        return await self._database.run_steps(look(draw_timeline(back, ahead, most=most), deadline))

    def timeline_sync(
        self,
        back: Duration = "6h",
        ahead: Duration = "24h",
        *,
        most: int = 50,
        deadline: Duration | None = None,
    ) -> Timeline:
        return self._database.run_steps_sync(look(draw_timeline(back, ahead, most=most), deadline))

    async def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        limit: int = 1000,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Run the slots from `start` to before `end` that have not run, as its overlap rule lets them; returns how many.

        Slots that are still to come are not among them, and those of a paused one wait. More than `limit` are refused. To take
        back what has not begun: clear. Raises NotPossible for a schedule without slots, ScheduleNotFound.
        """
        asked = Range(start, end, limit)
        while True:
            row = await self._database.run_steps(find_schedule(check_schedule_name(name), lock=False))
            slots = await asyncio.to_thread(asked.slots, row)
            put = await self._database.run_steps(self._filling(row, asked, slots, by), dry_run=dry_run)
            if put is not None:  # else someone has changed it meanwhile
                return put

    def backfill_sync(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        limit: int = 1000,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        asked = Range(start, end, limit)
        while True:
            row = self._database.run_steps_sync(find_schedule(check_schedule_name(name), lock=False))
            put = self._database.run_steps_sync(self._filling(row, asked, asked.slots(row), by), dry_run=dry_run)
            if put is not None:
                return put

    async def gaps(self, name: str, start: datetime, end: datetime, *, limit: int = 1000) -> Page[datetime]:
        """The slots from `start` to before `end` that have not run: those that a backfill would. Raises what it would."""
        asked = Range(start, end, limit)
        row = await self._database.run_steps(find_schedule(check_schedule_name(name), lock=False))
        return await self._database.run(find_gaps(row.name, await asyncio.to_thread(asked.slots, row)))

    def gaps_sync(self, name: str, start: datetime, end: datetime, *, limit: int = 1000) -> Page[datetime]:
        asked = Range(start, end, limit)
        row = self._database.run_steps_sync(find_schedule(check_schedule_name(name), lock=False))
        return self._database.run_sync(find_gaps(row.name, asked.slots(row)))

    async def clear(self, name: str, *, by: str | None = None, dry_run: bool = False) -> int:
        """Forget its runs that wait, for another to end or for the end of a pause: of a backfill, or since `overlap` queues them.

        What is queued or running goes on. Returns how many they were. Raises ScheduleNotFound.
        """
        return await self._database.run_steps(self._clearing(name, by), dry_run=dry_run)

    def clear_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> int:
        return self._database.run_steps_sync(self._clearing(name, by), dry_run=dry_run)

    async def history(self, name: str, *, limit: int = 100, after: int | None = None) -> Page[ScheduleRun]:
        """Its runs with their outcomes, the newest first; `after` is the last id of the page before."""
        return await self._database.run(list_runs(check_schedule_name(name), limit=limit, after=after))

    def history_sync(self, name: str, *, limit: int = 100, after: int | None = None) -> Page[ScheduleRun]:
        return self._database.run_sync(list_runs(check_schedule_name(name), limit=limit, after=after))

    def _putting(self, definition: ScheduleDefinition, by: str | None) -> Steps[Schedule]:
        yield from put_schedules([definition], schema=self._schema, codec=self._codec, actor=actor(by))
        return (yield from self._shown(definition.name))

    def _foreseen(self, putting: Steps[Schedule], n: int) -> Steps[SchedulePreview]:
        schedule = yield from putting
        return SchedulePreview(schedule, tuple((yield from preview_slots(schedule.name, n))))

    def _changing(
        self,
        name: str,
        task: Task[..., Any] | str | None,
        args: Mapping[str, Any] | None,
        reset: Page[str],
        by: str | None,
        options: Mapping[str, Any],
    ) -> Steps[Schedule]:
        yield from change_schedule(
            check_schedule_name(name),
            task,
            args,
            options,
            reset,
            tasks=self._tasks,
            schema=self._schema,
            codec=self._codec,
            actor=actor(by),
        )
        return (yield from self._shown(name))

    def _putting_many(self, items: Iterable[Any], prune_prefix: str | None, by: str | None) -> Steps[SchedulesPut]:
        if prune_prefix is not None:
            check_name("prune_prefix", prune_prefix, 200)
        definitions = gather(items, self.define)  # now, while no transaction waits for whoever makes them
        return put_schedules(
            definitions, schema=self._schema, codec=self._codec, actor=actor(by), prune_prefix=prune_prefix
        )

    def _pausing(self, name: str, by: str | None) -> Steps[Schedule]:
        yield from pause_schedule(check_schedule_name(name), self._schema, actor(by))
        return (yield from self._shown(name))

    def _resuming(self, name: str, by: str | None) -> Steps[Schedule]:
        yield from resume_schedule(check_schedule_name(name), self._schema, actor(by), self._check)
        return (yield from self._shown(name))

    def _check(self, row: StoredSchedule) -> None:
        if row.kind == "event" or row.dormant:
            return  # somebody brings along what is missing
        secret = bool(row.redact)
        check_arguments(row.args, row.version, task=self._tasks.get(row.task), codec=self._codec, secret=secret)

    def _skipping(self, name: str, by: str | None) -> Steps[datetime]:
        return skip_slot(check_schedule_name(name), self._schema, actor(by))

    def _deleting(self, name: str, by: str | None) -> Steps[Page[str]]:
        return delete_schedule(check_schedule_name(name), self._schema, actor(by))

    def _filling(self, row: StoredSchedule, asked: Range, slots: Page[datetime], by: str | None) -> Steps[int | None]:
        return put_backfill(row, asked, slots, schema=self._schema, actor=actor(by))

    def _clearing(self, name: str, by: str | None) -> Steps[int]:
        return clear_slots(check_schedule_name(name), self._schema, actor(by))

    def _triggering(
        self, name: str, args: Mapping[str, Any] | None, at: datetime | None, delay: Duration | None, by: str | None
    ) -> Steps[Job[Any]]:
        check_schedule_name(name)
        return trigger_schedule(
            name, args, at, delay, tasks=self._tasks, codec=self._codec, actor=actor(by), app=self._app
        )

    def _shown(self, name: str) -> Steps[Schedule]:
        schedule: Schedule | None = yield get_schedule(name, self._app)
        return _found(name, schedule)

    @property
    def _schema(self) -> str:
        return self._database.schema


def _found(name: str, schedule: Schedule | None) -> Schedule:
    if schedule is None:
        raise ScheduleNotFound(f"There is no schedule {name!r}: it was never put here, or it was deleted.")
    return schedule
