"""`app.dead`: dead letters, in both colours."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from collections.abc import Sequence as Page
from typing import Any, Unpack

from rota.clock import Duration
from rota.conversion.plain import ANYTHING, Mismatch, Room, TooLarge, brief, dumps, read_json
from rota.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from rota.jobs.arguments import LIMIT, path
from rota.jobs.codec import Codec, decoded, encoded
from rota.jobs.definition import Task
from rota.jobs.groups import MOST, Groups, GroupStep, acknowledge_group, check_canary, group_letters, retry_group
from rota.jobs.inspect import get_job
from rota.jobs.job import Job, JobId, Owner
from rota.jobs.letters import (
    Letter,
    LetterFilters,
    count_free_letters,
    count_letters,
    found_letter,
    get_letter,
    list_letters,
    read_filters,
)
from rota.jobs.resolve import Batch, acknowledge_batch, acknowledge_letter, retry_batch, retry_letter
from rota.postgres.audit import actor
from rota.postgres.look import look
from rota.postgres.notify import wake_channel
from rota.postgres.pool import Database
from rota.postgres.query import Steps

__all__ = ["Dead"]


class Dead:
    """Jobs that used up their attempts. They stay until they are retried or acknowledged.

    Filters choose the letters that fit all of them: `queue`, `task`, `tag`, `reason` (failed or lost), and `error`, a text in
    the type or the message of the last error. `by` is who is on record for a change; by default this process.
    """

    def __init__(
        self, database: Database, tasks: Mapping[str, Task[..., Any]], codec: Codec | None, app: Owner
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._codec = codec
        self._app = app

    async def get(self, id: JobId) -> Letter:
        """The letter, resolved or not. Raises JobNotFound."""
        return found_letter(id, await self._database.run(get_letter(id, self._app)))

    def get_sync(self, id: JobId) -> Letter:
        return found_letter(id, self._database.run_sync(get_letter(id, self._app)))

    async def list(
        self,
        *,
        resolved: bool | None = False,
        limit: int = 100,
        after: JobId | None = None,
        **filters: Unpack[LetterFilters],
    ) -> Page[Letter]:
        """Letters that fit, the newest first: open ones, with `resolved` those that are resolved, with None both.

        `after` is the last id of the page before.
        """
        query = list_letters(read_filters(filters), resolved=resolved, limit=limit, after=after, app=self._app)
        return await self._database.run(query)

    def list_sync(
        self,
        *,
        resolved: bool | None = False,
        limit: int = 100,
        after: JobId | None = None,
        **filters: Unpack[LetterFilters],
    ) -> Page[Letter]:
        query = list_letters(read_filters(filters), resolved=resolved, limit=limit, after=after, app=self._app)
        return self._database.run_sync(query)

    async def retry(
        self, id: JobId, args: Mapping[str, Any] | None = None, *, by: str | None = None, dry_run: bool = False
    ) -> Job[Any]:
        """Make a new job of the letter and return it; it starts with all its attempts. Letter and job name each other.

        `args` replaces those arguments, with values as they are stored, plain JSON; the others stay, and the checkpoint does
        not. Arguments that do not fit the task are refused with InvalidArguments. Raises NotPossible when the letter is
        resolved already, or a live job has its unique key; JobNotFound. The letter then stays as it is. With `dry_run` nothing
        is changed, and what is returned or raised is what would be.
        """
        return await self._database.run_steps(self._retrying(id, args, by), dry_run=dry_run)

    def retry_sync(
        self, id: JobId, args: Mapping[str, Any] | None = None, *, by: str | None = None, dry_run: bool = False
    ) -> Job[Any]:
        return self._database.run_steps_sync(self._retrying(id, args, by), dry_run=dry_run)

    async def acknowledge(self, id: JobId, note: str = "", *, by: str | None = None, dry_run: bool = False) -> Letter:
        """Resolve the letter without another try, and return it. Raises NotPossible if it is resolved, JobNotFound."""
        return await self._database.run_steps(acknowledge_letter(id, actor(by), note, self._app), dry_run=dry_run)

    def acknowledge_sync(self, id: JobId, note: str = "", *, by: str | None = None, dry_run: bool = False) -> Letter:
        return self._database.run_steps_sync(acknowledge_letter(id, actor(by), note, self._app), dry_run=dry_run)

    async def retry_many(
        self, *, by: str | None = None, dry_run: bool = False, **filters: Unpack[LetterFilters]
    ) -> int:
        """Make new jobs of all open letters that fit, the oldest first, and return how many; without filters, of all.

        A thousand per transaction: what fails midway has done those before. A letter whose unique key a live job has stays
        open. With `dry_run` nothing is changed, and the number of letters that would be retried is returned.
        """
        chosen = read_filters(filters)
        if dry_run:
            return await self._database.run(count_free_letters(chosen))
        batch, channel, who = Batch(), wake_channel(self._database.schema), actor(by)
        while not batch.finished:
            batch = await self._database.run_steps(retry_batch(chosen, batch, channel, who))
        return batch.resolved

    def retry_many_sync(self, *, by: str | None = None, dry_run: bool = False, **filters: Unpack[LetterFilters]) -> int:
        chosen = read_filters(filters)
        if dry_run:
            return self._database.run_sync(count_free_letters(chosen))
        batch, channel, who = Batch(), wake_channel(self._database.schema), actor(by)
        while not batch.finished:
            batch = self._database.run_steps_sync(retry_batch(chosen, batch, channel, who))
        return batch.resolved

    async def acknowledge_many(
        self, note: str = "", *, by: str | None = None, dry_run: bool = False, **filters: Unpack[LetterFilters]
    ) -> int:
        """Resolve all open letters that fit without another try, and return how many; otherwise like retry_many."""
        chosen = read_filters(filters)
        if dry_run:
            return await self._database.run(count_letters(chosen))
        batch, who = Batch(), actor(by)
        while not batch.finished:
            batch = await self._database.run_steps(acknowledge_batch(chosen, batch, who, note))
        return batch.resolved

    def acknowledge_many_sync(
        self, note: str = "", *, by: str | None = None, dry_run: bool = False, **filters: Unpack[LetterFilters]
    ) -> int:
        chosen = read_filters(filters)
        if dry_run:
            return self._database.run_sync(count_letters(chosen))
        batch, who = Batch(), actor(by)
        while not batch.finished:
            batch = self._database.run_steps_sync(acknowledge_batch(chosen, batch, who, note))
        return batch.resolved

    async def groups(
        self,
        *,
        queue: str | None = None,
        task: Task[..., Any] | str | None = None,
        most: int = MOST,
        deadline: Duration | None = None,
    ) -> Groups:
        """Open letters by what they died of: type, message without what differs each time, and the place in your code.

        The newest `most` letters are looked at. How those fare that were retried in the last week is told with each group.
        """
        return await self._database.run_steps(self._grouping(queue, task, most, deadline))

    def groups_sync(
        self,
        *,
        queue: str | None = None,
        task: Task[..., Any] | str | None = None,
        most: int = MOST,
        deadline: Duration | None = None,
    ) -> Groups:
        return self._database.run_steps_sync(self._grouping(queue, task, most, deadline))

    async def retry_group(
        self, group: str, *, canary: int | None = None, by: str | None = None, dry_run: bool = False
    ) -> Page[JobId]:
        """Make new jobs of the open letters of a group, the newest first, and return their ids.

        With `canary`, of so many of them only: how those fare is told by `groups`, and the rest may follow. A letter whose unique key
        a live job has stays open. A thousand letters are looked at per transaction. Raises NotPossible if no open letter is in the
        group. With `dry_run` nothing is changed; the ids are then of no job.
        """
        step, channel, who = GroupStep(), wake_channel(self._database.schema), actor(by)
        check_canary(canary)
        while not step.finished:
            step = await self._database.run_steps(retry_group(group, step, channel, who, canary), dry_run=dry_run)
        return step.jobs

    def retry_group_sync(
        self, group: str, *, canary: int | None = None, by: str | None = None, dry_run: bool = False
    ) -> Page[JobId]:
        step, channel, who = GroupStep(), wake_channel(self._database.schema), actor(by)
        check_canary(canary)
        while not step.finished:
            step = self._database.run_steps_sync(retry_group(group, step, channel, who, canary), dry_run=dry_run)
        return step.jobs

    async def acknowledge_group(
        self, group: str, note: str = "", *, by: str | None = None, dry_run: bool = False
    ) -> int:
        """Resolve all open letters of a group without another try, and return how many. Raises NotPossible if there is none."""
        step, who = GroupStep(), actor(by)
        while not step.finished:
            step = await self._database.run_steps(acknowledge_group(group, step, who, note), dry_run=dry_run)
        return step.resolved

    def acknowledge_group_sync(
        self, group: str, note: str = "", *, by: str | None = None, dry_run: bool = False
    ) -> int:
        step, who = GroupStep(), actor(by)
        while not step.finished:
            step = self._database.run_steps_sync(acknowledge_group(group, step, who, note), dry_run=dry_run)
        return step.resolved

    def _grouping(self, queue: Any, task: Any, most: int, deadline: Duration | None) -> Steps[Groups]:
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= 100_000:
            raise ConfigurationError(f"most cannot be {most!r}: it is how many letters are looked at, 1 to 100000.")
        filters = read_filters({"queue": queue, "task": task})
        return look(group_letters(filters, most=most), deadline)

    def _retrying(self, id: JobId, args: Mapping[str, Any] | None, by: str | None) -> Steps[Job[Any]]:
        if args is not None and not isinstance(args, Mapping):
            raise ConfigurationError(f"args cannot be {args!r}: it is a mapping of the arguments to replace.")
        edited = functools.partial(self._edited, args or {})
        new = yield from retry_letter(id, wake_channel(self._database.schema), actor(by), edited)
        job: Job[Any] = yield get_job(new, self._app)
        return job

    def _edited(self, args: Mapping[str, Any], letter: Letter) -> str | None:
        """The letter's arguments with these in place of its own, as they are stored. Raises InvalidArguments."""
        if not args:
            return None
        refused = f"Letter {letter.id} was not retried, and stays"
        task = self._tasks.get(letter.task)
        secret = task is not None and bool(task.options.redact)
        try:
            text = dumps(ANYTHING.encode({**decoded(self._codec, letter._stored), **args}, Room(LIMIT)))
        except Mismatch as mismatch:
            problem = "one of args is no plain JSON" if secret else f"{path('args', mismatch)} {mismatch.problem}"
            raise InvalidArguments(f"{refused}: {problem}. Give values as they are stored: plain JSON.") from None
        except TooLarge:
            raise PayloadTooLarge(f"{refused}: with these arguments it would be larger than {LIMIT:,} bytes.") from None
        # arguments of a version that is newer than the task here are for others to judge
        if task is not None and letter.version <= task.version:
            try:
                upgraded = task.upgraded(read_json(text), letter.version)
            except Exception as error:  # the user's upgrade function
                said = type(error).__name__ if secret else brief(error)
                raise InvalidArguments(
                    f"{refused}: upgrading the arguments from version {letter.version} failed with {said}."
                ) from (None if secret else error)
            task.signature.read(upgraded, refused, whole=letter._takes is None)
        return encoded(self._codec, text, refused, secret=secret)
