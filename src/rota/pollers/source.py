"""Where a poller's work comes from and where its outcomes go.

While rows are due they are taken one batch after the other; when a look finds none, the next comes when the next row will be due
as far as that is known, after a pause that grows while there is nothing, or when someone says that there is something new.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import Facts, PollerHindered, RowClaimLost, RowFailed, RowLocked, RowPolled, RowsClaimed
from rota.leases.control import Control
from rota.pollers.claim import Claim, ClaimedRow, Claims, new_token
from rota.pollers.due import Plan
from rota.pollers.execute import FailedPoll, Outcome, Polled, SettledPoll
from rota.pollers.running import NotDone, key_text, undone
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Failed, Fate, Finish, fail, hand_back, release_token
from rota.postgres.connection import is_about_data
from rota.postgres.notify import poll_channel

__all__ = ["PollSource"]

# The first pause after a look that found nothing; each one after it is twice as long, up to the poller's `idle`.
_FIRST_PAUSE = 0.25
# What a row that went down with its process may do to the next: for so long it is the only one of its kind.
_PROBATION_SECONDS = 1.0
# A look that PostgreSQL refuses is repeated, ever less often.
_LONGEST_HINDRANCE = 60.0


class PollSource:
    """The due rows of one poller, for `service.consume` or for one round."""

    def __init__(
        self,
        plan: Plan,
        finish: Finish,
        sessions: Sessions,
        *,
        control: Callable[[], Control],
        failed: Callable[[ClaimedRow, BaseException], FailedPoll],
        facts: Facts,
        settled: Callable[[Outcome, str], None] = lambda outcome, fate: None,
    ) -> None:
        self._settled = settled
        self._definition = plan.definition
        self._claims = Claims(plan)
        self._finish = finish
        self._looking = sessions.looking
        self._settling = sessions.settling
        self._control = control
        self._failed = failed
        self._facts = facts
        self._channel = poll_channel(sessions.looking.schema)
        self._owed: list[tuple[UUID, int]] = []  # claims whose answer never came
        self._repeats: set[int] = set()  # outcomes whose writing was asked for without an answer
        self._told_locked: set[int] = set()
        self._suspects = True
        self._apart: ClaimedRow | None = None
        self._apart_until = 0.0
        self._more = False
        self._pause = 0.0
        self._hindrance = 0.0
        self._look_at = 0.0
        self._woken = asyncio.Event()
        self._sooner = asyncio.Event()
        self._looks_begun = 0
        self._last_empty_look = 0
        self._empty_look = asyncio.Event()

    def wake(self) -> None:
        """Look now: something may be due, or may have been given back."""
        self._suspects = True
        self._woken.set()
        self._sooner.set()

    def may_start(self) -> bool:
        return self._control().may_act

    async def claim(self, limit: int) -> Sequence[ClaimedRow]:
        control = self._control()
        if not control.may_act:
            return []
        self._woken.clear()
        self._looks_begun += 1
        look = self._looks_begun
        await self._pay_back()
        try:
            rows = await self._suspect(control.member) or await self._due(
                min(limit, self._definition.batch), control.member
            )
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            self._hindered(error)
            return []
        self._hindrance = 0.0
        if not control.may_act or any(row.member != control.member for row in rows):
            return []  # we are someone else by now: those who ended us take care of it
        if rows:
            self._pause = 0.0
            self._facts.emit(RowsClaimed(self._definition.name, len(rows)))
        elif not self._more:
            self._last_empty_look = look
            self._empty_look.set()
        return rows

    async def wait_for_more(self) -> None:
        """Return when a look may find something."""
        if self._more or self._woken.is_set():
            return
        if not self._control().may_act:
            # the control thread is about to be back; nobody wakes us for that
            await asyncio.sleep(0.05)
            return
        if self._hindrance:
            await self._rest(self._hindrance)
            return
        self._pause = min(self._definition.idle, self._pause * 2 or _FIRST_PAUSE)
        next_in = await self._next_in()
        await self._rest(self._pause * random.uniform(0.8, 1.0) if next_in is None else min(self._pause, next_in))

    async def found_nothing(self) -> None:
        """Return after a look that begins from now on and finds nothing."""
        begun = self._looks_begun
        self.wake()
        while self._last_empty_look <= begun:
            self._empty_look.clear()
            await self._empty_look.wait()

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        left: list[Outcome] = []
        failed = [outcome for outcome in outcomes if isinstance(outcome, FailedPoll)]
        polled = [outcome for outcome in outcomes if isinstance(outcome, Polled)]
        for outcome in outcomes:
            if isinstance(outcome, SettledPoll):
                self._tell(outcome, outcome.fate, changed=False)
        if polled:
            left += await self._settle_polled(polled, failed)
        if failed:
            await self._settle_failed(failed)
        self._over(outcomes, left)
        return left

    async def hand_back(self, items: Sequence[ClaimedRow], begun: Sequence[ClaimedRow] = ()) -> Sequence[ClaimedRow]:
        await self._pay_back()
        rows = [*items, *begun]
        if rows:
            await self._settling.run(hand_back(self._definition.name, rows, self._channel))
        if self._apart in rows:
            self._apart = None
        return []

    async def _due(self, limit: int, member: UUID) -> list[ClaimedRow]:
        token = new_token()
        most = self._definition.limit
        self._owed.append((member, token))  # until its answer is here
        if most is None:
            claim: Claim = await self._looking.run(self._claims.due(limit=limit, token=token, member=member))
        else:
            claim = await self._looking.run_steps(
                self._claims.due_within(most, limit=limit, token=token, member=member)
            )
        self._owed.remove((member, token))
        self._more = claim.more
        return claim.rows

    async def _suspect(self, member: UUID) -> list[ClaimedRow]:
        """One row that was lost with the process that polled it, while no other such row is being polled here."""
        if not self._suspects or (self._apart is not None and boottime() < self._apart_until):
            return []
        token = new_token()
        self._owed.append((member, token))
        claim = await self._settling.run(self._claims.suspect(token=token, member=member))
        self._owed.remove((member, token))
        self._suspects = bool(claim.rows)
        for row in claim.rows:
            self._apart = row
            # most poison works at once; one that was lost twice keeps others out for as long as it runs
            self._apart_until = boottime() + _PROBATION_SECONDS if row.losses == 1 else float("inf")
            self._more = True
        return claim.rows

    async def _pay_back(self) -> None:
        """Release what a claim took whose answer never came: nobody here knows of those rows."""
        for member, token in list(self._owed):
            await self._settling.run(release_token(self._definition.name, member, token))
            self._owed.remove((member, token))

    def _hindered(self, error: RotaError) -> None:
        self._more = False
        self._hindrance = min(_LONGEST_HINDRANCE, self._hindrance * 2 or 1.0)
        self._owed.clear()  # PostgreSQL has refused it, so nothing was taken
        self._facts.emit(PollerHindered(self._definition.name, str(error), self._hindrance))
        # also for a drain: there is nothing that it could wait for
        self._last_empty_look = self._looks_begun
        self._empty_look.set()

    async def _next_in(self) -> float | None:
        try:
            return await self._looking.run(self._claims.next_in())
        except RotaError:
            return None  # the look that comes tells of it

    async def _rest(self, seconds: float) -> None:
        """Until then, until something is expected sooner, or until woken."""
        self._look_at = boottime() + seconds
        while (left := self._look_at - boottime()) > 0 and not self._woken.is_set():
            self._sooner.clear()
            try:
                async with asyncio.timeout(left):
                    await self._sooner.wait()
            except TimeoutError:
                return

    def _expect(self, seconds: float) -> None:
        """Something will be due then."""
        at = boottime() + seconds
        if at < self._look_at:
            self._look_at = at
            self._sooner.set()

    async def _settle_polled(self, polled: Sequence[Polled], failed: list[FailedPoll]) -> list[Outcome]:
        """Stamp them. Returns those that are locked; those that turn out not to be done join those that failed."""
        repeated = [id(outcome) in self._repeats for outcome in polled]
        self._repeats |= set(map(id, polled))
        try:
            query = self._finish.many([each.row for each in polled], [each.changed for each in polled])
            fates = await self._settling.run(query)
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            if len(polled) > 1:
                # one of them holds what PostgreSQL refuses: it fails alone
                return [left for each in polled for left in await self._settle_polled([each], failed)]
            failed.append(self._unstorable(polled[0], error))
            return []
        left: list[Outcome] = []
        for outcome, fate, again in zip(polled, fates, repeated, strict=True):
            if fate == "locked":
                left.append(outcome)
                if id(outcome) not in self._told_locked:
                    self._told_locked.add(id(outcome))
                    self._facts.emit(RowLocked(outcome.row.poller, outcome.row.key))
            elif fate == "undone":
                failed.append(self._failed(outcome.row, NotDone(undone(outcome.row))))
            else:
                # while we are who we were, nobody but us ends our claim: what is gone was ended by the write without an answer
                ours = fate == "lost" and again and outcome.row.member == self._control().member
                self._tell(outcome, "done" if ours else fate, changed=outcome.changed)
        if isinstance(self._definition.interval, timedelta) and self._definition.adaptive is None:
            self._expect(self._definition.interval.total_seconds())
        elif self._definition.form != "state":
            self._expect(_FIRST_PAUSE)  # when exactly, the database knows
        return left

    def _unstorable(self, outcome: Polled, error: RotaError) -> FailedPoll:
        cause = error.__cause__
        about = "done=... cannot be written" if is_about_data(cause) else "its stamp could not be written"
        failed = self._failed(
            outcome.row, RotaError(f"row {key_text(outcome.row.key)} was polled, and {about}: {error}")
        )
        return failed._replace(seconds=outcome.seconds)

    async def _settle_failed(self, failed: Sequence[FailedPoll]) -> None:
        query = fail(self._definition.name, [Failed(each.row, each.failure, each.pause) for each in failed])
        ours = await self._settling.run(query)
        for outcome, held in zip(failed, ours, strict=True):
            row = outcome.row
            if not held:
                self._tell(outcome, "lost", changed=False)
                continue
            self._settled(outcome, "failed")
            error = outcome.failure.error or outcome.failure.message
            self._facts.emit(RowFailed(row.poller, row.key, row.attempts + 1, outcome.seconds, error, outcome.pause))
            if outcome.pause is not None:
                self._expect(outcome.pause)

    def _tell(self, outcome: Outcome, fate: Fate, *, changed: bool) -> None:
        row = outcome.row
        self._settled(outcome, fate)
        if fate == "lost":
            self._facts.emit(RowClaimLost(row.poller, row.key, row.token))
        else:
            self._facts.emit(RowPolled(row.poller, row.key, outcome.seconds, fate, changed))

    def _over(self, outcomes: Sequence[Outcome], left: Sequence[Outcome]) -> None:
        over = set(map(id, outcomes)) - set(map(id, left))
        self._repeats -= over
        self._told_locked -= over
        if self._apart is not None and any(each.row == self._apart for each in outcomes if id(each) in over):
            self._apart = None
            self._suspects = True
            self._expect(0)
        if self._definition.limit is not None and over:
            self._expect(0)  # there is room again
