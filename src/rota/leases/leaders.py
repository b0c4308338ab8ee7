"""`app.leaders`: who leads what, in both colours."""

from __future__ import annotations

from collections.abc import Sequence as Page

from rota.clock import Duration, duration
from rota.errors import NotPossible
from rota.leases.inspect import LeaderLane, LeaderView, TermView, leader_lanes, list_leaders, list_terms
from rota.leases.lock_view import LockView, list_locks
from rota.leases.terms import evict, request_resignation, take_lease_away
from rota.postgres.audit import actor, record
from rota.postgres.look import alone, look
from rota.postgres.pool import Database
from rota.postgres.query import Steps

__all__ = ["Leaders"]


class Leaders:
    """Who leads what since when, who waits for it, and which terms there were."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> Page[LeaderView]:
        """Every name that was led in the last month, and by whom now."""
        return await self._database.run(list_leaders())

    def list_sync(self) -> Page[LeaderView]:
        return self._database.run_sync(list_leaders())

    async def terms(self, name: str, *, limit: int = 100) -> Page[TermView]:
        """The terms of this name, the last first; those of the last month."""
        return await self._database.run(list_terms(name, limit=limit))

    def terms_sync(self, name: str, *, limit: int = 100) -> Page[TermView]:
        return self._database.run_sync(list_terms(name, limit=limit))

    async def lanes(self, back: Duration = "24h", *, deadline: Duration | None = None) -> Page[LeaderLane]:
        """Who led what since so long ago, by name, with the times between in which nobody did.

        Of a hundred names, and of each its last two hundred terms. A statement that takes longer than `deadline` is given up.
        """
        return await self._database.run_steps(look(alone(leader_lanes(duration(back, "back"))), deadline))

    def lanes_sync(self, back: Duration = "24h", *, deadline: Duration | None = None) -> Page[LeaderLane]:
        return self._database.run_steps_sync(look(alone(leader_lanes(duration(back, "back"))), deadline))

    async def locks(self) -> Page[LockView]:
        """Who holds `app.lock(...)` at this moment, and who waits for it; by name, whoever holds it first."""
        return await self._database.run(list_locks(self._database.schema))

    def locks_sync(self) -> Page[LockView]:
        return self._database.run_sync(list_locks(self._database.schema))

    async def resign(
        self, name: str, *, force: bool = False, epoch: int | None = None, by: str | None = None, dry_run: bool = False
    ) -> LeaderView:
        """Ask the leader to step down, which it does when its body has ended; returns who that is.

        With `force` its term is over at once: fenced work that is open is rolled back and no more is let in, but what else it does
        may overlap with the next term. `epoch` says which term is meant: another one is left alone. `by` is who is on record
        for it; by default this process. Raises NotPossible when nobody leads, or no longer in that term.
        """
        return await self._database.run_steps(self._resign(name, force, epoch, actor(by), dry_run), dry_run=dry_run)

    def resign_sync(
        self, name: str, *, force: bool = False, epoch: int | None = None, by: str | None = None, dry_run: bool = False
    ) -> LeaderView:
        return self._database.run_steps_sync(self._resign(name, force, epoch, actor(by), dry_run), dry_run=dry_run)

    def _resign(self, name: str, force: bool, epoch: int | None, actor: str, dry_run: bool) -> Steps[LeaderView]:
        found: list[LeaderView] = yield list_leaders(name)
        leader = found[0] if found else None
        if leader is None or leader.member is None:
            raise NotPossible(f"Nobody leads {name!r}, so nobody can step down. `rota leaders list` tells what is led.")
        if epoch not in (None, leader.epoch) or not (force or (yield request_resignation(name, leader.epoch))):
            raise NotPossible(
                f"The term of {name!r} that was meant, epoch {epoch or leader.epoch}, is over: whoever leads now was not asked to "
                "step down. `rota leaders list` tells who that is."
            )
        if force and not dry_run:  # to end a session cannot be undone
            if roles := (yield evict(name, leader.epoch, self._database.schema)):
                raise NotPossible(
                    f"{leader.holder} is inside a transaction of its term, and this role may not end a session of {', '.join(roles)}. "
                    "Do it as that role, as a superuser, or with `grant pg_signal_backend` for yours."
                )
            yield take_lease_away(name, leader.epoch, leader.member)
        yield record(actor, "resign", {"name": name, "epoch": leader.epoch, "force": force})
        return leader
