"""A worker's part in bulks: it takes turns while there are some to take, and leaves them to whoever else is at it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import psycopg

from rota.errors import RotaError
from rota.facts import BulkEnded, Facts
from rota.jobs.bulk.turn import BATCH, At, give_up_job, is_any_due, next_due, put_off_turn, take_turn, tell_trouble
from rota.postgres.connection import is_about_data
from rota.postgres.notify import cancel_channel, wake_channel
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.service.points import reach

__all__ = ["BulkTurns"]

# By its indexes, whatever was counted when the tables were empty; a turn looks at a few hundred rows by their ids.
_PLANNING = {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off", "jit": "off"}
# All workers hear that there is something to do. One that comes a little later finds that another is at it.
_HESITATION = 0.2
_PATIENCE = 2.0
_LONGEST_WAIT = 1.0  # a bulk that is begun meanwhile is begun with by then
_PAUSE = 1.0  # before a bulk has its turn again whose job is refused or locked: the others go on
_TRIES = 3  # of one job that is refused or locked, before it is passed over
_FEWER = 8  # times, when a turn has failed


class BulkTurns:
    """The turns of one worker, which has one set of them."""

    def __init__(self, database: Database, facts: Facts, rests: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._facts = facts
        self._rests = rests
        # by bulk: how many to take at once since a turn failed; and, if that was the last, how often one alone was tried
        self._fewer: dict[int, int] = {}
        self._tries: dict[int, int] = {}
        self._patience = 0.0

    async def hesitate(self) -> None:
        await asyncio.sleep(random.uniform(0, _HESITATION))

    def wanted(self) -> Query[bool]:
        """Whether there is a bulk that nobody is at. Who has just started asks for any that is due: it may replace whoever was."""
        patience, self._patience = self._patience, _PATIENCE
        return is_any_due(patience)

    async def take(self, *, patient: bool = True) -> None:
        """Take turns until no bulk is open, another worker is at them, or this one rests; unless `patient`, do not wait for those that
        are paced, only for those whose turn has failed.

        A connection of its own, for as long as it takes: neither claims nor the user's callers wait behind it.
        """
        session = Session(self._database.connector("bulk", settings=_PLANNING), self._database.schema)
        try:
            while not self._rests():
                if await self._turn(session):
                    continue
                pause = await session.run(next_due(None if patient else list(self._tries)))
                # due, and yet not to be had: someone else is at it, unless it has become due just now
                if pause is None or (pause <= 0 and not await self._turn(session)):
                    return
                await asyncio.sleep(min(pause, _LONGEST_WAIT))
        finally:
            await session.close()

    async def _turn(self, session: Session) -> bool:
        """Take one; False if there was none to take."""
        at = At()
        schema = self._database.schema
        steps = take_turn(at, self._fewer, wake=wake_channel(schema), cancel=cancel_channel(schema))
        try:
            turn = await session.run_steps(steps, "take a turn with a bulk")
        except RotaError as error:
            if not at.bulk:
                raise
            await self._failed(session, at, error)
            return True
        reach("bulk.committed")
        if turn is None:
            return False
        self._tries.pop(turn.bulk, None)
        most = 2 * self._fewer.pop(turn.bulk, BATCH)
        if turn.ended:
            self._facts.emit(
                BulkEnded(turn.bulk, turn.action, turn.state, done=turn.done, skipped=turn.skipped, failed=turn.failed)
            )
        elif most < BATCH:
            self._fewer[turn.bulk] = most
        return True

    async def _failed(self, session: Session, at: At, error: RotaError) -> None:
        """Take fewer at once, down to one: that one is passed over if it is the one to blame. Other bulks go on meanwhile."""
        cause = error.__cause__
        state = (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""
        is_locked, is_refused = state == "55P03", is_about_data(cause) or state.startswith("P0")
        if not is_locked and not is_refused:
            # nothing is wrong with any job: the database is away or busy, or rights are missing
            with contextlib.suppress(RotaError):
                await session.run(tell_trouble(at, str(error)))
            raise error
        most = self._fewer.get(at.bulk, BATCH)
        self._fewer[at.bulk] = max(1, most // _FEWER)
        self._tries[at.bulk] = self._tries.get(at.bulk, 0) + (most == 1)
        if self._tries[at.bulk] >= _TRIES:
            del self._tries[at.bulk]
            await session.run(give_up_job(at, "locked" if is_locked else "refused", str(error)))
        elif is_locked or most == 1:
            await session.run(put_off_turn(at, _PAUSE))
