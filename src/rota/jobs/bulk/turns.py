"""A worker's part in bulks: it takes turns while there are some to take, and leaves them to whoever else is at it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import psycopg

from rota.errors import RotaError
from rota.facts import BulkEnded, Facts
from rota.jobs.bulk.turn import BATCH, At, give_up_job, is_any_due, next_due, take_turn, tell_trouble
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
_PAUSE = 1.0
_TRIES = 3  # of one job that is refused or locked, before it is passed over
_FEWER = 8  # times, when a turn has failed


class BulkTurns:
    """The turns of one worker, which has one set of them."""

    def __init__(self, database: Database, facts: Facts, rests: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._facts = facts
        self._rests = rests
        self._most = BATCH
        self._tries = 0
        self._patience = 0.0

    async def hesitate(self) -> None:
        await asyncio.sleep(random.uniform(0, _HESITATION))

    def wanted(self) -> Query[bool]:
        """Whether there is a bulk that nobody is at. Who has just started asks for any that is due: it may replace whoever was."""
        patience, self._patience = self._patience, _PATIENCE
        return is_any_due(patience)

    async def take(self, *, patient: bool = True) -> None:
        """Take turns until no bulk is open, another worker is at them, or this one rests; unless `patient`, do not wait for those that
        are paced.

        A connection of its own, for as long as it takes: neither claims nor the user's callers wait behind it.
        """
        session = Session(self._database.connector("bulk", settings=_PLANNING), self._database.schema)
        try:
            while not self._rests():
                if await self._turn(session):
                    continue
                pause = await session.run(next_due())
                # due, and yet not to be had: someone else is at it
                if pause is None or pause <= 0 or not patient:
                    return
                await asyncio.sleep(min(pause, _LONGEST_WAIT))
        finally:
            await session.close()

    async def _turn(self, session: Session) -> bool:
        """Take one; False if there was none to take."""
        at = At()
        schema = self._database.schema
        steps = take_turn(at, self._most, wake=wake_channel(schema), cancel=cancel_channel(schema))
        try:
            turn = await session.run_steps(steps, "take a turn with a bulk")
        except RotaError as error:
            if not at.bulk:
                raise
            await self._failed(session, at, error)
            return True
        reach("bulk.committed")
        self._tries = 0
        self._most = min(BATCH, self._most * 2)
        if turn is not None and turn.ended:
            self._facts.emit(
                BulkEnded(turn.bulk, turn.action, turn.state, done=turn.done, skipped=turn.skipped, failed=turn.failed)
            )
        return turn is not None

    async def _failed(self, session: Session, at: At, error: RotaError) -> None:
        """Take fewer at once, down to one: that one is passed over if it is the one to blame."""
        cause = error.__cause__
        state = (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""
        is_locked, is_refused = state == "55P03", is_about_data(cause) or state.startswith("P0")
        if not is_locked and not is_refused:
            # nothing is wrong with any job: the database is away or busy, or rights are missing
            with contextlib.suppress(RotaError):
                await session.run(tell_trouble(at, str(error)))
            raise error
        if self._most > 1:
            self._most = max(1, self._most // _FEWER)
            return
        self._tries += 1
        if self._tries >= _TRIES:
            self._tries = 0
            await session.run(give_up_job(at, "locked" if is_locked else "refused", str(error)))
            return
        await asyncio.sleep(_PAUSE)
