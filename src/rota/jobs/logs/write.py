"""Writing log lines down, those of all jobs of a process in one statement, beside the hot path.

Nothing is written for jobs that log nothing. Lines are not guarded by the token of their attempt: what a run did that lost its
claim is worth reading, under that attempt. They are guarded by the job: of one that was erased nothing is written any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Sequence
from time import monotonic

from rota.errors import DatabaseUnavailable
from rota.facts import DatabaseLost, Facts, LogLinesDropped
from rota.jobs.logs.notes import Notes, Parcel
from rota.jobs.logs.run import Run
from rota.postgres.arrays import numbers
from rota.postgres.pool import Database
from rota.postgres.query import Query, nothing, statement

__all__ = ["LogWriter", "append_lines", "forget_lines"]

# How long lines wait for others: who looks on sees them within a second, and a busy process writes two statements in it.
_GATHER_SECONDS = 0.5
# After a failure the next try comes this much later, twice as much each time.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
# What the last lines of a worker that stops may take.
_LAST_SECONDS = 2.0
# How often it is told that lines found no room.
_TELL_SECONDS = 60.0

APPEND = statement(
    "append_log_lines",
    """
    insert into {schema}.logs (job_id, token, logged_at, attempt, number, level, logger, message, retention)
    select
        run.job_id, run.token, {schema}.now() - line.age * interval '1 second', run.attempt, line.number,
        line.level, line.logger, line.message, job.retention
    from unnest(%(jobs)s::bigint[], %(tokens)s::bigint[], %(attempts)s::integer[]) with ordinality
        as run(job_id, token, attempt, place)
    -- One that was erased is nowhere. Who erases has locked the table against us, so this is seen as it is.
    cross join lateral (
        select live.retention from {schema}.jobs as live where live.id = run.job_id
        union all
        select done.retention from {schema}.history as done where done.id = run.job_id
        union all
        select letter.retention from {schema}.dead as letter where letter.id = run.job_id
        limit 1
    ) as job
    join unnest(
        %(runs)s::integer[], %(numbers)s::integer[], %(ages)s::float8[], %(levels)s::smallint[], %(loggers)s::text[],
        %(messages)s::text[]
    ) with ordinality as line(run, number, age, level, logger, message, place) on line.run = run.place
    where not %(repeated)s::boolean
       or line.number > coalesce(
           (select max(known.number) from {schema}.logs as known where known.job_id = run.job_id and known.token = run.token), 0
       )
    -- ids are given in this order
    order by line.place
    """,
)


def append_lines(parcels: Sequence[Parcel], now: float, *, repeated: bool = False, plain: bool = False) -> Query[None]:
    """Write the lines of these runs, whose numbers go up in each; `now` is by the clock that they were stamped by.

    `repeated` leaves out what is there already, of a statement whose reply was lost. `plain` is for a database whose encoding does
    not have all letters: those that are not in ASCII are written as escapes.
    """
    lines = [(place, line) for place, parcel in enumerate(parcels, 1) for line in parcel.lines]
    claims = [parcel.run.claim for parcel in parcels]

    def text(given: str) -> str:
        return given.encode("ascii", "backslashreplace").decode() if plain else given

    return APPEND.query(
        {
            "jobs": numbers(claim.id for claim in claims),
            "tokens": numbers(claim.token for claim in claims),
            "attempts": numbers(claim.attempt for claim in claims),
            "runs": numbers(place for place, _ in lines),
            "numbers": numbers(line.number for _, line in lines),
            "ages": numbers(max(0.0, now - line.at) for _, line in lines),
            "levels": numbers(min(line.level, 32767) for _, line in lines),
            "loggers": [text(line.logger) for _, line in lines],
            "messages": [text(line.text) for _, line in lines],
            "repeated": repeated,
        },
        read=nothing,
    )


FORGET = statement(
    "forget_log_lines",
    """
    delete from {schema}.logs as line
    using unnest(%(jobs)s::bigint[], %(tokens)s::bigint[], %(above)s::integer[], %(below)s::integer[])
        as run(job_id, token, above, below)
    where line.job_id = run.job_id
      and line.token = run.token
      and line.number > run.above
      and line.number < run.below
    """,
)


def forget_lines(unwanted: Sequence[tuple[Run, tuple[int, int]]]) -> Query[None]:
    """Delete the lines of each run whose numbers lie between the two."""
    return FORGET.query(
        {
            "jobs": numbers(run.claim.id for run, _ in unwanted),
            "tokens": numbers(run.claim.token for run, _ in unwanted),
            "above": numbers(above for _, (above, _) in unwanted),
            "below": numbers(below for _, (_, below) in unwanted),
        },
        read=nothing,
    )


class LogWriter:
    """Writes what is noted, from `start` to `close`. Belongs to the event loop of its worker, as `woken` does."""

    def __init__(self, database: Database, facts: Facts) -> None:
        self._database = database
        self._facts = facts
        self._closing = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._notes: Notes | None = None
        self._unsure = False  # whether the last lines may be written although we were not told so
        self._pause = 0.0
        self._told_at: float | None = None
        self._problem = ""
        #: set when there is something to write
        self.woken = asyncio.Event()

    def start(self, notes: Notes) -> None:
        self._notes = notes
        # in a context of its own: what happens while lines are written belongs to no job, so it is never noted itself
        self._writing = asyncio.get_running_loop().create_task(self._run(notes), context=contextvars.Context())

    async def close(self) -> None:
        """Write what there is, if that takes no longer than a moment."""
        if self._writing is None or self._notes is None:
            return
        self._closing.set()
        self.woken.set()
        await asyncio.wait({self._writing}, timeout=_LAST_SECONDS)
        self._writing.cancel()
        await asyncio.wait({self._writing})
        self._notes.close()

    async def _run(self, notes: Notes) -> None:
        while True:
            await self.woken.wait()
            await self._rest(max(_GATHER_SECONDS, self._pause))
            self.woken.clear()
            await self._write_due(notes)
            if notes.waiting:
                self.woken.set()
            if self._closing.is_set() and (self._pause or not notes.waiting):
                return

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _write_due(self, notes: Notes) -> None:
        self._tell_dropped(notes)
        parcels = notes.due(all_of_them=self._closing.is_set())
        if not parcels:
            return
        try:
            await self._write(notes, parcels)
            self._pause, self._problem = 0.0, ""
        except DatabaseUnavailable as error:
            self._unsure = True
            self._fail(str(error), tell=False)  # the claim says so already
        except Exception as error:
            # rights are missing, the table is gone, text that cannot be stored however it is put: no reason to hold it for ever
            notes.wrote(parcels)
            self._fail(str(error), tell=True)

    async def _write(self, notes: Notes, parcels: list[Parcel]) -> None:
        try:
            await self._database.run(append_lines(parcels, monotonic(), repeated=self._unsure))
        except DatabaseUnavailable:
            raise
        except Exception:
            await self._database.run(append_lines(parcels, monotonic(), repeated=self._unsure, plain=True))
        self._unsure = False
        notes.wrote(parcels)
        if unwanted := notes.unwanted(parcels):
            await self._database.run(forget_lines(unwanted))
            notes.forgot(unwanted)

    def _fail(self, problem: str, *, tell: bool) -> None:
        self._pause = min(_LONGEST_PAUSE, self._pause * 2 or _SHORTEST_PAUSE)
        if tell and problem != self._problem:
            self._problem = problem
            self._facts.emit(DatabaseLost("jobs: keep logs", problem))

    def _tell_dropped(self, notes: Notes) -> None:
        if self._told_at is not None and monotonic() < self._told_at + _TELL_SECONDS:
            return
        if dropped := notes.take_dropped():
            self._told_at = monotonic()
            self._facts.emit(LogLinesDropped(dropped))
