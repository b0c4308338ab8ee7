"""How new jobs come in: through a connection of ours, or as part of a transaction of the caller's, in both colours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from rota.errors import ConfigurationError, DatabaseUnavailable
from rota.jobs.chains import Plan, Put, put_plan
from rota.jobs.codec import Codec
from rota.jobs.copy import copy_all
from rota.jobs.enqueue import (
    are_plain,
    enqueue,
    enqueue_many,
    fit_together,
    is_plain,
    put_all,
    put_jobs,
    refuse_twins,
)
from rota.jobs.job import Job, NewJob, Owner, kinds
from rota.jobs.tracing import Tracing
from rota.postgres.foreign import foreign
from rota.postgres.notify import Throttle
from rota.postgres.pool import Database

__all__ = ["Intake", "check_new"]


class Intake:
    """Takes in new jobs. They are there when it returns; with `on`, when that connection's transaction commits."""

    def __init__(
        self,
        database: Database,
        jobs: Owner,
        codec: Codec | None,
        tracing: Callable[[], Tracing | None] = lambda: None,
    ) -> None:
        self._database = database
        self._schema = database.schema
        self._jobs = jobs
        self._codec = codec
        self._tracing = tracing
        self._throttle = Throttle()

    async def take(self, new: NewJob, on: Any) -> Job[Any]:
        refuse_open(new)
        if (tracing := self._tracing()) is None:
            return await self._take(new, on)
        with tracing.sending([new]) as sending:
            job = await self._take(new, on, sending.context)
            sending.sent([job])
            return job

    def take_sync(self, new: NewJob, on: Any) -> Job[Any]:
        refuse_open(new)
        if (tracing := self._tracing()) is None:
            return self._take_sync(new, on)
        with tracing.sending([new]) as sending:
            job = self._take_sync(new, on, sending.context)
            sending.sent([job])
            return job

    async def take_all(self, jobs: Sequence[NewJob], on: Any) -> list[Job[Any]]:
        """All of them in the order given, or after an error none."""
        if not jobs or (tracing := self._tracing()) is None:
            return await self._take_all(jobs, on)
        with tracing.sending(jobs) as sending:
            taken = await self._take_all(jobs, on, sending.context)
            sending.sent(taken)
            return taken

    def take_all_sync(self, jobs: Sequence[NewJob], on: Any) -> list[Job[Any]]:
        if not jobs or (tracing := self._tracing()) is None:
            return self._take_all_sync(jobs, on)
        with tracing.sending(jobs) as sending:
            taken = self._take_all_sync(jobs, on, sending.context)
            sending.sent(taken)
            return taken

    async def take_plan(self, plan: Plan, on: Any) -> Put:
        """All jobs of a chain, a group or a batch, or after an error none."""
        with self._sending(plan.jobs) as (trace, sent):
            steps = put_plan(plan, self._jobs, codec=self._codec, trace=trace)
            put = await (self._database.run_steps(steps) if on is None else foreign(on).run_steps(steps, self._schema))
            sent(put.jobs)
            return put

    def take_plan_sync(self, plan: Plan, on: Any) -> Put:
        with self._sending(plan.jobs) as (trace, sent):
            steps = put_plan(plan, self._jobs, codec=self._codec, trace=trace)
            put = (
                self._database.run_steps_sync(steps) if on is None else foreign(on).run_steps_sync(steps, self._schema)
            )
            sent(put.jobs)
            return put

    @contextlib.contextmanager
    def _sending(self, jobs: Sequence[NewJob]) -> Iterator[tuple[str | None, Callable[[Sequence[Job[Any]]], object]]]:
        """Who traces is told of these; gives the context they are sent in, and what is to be called with what was sent."""
        if not jobs or (tracing := self._tracing()) is None:
            yield None, lambda jobs: None
            return
        with tracing.sending(jobs) as sending:
            yield sending.context, sending.sent

    async def _take(self, new: NewJob, on: Any, trace: str | None = None) -> Job[Any]:
        if on is not None or not is_plain(new):
            return (await self._take_all(check_new([new]), on, trace))[0]
        wake = new.wake and self._throttle.admits(new.queue)
        return await self._database.run(
            enqueue(new, self._schema, self._jobs, wake=wake, codec=self._codec, trace=trace)
        )

    def _take_sync(self, new: NewJob, on: Any, trace: str | None = None) -> Job[Any]:
        if on is not None or not is_plain(new):
            return self._take_all_sync(check_new([new]), on, trace)[0]
        wake = new.wake and self._throttle.admits(new.queue)
        return self._database.run_sync(
            enqueue(new, self._schema, self._jobs, wake=wake, codec=self._codec, trace=trace)
        )

    async def _take_all(self, jobs: Sequence[NewJob], on: Any, trace: str | None = None) -> list[Job[Any]]:
        if not jobs:
            return []
        if on is not None and fit_together(jobs):
            return await foreign(on).run(put_jobs(jobs, self._jobs, codec=self._codec, trace=trace), self._schema)
        if on is not None:
            steps = put_all(jobs, self._jobs, call=None, codec=self._codec, trace=trace)
            return await foreign(on).run_steps(steps, self._schema)
        if are_plain(jobs):
            if fit_together(jobs):
                return await self._database.run(
                    enqueue_many(jobs, self._schema, self._jobs, codec=self._codec, trace=trace)
                )
            return await self._database.run_steps(
                copy_all(jobs, self._schema, self._jobs, codec=self._codec, trace=trace)
            )
        call = uuid4()
        for pause in _pauses(jobs):
            try:
                steps = put_all(jobs, self._jobs, call=call, codec=self._codec, trace=trace)
                return await self._database.run_steps(steps)
            except DatabaseUnavailable:
                if pause is None:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _take_all_sync(self, jobs: Sequence[NewJob], on: Any, trace: str | None = None) -> list[Job[Any]]:
        if not jobs:
            return []
        if on is not None and fit_together(jobs):
            return foreign(on).run_sync(put_jobs(jobs, self._jobs, codec=self._codec, trace=trace), self._schema)
        if on is not None:
            steps = put_all(jobs, self._jobs, call=None, codec=self._codec, trace=trace)
            return foreign(on).run_steps_sync(steps, self._schema)
        if are_plain(jobs):
            if fit_together(jobs):
                return self._database.run_sync(
                    enqueue_many(jobs, self._schema, self._jobs, codec=self._codec, trace=trace)
                )
            return self._database.run_steps_sync(
                copy_all(jobs, self._schema, self._jobs, codec=self._codec, trace=trace)
            )
        call = uuid4()
        for pause in _pauses(jobs):
            try:
                steps = put_all(jobs, self._jobs, call=call, codec=self._codec, trace=trace)
                return self._database.run_steps_sync(steps)
            except DatabaseUnavailable:
                if pause is None:
                    raise
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")


def check_new(new: Iterable[NewJob]) -> list[NewJob]:
    jobs = list(new)
    for place, job in enumerate(jobs):
        if not isinstance(job, NewJob):
            raise ConfigurationError(
                f"enqueue_many takes what task.bind(...) returns; item {place} is {job!r}. Write [task.bind(7), task.bind(8)]."
            )
    for kind in kinds(jobs):
        refuse_open(kind)
    refuse_twins(jobs)
    return jobs


def refuse_open(new: NewJob) -> None:
    """A call that lacks an argument is for a chain, where a job before it gives that."""
    if new.lacks is not None and new.source is not None:
        raise new.source.signature.missing([new.lacks])


def _pauses(jobs: Sequence[NewJob]) -> Sequence[float | None]:
    """How often, and after which pauses, to repeat a call whose reply was lost: never, unless that can do no harm."""
    return (0.05, 0.5, None) if all(kind.unique is not None for kind in kinds(jobs)) else (None,)
