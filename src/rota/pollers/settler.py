"""What becomes of polls that ended: rows are stamped, wait for another attempt, or are parked, and each is told of once.

An outcome that cannot be written is kept and comes again, as often as it takes: while PostgreSQL does not answer, while the
application has its row locked, and for a while when its own stamp is refused for what may pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import Facts, RowClaimLost, RowFailed, RowHindered, RowLocked, RowPolled
from rota.leases.control import Control
from rota.pollers.claim import ClaimedRow
from rota.pollers.definition import PollerDefinition
from rota.pollers.execute import FailedPoll, Outcome, Polled, SettledPoll
from rota.pollers.pieces import Pieces, may_pass, said
from rota.pollers.running import key_text, not_done
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Failed, Fate, Finish, fail
from rota.postgres.connection import is_about_data
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.service.points import reach

__all__ = ["Settler"]

T = TypeVar("T")

# For how long a row is held whose stamp alone PostgreSQL refuses for what may pass; then its poll has failed.
_HINDERED_SECONDS = 30.0


class Settler:
    """Settles the polls of one poller.

    `settled` is told what became of each, and `expect` in how many seconds a row is due again; None: the database knows.
    """

    def __init__(
        self,
        definition: PollerDefinition,
        finish: Finish,
        sessions: Sessions,
        *,
        control: Callable[[], Control],
        failed: Callable[[ClaimedRow, BaseException], FailedPoll],
        facts: Facts,
        settled: Callable[[Outcome, str], None],
        expect: Callable[[float | None], None],
    ) -> None:
        self._definition = definition
        self._finish = finish
        self._settling = sessions.settling
        self._stamping = sessions.stamping
        self._control = control
        self._failed = failed
        self._facts = facts
        self._settled = settled
        self._expect = expect
        # of outcomes that are not settled yet, by their id:
        self._asked: set[int] = set()  # whose writing was asked for without an answer
        self._turned: dict[int, FailedPoll] = {}  # the handler returned, and the row is not done all the same
        self._told: set[int] = set()
        self._told_locked: set[int] = set()
        self._pieces: Pieces[Outcome] = Pieces()

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Make them durable, and tell of each once, also when this is repeated since an answer did not come.

        Returns those that must wait.
        """
        reach("settle.before")
        fresh = [outcome for outcome in outcomes if id(outcome) not in self._told]
        for outcome in fresh:
            if isinstance(outcome, SettledPoll):
                self._tell(outcome, outcome.fate)
        polled = [each for each in fresh if isinstance(each, Polled) and id(each) not in self._turned]
        left: list[Outcome] = [*await self._settle_polled(polled)] if polled else []
        failed = [each for each in fresh if isinstance(each, FailedPoll) or id(each) in self._turned]
        left += await self._settle_failed(failed) if failed else []
        reach("settle.after")
        over = set(map(id, outcomes)) - set(map(id, left))
        self._told -= over
        self._told_locked -= over
        for each in over:
            self._turned.pop(each, None)
        return left

    async def _settle_polled(self, polled: Sequence[Polled]) -> list[Outcome]:
        """Stamp them. Returns those that must wait; those that turn out not to be done are put among those that failed."""
        left: list[Outcome] = []

        async def stamp(piece: Sequence[Outcome]) -> None:
            left.extend(await self._stamp(piece))  # type: ignore[arg-type]

        refused, untried = await self._pieces.write(polled, stamp)
        for outcome, error in refused:
            if may_pass(error) and (self._pieces.refused_for(outcome) or 0) < _HINDERED_SECONDS:
                self._tell_hindered(outcome, error)
                left.append(outcome)
            else:
                self._turned[id(outcome)] = self._unstorable(outcome, error)
        return left + untried

    async def _stamp(self, polled: Sequence[Polled]) -> list[Polled]:
        """Stamp these by one statement. Returns those that are locked."""
        query = self._finish.many([each.row for each in polled], [each.changed for each in polled])
        asked_before, fates = await self._ask(self._stamping, query, polled)
        left: list[Polled] = []
        for outcome, fate in zip(polled, fates, strict=True):
            if fate == "locked":
                left.append(outcome)
                if id(outcome) not in self._told_locked:
                    self._told_locked.add(id(outcome))
                    self._facts.emit(RowLocked(outcome.row.poller, outcome.row.key))
            elif fate in ("undone", "unstamped"):
                self._turned[id(outcome)] = self._failed(outcome.row, not_done(outcome.row, fate))._replace(
                    seconds=outcome.seconds
                )
            else:
                was_ours = fate == "lost" and id(outcome) in asked_before and self._still_us(outcome)
                self._tell(outcome, "done" if was_ours else fate)
        if isinstance(self._definition.interval, timedelta) and self._definition.adaptive is None:
            self._expect(self._definition.interval.total_seconds())
        elif self._definition.form != "state":
            self._expect(None)
        return left

    def _still_us(self, outcome: Outcome) -> bool:
        """While we are who we were, nobody but us ends our claim: one that is gone was ended by a write without an answer."""
        return outcome.row.member == self._control().member

    def _unstorable(self, outcome: Outcome, error: RotaError) -> FailedPoll:
        about = "done=... cannot be written" if is_about_data(error.__cause__) else "its stamp could not be written"
        failed = self._failed(
            outcome.row, RotaError(f"row {key_text(outcome.row.key)} was polled, and {about}: {said(error)}")
        )
        return failed._replace(seconds=outcome.seconds)

    async def _settle_failed(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write down that they failed. Returns those that must wait."""
        refused, untried = await self._pieces.write(outcomes, self._fail)
        for outcome, error in refused:
            if not may_pass(error):
                raise error
            self._tell_hindered(outcome, error)
        return [*(outcome for outcome, _ in refused), *untried]

    async def _fail(self, outcomes: Sequence[Outcome]) -> None:
        failed = [each if isinstance(each, FailedPoll) else self._turned[id(each)] for each in outcomes]
        query = fail(self._definition.name, [Failed(each.row, each.failure, each.pause) for each in failed])
        asked_before, ours = await self._ask(self._settling, query, outcomes)
        for outcome, each, held in zip(outcomes, failed, ours, strict=True):
            if held or (id(outcome) in asked_before and self._still_us(each)):
                self._tell_failed(outcome, each)
            elif each.unsure and self._still_us(each):
                self._tell(outcome, "done")
            else:
                self._tell(outcome, "lost")

    async def _ask(self, database: Database, query: Query[T], outcomes: Sequence[Outcome]) -> tuple[set[int], T]:
        """Run what writes these; says for which of them that was asked before without an answer."""
        ids = set(map(id, outcomes))
        asked_before = self._asked & ids
        self._asked |= ids
        try:
            answer = await database.run(query)
        except RotaError as error:
            if not isinstance(error, DatabaseUnavailable) or may_pass(error):
                self._asked -= ids - asked_before  # refused: it has written nothing
            raise
        self._asked -= ids
        return asked_before, answer

    def _tell_hindered(self, outcome: Outcome, error: RotaError) -> None:
        if self._pieces.refused_for(outcome) is None:
            self._facts.emit(RowHindered(outcome.row.poller, outcome.row.key, said(error)))

    def _tell_failed(self, outcome: Outcome, failed: FailedPoll) -> None:
        row = failed.row
        self._told.add(id(outcome))
        self._settled(failed, "failed")
        error = failed.failure.error or failed.failure.message
        self._facts.emit(RowFailed(row.poller, row.key, row.attempts + 1, failed.seconds, error, failed.pause))
        if failed.pause is not None:
            self._expect(failed.pause)

    def _tell(self, outcome: Outcome, fate: Fate) -> None:
        row = outcome.row
        self._told.add(id(outcome))
        self._settled(outcome, fate)
        if fate == "lost":
            self._facts.emit(RowClaimLost(row.poller, row.key, row.token))
        else:
            changed = not isinstance(outcome, FailedPoll) and outcome.changed
            self._facts.emit(RowPolled(row.poller, row.key, outcome.seconds, fate, changed))
