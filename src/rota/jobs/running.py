"""A job as its body sees it: what it is, what it may report, and how it commits its work together with its success.

Everything a body writes through here carries the token of its attempt. When the claim has ended, the write changes nothing
and raises ClaimLost: whoever has the job now decides.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from rota.errors import ClaimLost, InvalidArguments, RotaError
from rota.jobs.activate import activate_schedule
from rota.jobs.claim import ClaimedJob
from rota.jobs.codec import Codec, decoded, encoded
from rota.jobs.job import JobId
from rota.jobs.report import report_progress, save_checkpoint
from rota.jobs.settle import find_settled, succeed_one
from rota.postgres.block import Block
from rota.postgres.pool import Database
from rota.postgres.query import Query

__all__ = ["Desk", "Held", "RunningJob", "Stopped", "Transaction", "current_job", "running"]


class Stopped(BaseException):
    """Ends an attempt at a safe point, because someone wants it to stop. Not an error, so no `except Exception` holds it."""


class Payloads(Protocol):
    """How a task's values become JSON."""

    def encode_result(self, value: Any) -> str | None: ...

    def encode_checkpoint(self, value: Any) -> str | None: ...


class Noting(Protocol):
    """Who keeps what bodies log."""

    def take(self, held: Held, record: logging.LogRecord) -> None: ...


class Desk:
    """What all attempts of one worker share: the database they report to, and how payloads are stored.

    Transactions of bodies have connections of their own: they hold them for as long as they please, and a body that has one
    must not wait for another to report through.
    """

    def __init__(
        self,
        database: Database,
        codec: Codec | None,
        stopping: Callable[[], bool],
        *,
        transactions: Database | None = None,
        notes: Noting | None = None,
    ) -> None:
        self.database = database
        self.notes = notes
        self.transactions = transactions or database
        self.codec = codec
        self.stopping = stopping


class Held:
    """An attempt as whoever runs it keeps it. Its body sees a RunningJob, which has none of this."""

    # `log` is not there until something is logged
    __slots__ = ("_job", "claim", "desk", "log", "payloads", "settled", "started", "task", "told")

    log: Any

    def __init__(self, claim: ClaimedJob, payloads: Payloads, desk: Desk | None) -> None:
        self.claim = claim
        self.payloads = payloads
        self.desk = desk
        self.settled = False  # whether a transaction has committed its success
        self.told: str | None = None  # why this attempt alone should end: cancelled, or timed out
        self.task: asyncio.Task[Any] | None = None  # in which it runs
        self._job: RunningJob | None = None
        self.started = time.perf_counter()

    def tell(self, why: str) -> None:
        self.told = self.told or why

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def job(self) -> RunningJob:
        """What its body sees of it; most never look."""
        if self._job is None:
            self._job = RunningJob(self)
        return self._job


class RunningJob:
    """The job whose body is running here."""

    __slots__ = ("_desk", "_held", "_saved")

    def __init__(self, held: Held) -> None:
        self._held = held
        self._desk = held.desk
        self._saved: Any = _UNREAD

    @property
    def id(self) -> JobId:
        return self._held.claim.id

    @property
    def task(self) -> str:
        return self._held.claim.task

    @property
    def queue(self) -> str:
        return self._held.claim.queue

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as they are stored: plain JSON. Raises InvalidArguments for what cannot be read."""
        arguments: dict[str, Any] = decoded(self._desk.codec if self._desk else None, self._held.claim.args)
        return arguments

    @property
    def attempt(self) -> int:
        """1 for the first; grows with every attempt, lost ones included."""
        return self._held.claim.attempt

    @property
    def version(self) -> int:
        """The version of the task that enqueued it."""
        return self._held.claim.version

    @property
    def schedule(self) -> str | None:
        """The name of the schedule whose run this is, if it is one's."""
        return self._held.claim.schedule

    @property
    def slot_at(self) -> datetime | None:
        """The moment that this run stands for, in UTC, however late it began; None if no schedule gave it out."""
        slot_at = self._held.claim.slot_at
        # in UTC also behind a pooler, whose session has the time zone of the server: people take the day from it
        return None if slot_at is None else slot_at.astimezone(UTC)

    @property
    def token(self) -> int:
        """Changes with every claim; what this attempt writes is valid only while it holds this."""
        return self._held.claim.token

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this job: hand it to a service that forgets repeats."""
        return f"{self._desk.database.schema if self._desk else 'inline'}:{self.id}"

    @property
    def stopping(self) -> bool:
        """Whether this attempt should come to an end soon: its worker stops, it was cancelled, or its time is up."""
        return self._held.told is not None or (self._desk is not None and self._desk.stopping())

    @property
    def saved(self) -> Any:
        """What the last checkpoint stored, in this attempt or one before; None when there is none."""
        if self._saved is _UNREAD:
            stored = self._held.claim.saved
            codec = self._desk.codec if self._desk else None
            self._saved = None if stored is None else decoded(codec, stored)
        return self._saved

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Show how far the attempt is, from 0 to 1, and what it does. Raises ClaimLost."""
        query = report_progress(self.id, self.token, *_reported(fraction, note))
        if self._desk is not None:
            self._still_ours(await self._desk.database.run(query))

    def progress_sync(self, fraction: float, note: str | None = None) -> None:
        query = report_progress(self.id, self.token, *_reported(fraction, note))
        if self._desk is not None:
            self._still_ours(self._desk.database.run_sync(query))

    async def checkpoint(self, value: Any) -> None:
        """Store where the next attempt should begin. Raises ClaimLost.

        It is also the safe point: while the worker stops, the attempt ends here, is handed back free of charge, and another
        worker resumes from `saved`.
        """
        query = self._checkpoint(value)
        if self._desk is not None:
            self._still_ours(await self._desk.database.run(query))
        self._checkpointed(value)

    def checkpoint_sync(self, value: Any) -> None:
        query = self._checkpoint(value)
        if self._desk is not None:
            self._still_ours(self._desk.database.run_sync(query))
        self._checkpointed(value)

    async def activate(self, name: str, args: Mapping[str, Any] | None = None) -> bool:
        """Run a dormant schedule that follows this job's, with `args`, plain JSON, over its own arguments.

        False, and nothing happens, when a run of it is under way or waits, when it is paused, has had its runs or is not in
        its time; and where the job runs inline.
        Raises ScheduleNotFound, NotPossible when it is not dormant or does not follow this schedule, ClaimLost.
        """
        if self._desk is None:
            return False
        steps = activate_schedule(name, args, job=self.id, token=self.token, codec=self._desk.codec)
        return self._activated(await self._desk.database.run_steps(steps))

    def activate_sync(self, name: str, args: Mapping[str, Any] | None = None) -> bool:
        if self._desk is None:
            return False
        steps = activate_schedule(name, args, job=self.id, token=self.token, codec=self._desk.codec)
        return self._activated(self._desk.database.run_steps_sync(steps))

    def _activated(self, came: bool | None) -> bool:
        self._still_ours(came is not None)
        return bool(came)

    def transaction(self, on: Any = None) -> Transaction:
        """Work that is committed together with the job's success, or not at all: exactly once in this database.

        `with` and `async with` give a Transaction with a psycopg connection, or with the session or connection of yours that
        you pass. When the block ends, your writes, `tx.result` and the success are committed; if the claim has ended, nothing
        is, and ClaimLost is raised. What the body raises afterwards is reported and changes nothing.
        """
        return Transaction(self, on)

    def _checkpoint(self, value: Any) -> Query[bool]:
        if self._held.settled:
            raise RotaError(f"Job {self.id} has succeeded already, in its transaction: there is nothing to resume.")
        stored = self._held.payloads.encode_checkpoint(value)
        codec = self._desk.codec if self._desk else None
        if stored is not None:
            stored = encoded(codec, stored, f"The checkpoint of task {self.task!r} was not stored")
        return save_checkpoint(self.id, self.token, stored)

    def _checkpointed(self, value: Any) -> None:
        self._saved = value
        if self.stopping:
            raise Stopped

    def _still_ours(self, held: bool) -> None:
        if not held:
            raise ClaimLost(
                f"Attempt {self.attempt} of job {self.id} ({self.task}) no longer holds its claim: it was taken over, cancelled or "
                "settled meanwhile. What this attempt writes changes nothing; let it end."
            )

    def __repr__(self) -> str:
        return f"RunningJob(id={self.id}, task={self.task!r}, attempt={self.attempt})"


_UNREAD = object()


class Transaction(Block):
    """The block of `job.transaction()`. `connection` is what to write through, `result` what the job shall have returned."""

    def __init__(self, job: RunningJob, on: Any) -> None:
        if job._held.settled:
            raise RotaError(f"Job {job.id} has succeeded already, in an earlier transaction of this attempt.")
        if job._desk is None:
            raise RotaError(
                "job.transaction() needs a database, and this job runs inline, without one. Test it with a worker: see rota_app."
            )
        super().__init__(job._desk.transactions, on)
        self._job = job
        self._desk = job._desk
        self.result: Any = None

    async def _settle(self) -> None:
        self._job._still_ours(await self._own.run(self._success(), self._desk.database.schema))

    async def _commit(self) -> None:
        try:
            await self._own.commit()
        except Exception:
            # the reply to COMMIT may have been lost: our token in history tells
            if not await self._was_committed():
                raise
        self._job._held.settled = True

    async def _was_committed(self) -> bool:
        database, query = self._desk.database, find_settled([self._job._held.claim])
        settled = await database.run(query) if self._own.is_async else database.run_sync(query)
        return bool(settled)

    def _success(self) -> Query[bool]:
        job = self._job
        result = job._held.payloads.encode_result(self.result)
        if result is not None:
            result = encoded(self._desk.codec, result, f"The result of task {job.task!r} was not stored")
        return succeed_one(job.id, job.token, result, job._held.seconds)


def _reported(fraction: float, note: str | None) -> tuple[float, str | None]:
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidArguments(f"progress({fraction!r}) says nothing: it is a number from 0 to 1.")
    return float(fraction), None if note is None else str(note).replace("\0", "\\0")[:500]


running: contextvars.ContextVar[Held] = contextvars.ContextVar("rota_running_job")


def current_job() -> RunningJob:
    """The job this code runs for. Raises RotaError outside of a task's body."""
    try:
        return running.get().job
    except LookupError:
        raise RotaError(
            "There is no current job here: current_job() works inside the body of a task while a worker runs it "
            f"(this is thread {threading.current_thread().name!r})."
        ) from None
