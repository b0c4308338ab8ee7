"""Where a poller's work comes from. What becomes of it is the business of `pollers.settler`.

While rows are due they are taken one batch after the other; when a look finds none, the next comes when the next row will be due
as far as that is known, after a pause that grows while there is nothing, or when someone says that there is something new.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import Facts, PollerHindered, RowsClaimed, RowsLeftOut
from rota.leases.control import Control
from rota.pollers.claim import OWN_BITS, Claim, ClaimedRow, Claims, new_token
from rota.pollers.due import Plan
from rota.pollers.execute import FailedPoll, Outcome
from rota.pollers.long_keys import find_long_keys, is_too_long, without_long_keys
from rota.pollers.pieces import is_too_slow, said
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Finish, hand_back, held_tokens, release_token
from rota.pollers.settler import Settler
from rota.postgres.notify import poll_channel
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.service.points import reach

__all__ = ["PollSource"]

# The first pause after a look that found nothing; each one after it is twice as long, up to the poller's `idle`.
_FIRST_PAUSE = 0.25
# What a row that went down with its process may do to the next: for so long it is the only one of its kind.
_PROBATION_SECONDS = 1.0
# There is seldom one, so not every look in a row asks for it.
_SUSPECTS_SECONDS = 0.25
# From when on a look is slow.
_SLOW_SECONDS = 0.05
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
        self._definition = plan.definition
        self._plan = plan
        self._claims = Claims(plan)
        self._looking = sessions.looking
        self._settling = sessions.settling
        self._control = control
        self._facts = facts
        self._settler = Settler(
            plan.definition,
            finish,
            sessions,
            control=control,
            failed=failed,
            facts=facts,
            settled=settled,
            expect=self._expect,
        )
        self._channel = poll_channel(sessions.looking.schema)
        # the first bits of its tokens are its own: so it tells its claims from others' in the same process
        self._mark = secrets.randbits(63 - OWN_BITS)
        self._leaves_out = False  # rows whose keys are too long
        self._under_way: set[int] = set()  # claims whose answer is awaited
        self._owed: set[tuple[UUID, int]] = set()  # claims that nobody here has the rows of
        self._unknown: set[int] = set()
        self._ask_for_suspects_at = 0.0
        self._apart: ClaimedRow | None = None
        self._apart_until = 0.0
        self._more = False
        #: why the last look came to nothing, if PostgreSQL refused it
        self.hindered_by: str | None = None
        self._look_seconds = 0.0
        self._looked_at = boottime()
        self._polled = 0  # since then
        self._idle = False  # the last look found nothing
        self._next_at = math.inf
        self._pause = 0.0
        self._hindrance = 0.0
        self._expected_at = math.inf
        self._woken = asyncio.Event()
        self._sooner = asyncio.Event()
        self._looks_begun = 0
        self._last_empty_look = 0
        self._empty_look = asyncio.Event()

    def wake(self) -> None:
        """Look now: something may be due, or may have been given back."""
        self._ask_for_suspects_at = 0.0
        self._woken.set()
        self._sooner.set()

    def forget(self) -> None:
        """A peer has ended us: nothing that was taken is ours."""
        self._apart = None
        self.wake()

    def may_start(self) -> bool:
        return self._control().may_act

    async def claim(self, limit: int) -> Sequence[ClaimedRow]:
        if not self._control().may_act:
            return []
        self._woken.clear()
        self._expected_at = math.inf  # what is expected from now on, the answer may not tell
        self._looks_begun += 1
        look = self._looks_begun
        try:
            await self._pay_back()
            if self._idle:
                # before the look, which finds what becomes due meanwhile
                self._next_at = await self._ask_for_next()
            rows = await self._suspect() or await self._due(min(self._enough(limit), self._definition.batch))
        except RotaError as error:
            if isinstance(error, DatabaseUnavailable) and not is_too_slow(error):
                raise
            if self._leave_out_long_keys(error):
                return await self.claim(limit)
            self._hindered(error)
            return []
        self._hindrance, self.hindered_by = 0.0, None
        if rows:
            self._idle, self._pause = False, 0.0
            self._facts.emit(RowsClaimed(self._definition.name, len(rows)))
        elif not self._more:
            self._last_empty_look = look
            self._empty_look.set()
        return rows

    def _leave_out_long_keys(self, error: RotaError) -> bool:
        """Whether rows whose keys no claim can hold are left out from now on: they would hold up all others."""
        if self._leaves_out or not is_too_long(error):
            return False
        self._leaves_out = True
        self._claims = Claims(without_long_keys(self._plan))
        self._facts.emit(RowsLeftOut(self._definition.name, find_long_keys(self._plan)))
        return True

    def _enough(self, limit: int) -> int:
        """How many to ask for: where a look is slow, as behind very many rows that wait, also what is polled while the next one
        goes on."""
        now, polled = boottime(), self._polled
        rate, self._looked_at, self._polled = polled / max(now - self._looked_at, 0.001), now, 0
        return limit + int(rate * self._look_seconds) if self._look_seconds > _SLOW_SECONDS else limit

    async def wait_for_more(self) -> None:
        """Return when a look may find something."""
        if not self._control().may_act:
            # the control thread is about to be back; nobody wakes us for that
            await asyncio.sleep(0.05)
            return
        if self._more or self._woken.is_set():
            return
        if self._hindrance:
            await self._rest(self._hindrance)
            return
        if not self._idle:
            self._idle = True
            return  # for a look that knows when the next will be due
        self._pause = min(self._definition.idle, self._pause * 2 or _FIRST_PAUSE)
        await self._rest(min(self._pause * random.uniform(0.8, 1.0), self._next_at - boottime()))

    async def found_nothing(self) -> None:
        """Return after a look that begins from now on and finds nothing."""
        begun = self._looks_begun
        self.wake()
        while self._last_empty_look <= begun:
            self._empty_look.clear()
            await self._empty_look.wait()

    async def claim_this(self, key: Sequence[Any]) -> tuple[bool, ClaimedRow | None]:
        """Take the row of this key, due or not; whether there is such a row, and the row unless someone has it."""

        async def take(member: UUID, token: int) -> tuple[bool, list[ClaimedRow]]:
            return await self._settling.run(self._claims.this(key, token=token, member=member))

        exists, rows = await self._take(take)
        if rows:
            self._facts.emit(RowsClaimed(self._definition.name, 1))
        return exists, rows[0] if rows else None

    @property
    def found_more(self) -> bool:
        """Whether the last look found as many rows as it could take, or others had some of them first."""
        return self._more

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        self._polled += len(outcomes)
        left = await self._settler.settle(outcomes)
        waiting = set(map(id, left))
        over = [each for each in outcomes if id(each) not in waiting]
        if self._apart is not None and any(each.row == self._apart for each in over):
            self._apart = None
            self._ask_for_suspects_at = 0.0
            self._expect(0)
        if self._definition.limit is not None and over:
            self._expect(0)  # there is room again
        return left

    async def hand_back(self, items: Sequence[ClaimedRow], begun: Sequence[ClaimedRow] = ()) -> Sequence[ClaimedRow]:
        await self._pay_back()
        rows = [*items, *begun]
        if rows:
            await self._settling.run(hand_back(self._definition.name, rows, self._channel))
        if self._apart in rows:
            self._apart = None
        return []

    async def _due(self, limit: int) -> list[ClaimedRow]:
        claims, began = self._claims, boottime()
        self._more, rows = await self._taken(
            self._looking,
            lambda member, token, room: claims.due(limit=min(limit, room or limit), token=token, member=member),
        )
        self._look_seconds = boottime() - began
        return rows

    async def _suspect(self) -> list[ClaimedRow]:
        """One row that was lost with the process that polled it, while no other such row is being polled here."""
        now = boottime()
        if now < self._ask_for_suspects_at or (self._apart is not None and now < self._apart_until):
            return []
        _, rows = await self._taken(
            self._settling, lambda member, token, room: self._claims.suspect(token=token, member=member)
        )
        self._ask_for_suspects_at = 0.0 if rows else now + _SUSPECTS_SECONDS
        for row in rows:
            self._apart = row
            # most poison works at once; one that was lost twice keeps others out for as long as it runs
            self._apart_until = boottime() + _PROBATION_SECONDS if row.losses == 1 else math.inf
            self._more = True
        return rows

    async def _taken(
        self, database: Database, query: Callable[[UUID, int, int | None], Query[Claim]]
    ) -> tuple[bool, list[ClaimedRow]]:
        """Take rows, no more than the poller's limit has room for."""
        most = self._definition.limit

        async def take(member: UUID, token: int) -> tuple[bool, list[ClaimedRow]]:
            if most is None:
                claim: Claim = await database.run(query(member, token, None))
            else:
                claim = await database.run_steps(self._claims.within(most, lambda room: query(member, token, room)))
            return claim.more, claim.rows

        return await self._take(take)

    async def _take(
        self, take: Callable[[UUID, int], Awaitable[tuple[bool, list[ClaimedRow]]]]
    ) -> tuple[bool, list[ClaimedRow]]:
        """Take rows under a new token. Until they are handed over, whatever goes wrong, they are to be given back."""
        control, token = self._control(), new_token(self._mark)
        member = control.member
        self._under_way.add(token)
        try:
            reach("claim.before")
            told, rows = await take(member, token)
            reach("claim.after")
        except BaseException:
            self._owed.add((member, token))
            raise
        finally:
            self._under_way.discard(token)
        if rows and (not control.may_act or control.member != member):
            self._owed.add((member, token))  # too late to start anything
            return True, []
        return told, rows

    async def give_back_unknown(self, held: Sequence[ClaimedRow]) -> None:
        """Give back what the database says we took, and is neither among these nor on its way.

        A claim that was cut off may have been committed after it was given back. Twice in a row, so that nothing is given back
        that is just changing hands.
        """
        member = self._control().member
        tokens = await self._settling.run(held_tokens(self._definition.name, member, self._mark))
        unknown = tokens - {row.token for row in held} - self._under_way - {token for _, token in self._owed}
        self._owed |= {(member, token) for token in unknown & self._unknown}
        self._unknown = unknown
        await self._pay_back()

    async def _pay_back(self) -> None:
        """Release what was taken without anyone here knowing of it."""
        for member, token in list(self._owed):
            await self._settling.run(release_token(self._definition.name, member, token))
            self._owed.discard((member, token))

    def _hindered(self, error: RotaError) -> None:
        self._more = False
        self._hindrance = min(_LONGEST_HINDRANCE, self._hindrance * 2 or 1.0)
        name, why = self._definition.name, said(error)
        self.hindered_by = f"Poller {name!r} cannot look for rows of {self._plan.shape}: PostgreSQL says {why!r}."
        self._facts.emit(PollerHindered(name, why, self._hindrance))
        # also for a drain: there is nothing that it could wait for
        self._last_empty_look = self._looks_begun
        self._empty_look.set()

    async def _ask_for_next(self) -> float:
        """When the next row is due, on the clock of `boottime`, as far as the database knows."""
        asked_at = boottime()
        next_in = await self._looking.run(self._claims.next_in())
        return math.inf if next_in is None else asked_at + next_in

    async def _rest(self, seconds: float) -> None:
        """Until then, until something is expected sooner, or until woken."""
        look_at = boottime() + seconds
        self._ask_for_suspects_at = 0.0
        while (left := min(look_at, self._expected_at) - boottime()) > 0 and not self._woken.is_set():
            self._sooner.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._sooner.wait()

    def _expect(self, seconds: float | None) -> None:
        """Something will be due then; None where the database alone knows when."""
        self._expected_at = min(self._expected_at, boottime() + (_FIRST_PAUSE if seconds is None else seconds))
        self._sooner.set()
