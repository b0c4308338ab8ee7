"""`app.members`: which processes there are, and having one of them rest or end, in both colours."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from rota.errors import NotPossible
from rota.leases.member_view import MemberView, find_members, list_members
from rota.postgres.audit import actor, record
from rota.postgres.names import check_name
from rota.postgres.notify import wish_channel
from rota.postgres.pool import Database
from rota.postgres.query import Query, Steps, nothing, statement

__all__ = ["Members"]

Found = list[MemberView]
Verb = Literal["quiet", "drain", "resume"]


class Members:
    """The processes that hold or may hold work."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __call__(self, *, ended: bool = False, limit: int = 1000) -> Found:
        return await self.list(ended=ended, limit=limit)

    async def list(self, *, ended: bool = False, limit: int = 1000) -> Found:
        """Those that live, the newest first; with `ended`, also those that are gone. `app.members()` is the same."""
        return await self._database.run(list_members(ended=ended, limit=limit))

    def list_sync(self, *, ended: bool = False, limit: int = 1000) -> Found:
        return self._database.run_sync(list_members(ended=ended, limit=limit))

    async def quiet(self, member: str | UUID, *, by: str | None = None, dry_run: bool = False) -> MemberView:
        """Have a process, by its name or id, take on nothing new until `resume`: no job, no row of a poller, no leadership.

        What runs goes on, and what it leads is led by others. It hears of it within moments, and then shows as quiet. One that is
        started anew is not. One that works with `drain` ends instead. `by` is who is on record. Raises NotPossible when it runs no
        worker, ends, or was asked already.
        """
        return await self._database.run_steps(self._ask("quiet", member, actor(by)), dry_run=dry_run)

    def quiet_sync(self, member: str | UUID, *, by: str | None = None, dry_run: bool = False) -> MemberView:
        return self._database.run_steps_sync(self._ask("quiet", member, actor(by)), dry_run=dry_run)

    async def resume(self, member: str | UUID, *, by: str | None = None, dry_run: bool = False) -> MemberView:
        """Have a process that is quiet work again. Raises NotPossible when it ends, or nobody wanted it to be quiet."""
        return await self._database.run_steps(self._ask("resume", member, actor(by)), dry_run=dry_run)

    def resume_sync(self, member: str | UUID, *, by: str | None = None, dry_run: bool = False) -> MemberView:
        return self._database.run_steps_sync(self._ask("resume", member, actor(by)), dry_run=dry_run)

    async def drain(self, member: str | UUID, *, by: str | None = None, dry_run: bool = False) -> MemberView:
        """Have a process end as after SIGTERM: what runs may finish within its grace, and is handed back after that.

        A `rota worker` exits with 0, and whoever keeps it running starts the next. A web process serves on and is quiet instead, as it
        is there for its requests too; `work["drains"]` tells which of them it is. Otherwise as `quiet`.
        """
        return await self._database.run_steps(self._ask("drain", member, actor(by)), dry_run=dry_run)

    def drain_sync(self, member: str | UUID, *, by: str | None = None, dry_run: bool = False) -> MemberView:
        return self._database.run_steps_sync(self._ask("drain", member, actor(by)), dry_run=dry_run)

    def _ask(self, verb: Verb, which: str | UUID, actor: str) -> Steps[MemberView]:
        name = check_name("member", str(which), 300)
        found: Found = yield find_members(name)
        member = _one_that_can(verb, name, found)
        yield record(actor, f"member.{verb}", {"member": str(member.id), "name": member.name})
        if verb == "resume":
            yield withdraw_wish(member.id)
        else:
            # a web process is there for its requests, too
            wish = "drain" if verb == "drain" and member.work["drains"] != "quiet" else "quiet"
            yield put_wish(member.id, wish, actor)
        yield tell_member(member.id, wish_channel(self._database.schema))
        changed: Found = yield find_members(str(member.id))
        return changed[0] if changed else member


def _one_that_can(verb: Verb, name: str, found: list[MemberView]) -> MemberView:
    if not found:
        raise NotPossible(f"No live process is called {name!r}. `rota members list` tells which there are.")
    if len(found) > 1:
        raise NotPossible(
            f"{len(found)} live processes are called {name!r}. Give the id of the one that is meant: "
            f"{', '.join(str(member.id) for member in found)}."
        )
    (member,) = found
    if "tasks" not in member.work:
        raise NotPossible(
            f"{member.name} runs no worker, so there is nothing that it could {verb}. What it leads is given up by "
            "`rota leaders resign`."
        )
    if "drains" not in member.work:
        raise NotPossible(
            f"{member.name} runs Rota {member.release}, which cannot be asked from outside. Send it SIGTERM instead."
        )
    if member.state == "draining" or member.wish == "drain":
        raise NotPossible(f"{member.name} ends already.")
    if verb == "resume" and member.wish is None:
        raise NotPossible(f"Nobody wanted {member.name} to be quiet: it works.")
    if member.wish == "quiet" and (verb == "quiet" or (verb == "drain" and member.work["drains"] == "quiet")):
        raise NotPossible(f"{member.name} was asked to be quiet already, by {member.asked_by}.")
    return member


PUT = statement(
    "put_wish",
    """
    insert into {schema}.wishes (member, wish, asked_by)
    values (%(member)s, %(wish)s, %(by)s)
    on conflict (member) do update
    set wish = excluded.wish,
        asked_at = excluded.asked_at,
        asked_by = excluded.asked_by
    """,
)


def put_wish(member: UUID, wish: str, by: str) -> Query[None]:
    return PUT.query({"member": member, "wish": wish, "by": by}, read=nothing)


WITHDRAW = statement("withdraw_wish", "delete from {schema}.wishes where member = %(member)s")


def withdraw_wish(member: UUID) -> Query[None]:
    return WITHDRAW.query({"member": member}, read=nothing)


TELL = statement("tell_member", "select {schema}.notify(%(channel)s, %(member)s::text)")


def tell_member(member: UUID, channel: str) -> Query[None]:
    """Have it look at once what is wanted of it, when this is committed; with its next beat it would anyway."""
    return TELL.query({"member": member, "channel": channel}, read=nothing)
