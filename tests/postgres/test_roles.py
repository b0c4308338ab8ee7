"""Least privilege, tried with real roles: each does its part, and nothing else."""

# ruff: noqa: PT012 - what is raised at the end of a block is raised after its statements

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from rota import DatabaseUnavailable, Debounce, LeadershipHeld, LeadershipLost, NotPossible, Rota, RotaError, Unique
from rota.facts import TakeoverHindered
from rota.leases.prune import prune_leases
from rota.leases.terms import find_burden, leave_standbys


@dataclass(frozen=True)
class Roles:
    schema: str
    dsn: str

    def login(self, name: str) -> str:
        return f"{self.schema}_{name}_login"

    def as_role(self, name: str) -> str:
        return make_conninfo(self.dsn, user=self.login(name))


@pytest.fixture
def roles(rota_database: str) -> Iterator[Roles]:
    """A schema owned by someone who is no superuser, and a login for each of its roles."""
    schema = f"r{uuid4().hex[:8]}"
    names = ("enqueue", "worker", "read")
    with psycopg.connect(rota_database, autocommit=True) as admin:
        admin.execute(f"create role {schema}_owner login nosuperuser createrole")
        admin.execute(f"create schema {schema} authorization {schema}_owner")
        owner = Rota(make_conninfo(rota_database, user=f"{schema}_owner"), schema=schema)
        owner.migrate_sync(roles=True)
        owner.migrate_sync(roles=True)  # the second time changes nothing
        for name in names:
            admin.execute(f"create role {schema}_{name}_login login nosuperuser in role {schema}_{name}")
        admin.execute(f"create role {schema}_other_login login nosuperuser in role {schema}_worker")
        admin.execute(
            f"create role {schema}_signaller_login login nosuperuser in role {schema}_worker, pg_signal_backend"
        )
        yield Roles(schema, rota_database)
        logins = ", ".join(f"{schema}_{name}_login" for name in (*names, "other", "signaller"))
        admin.execute(f"drop schema {schema} cascade")
        admin.execute(f"drop role {logins}, {schema}_enqueue, {schema}_worker, {schema}_read")
        admin.execute(f"drop owned by {schema}_owner; drop role {schema}_owner")


def app_of(roles: Roles, name: str) -> Any:
    app = Rota(roles.as_role(name), schema=roles.schema)
    app.task(name="double")(lambda n: 2 * n)
    return app


async def test_each_role_does_its_part(roles: Roles) -> None:
    async with app_of(roles, "enqueue") as front, app_of(roles, "worker") as back, app_of(roles, "read") as office:
        job = await front.tasks["double"].enqueue(21)
        many = await front.enqueue_many([front.tasks["double"].bind(n) for n in range(3)])
        await back.work(drain=True)

        assert await (await office.jobs.get(job.id)).wait() == 42
        assert len(await office.jobs.list(state="succeeded")) == 1 + len(many)
        assert len(await office.members(ended=True)) == 1


@pytest.mark.usefixtures("patient_logs")
async def test_who_works_keeps_logs_and_who_looks_reads_them(roles: Roles) -> None:
    async with app_of(roles, "enqueue") as front, app_of(roles, "worker") as back, app_of(roles, "read") as office:
        for app in (front, back):
            app.task(name="warn")(lambda: logging.getLogger("shop").warning("beware"))
        job = await front.tasks["warn"].enqueue()
        await back.work(drain=True)

        assert [line.message for line in await office.jobs.logs(job.id)] == ["beware"]
        with pytest.raises(RotaError, match="permission denied"):
            await front.jobs.logs(job.id)


async def test_who_works_may_lead_and_who_looks_sees_it(roles: Roles) -> None:
    async with (
        app_of(roles, "worker") as back,
        app_of(roles, "worker") as next_in_line,
        app_of(roles, "read") as office,
    ):
        async with back.leadership("indexer") as term:
            async with term.transaction():
                pass
            await term.confirm()
            with pytest.raises(LeadershipHeld):
                async with next_in_line.leadership("indexer"):
                    pass
            assert [view.epoch for view in await office.leaders.list()] == [term.epoch]
            with pytest.raises(RotaError, match="permission denied"):
                await office.leaders.resign("indexer")
            await next_in_line.leaders.resign("indexer", force=True)
            await term.resign()
        async with next_in_line.leadership("indexer").wait("5s"), back.lock("refill"):
            pass
        for query in (prune_leases(), find_burden(term.member), leave_standbys(["x"], term.member)):
            await back.database.run(query)
        assert len(await office.leaders.terms("indexer")) == 2
    async with app_of(roles, "enqueue") as front, front.lock("refill"):
        with pytest.raises(RotaError, match="permission denied"):
            async with front.leadership("indexer"):
                pass


async def test_a_session_that_one_has_no_right_to_end_is_waited_for_and_told_of_once(roles: Roles) -> None:
    """Two logins of one group may not end each other's sessions. Who leads does not depend on it, only how soon."""
    told: list[TakeoverHindered] = []
    with app_of(roles, "worker") as last, app_of(roles, "other") as following:
        following.facts.subscribe(told.append, TakeoverHindered)
        with pytest.raises(LeadershipLost), last.leadership("indexer") as term, term.transaction() as inside:
            assert inside.execute("show idle_in_transaction_session_timeout").fetchone() == ("15s",)
            with pytest.raises(NotPossible, match=f"may not end a session of {roles.login('worker')}"):
                following.leaders.resign_sync("indexer", force=True)
            end_leaders(roles)
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable, match=f"may not end a session of {roles.login('worker')}"):
                    following.leadership("indexer").__enter__()
            leadership = following.leadership("indexer").wait("20s")
            waiting = asyncio.create_task(asyncio.to_thread(leadership.__enter__))
            done, _ = await asyncio.wait([waiting], timeout=1)
            assert not done

        assert (await waiting).epoch > term.epoch
        leadership.__exit__(None, None, None)

    assert [(fact.name, fact.epoch, fact.roles) for fact in told] == [("indexer", term.epoch, (roles.login("worker"),))]


@pytest.mark.parametrize("follower", ["worker", "signaller"])
def test_who_may_end_sessions_takes_over_at_once(roles: Roles, follower: str) -> None:
    """As the same role, or with the right to."""
    with (
        app_of(roles, "worker") as last,
        app_of(roles, follower) as following,
        pytest.raises(LeadershipLost),
        last.leadership("indexer") as term,
        term.transaction() as inside,
    ):
        end_leaders(roles)
        with following.leadership("indexer") as next_term:
            assert next_term.epoch > term.epoch
        inside.execute("select 1")


def end_leaders(roles: Roles) -> None:
    """As peers do to those who do not renew."""
    with psycopg.connect(roles.dsn, autocommit=True) as admin:
        admin.execute(
            f"update {roles.schema}.members set ended_at = now(), end_reason = 'expired' "
            f"where id in (select member from {roles.schema}.leases)"
        )


def test_plain_sql_may_enqueue_too(roles: Roles) -> None:
    with psycopg.connect(roles.as_role("enqueue")) as connection:
        row = connection.execute(f"select {roles.schema}.enqueue('double', '{{\"n\": 4}}')").fetchone()

    assert row == (1,)


async def test_who_enqueues_can_neither_read_arguments_nor_work(roles: Roles) -> None:
    async with app_of(roles, "enqueue") as front:
        job = await front.tasks["double"].enqueue(21)

        with pytest.raises(RotaError, match="permission denied"):
            await front.jobs.get(job.id)
        with pytest.raises(RotaError, match="permission denied"):
            await front.work(drain=True)


async def test_who_meets_a_job_under_its_key_reads_its_arguments_only_with_the_right_to(roles: Roles) -> None:
    async with app_of(roles, "enqueue") as front, app_of(roles, "worker") as back:
        first = await back.tasks["double"].using(unique="k", tags=["theirs"]).enqueue(21)

        met = await front.tasks["double"].using(unique="k").enqueue(1)
        replaced = await front.tasks["double"].using(unique=Unique(by="k", conflict="replace")).enqueue(2)
        known = await back.tasks["double"].using(unique="k").enqueue(3)
        put_off = await front.tasks["double"].using(unique=Debounce("1h", by="k", keep="first")).enqueue(4)

        assert (met.id, met.args, met.tags) == (first.id, None, ("theirs",))
        assert (replaced.id, replaced.args) == (first.id, {"n": 2})
        assert (known.id, known.args) == (first.id, {"n": 2})
        assert (put_off.id, put_off.args) == (first.id, None)
        assert (await back.jobs.get(first.id)).due_at == put_off.due_at > first.due_at


async def test_who_looks_can_change_nothing(roles: Roles) -> None:
    async with app_of(roles, "read") as office:
        with pytest.raises(RotaError, match="permission denied"):
            await office.tasks["double"].enqueue(21)
        with pytest.raises(RotaError, match="permission denied"):
            await office.tasks["double"].using(unique=True).enqueue(21)
        with pytest.raises(RotaError, match="permission denied"):
            await office.adopt()


async def test_who_may_not_is_told_which_role_may(roles: Roles) -> None:
    async with app_of(roles, "read") as office:
        for refused in (office.schedules.put("s", task="double", args={"n": 1}), office.schedules.pause("s")):
            with pytest.raises(
                RotaError,
                match=f"permission denied for .*Role '{roles.login('read')}' may not .* {roles.schema}_worker to work and "
                f"to change anything, .*`rota migrate --schema {roles.schema} --roles`",
            ):
                await refused


async def test_one_role_puts_chains_and_batches_and_another_runs_them(roles: Roles) -> None:
    enqueuing, working = app_of(roles, "enqueue"), app_of(roles, "worker")
    for app in (enqueuing, working):
        app.task(name="one")(lambda n=0: 1)
        app.task(name="told")(lambda progress: progress["succeeded"])
    one, told = enqueuing.tasks["one"], enqueuing.tasks["told"]

    async with enqueuing, working:
        flow = await one.bind(1).then(one, on_failure="run").enqueue()
        await enqueuing.batches.start([one.bind(1), one.bind(2)], then=told)
        await enqueuing.batches.start([], then=told)
        await working.work(drain=True)

        assert (await working.jobs.get(flow.last.id)).state == "succeeded"
        assert sorted([job.result for job in await working.jobs.list(task="told")]) == [0, 2]
        assert [(await each.progress()).done for each in await working.batches.list()] == [0, 2]


async def test_one_role_appends_events_another_reads_them_and_nobody_changes_them(roles: Roles) -> None:
    async with app_of(roles, "enqueue") as front, app_of(roles, "worker") as back, app_of(roles, "read") as office:
        await front.event_log("orders").append("order-7", "OrderPlaced", expected_version=0)
        await back.event_log("orders").append("order-7", "OrderPaid", expected_version=1)

        assert [event.version for event in await office.event_log("orders").read("order-7")] == [1, 2]
        with pytest.raises(RotaError, match="permission denied"):
            await front.event_log("orders").read("order-7")
        with pytest.raises(RotaError, match="permission denied"):
            await office.event_log("orders").append("order-7", "OrderShipped")
    for name in ("enqueue", "worker", "read"):
        with (
            psycopg.connect(roles.as_role(name)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(f"update {roles.schema}.events set type = 'Forged'")


def test_what_runs_with_the_rights_of_its_owner_is_open_to_nobody_by_default(rota_database: str) -> None:
    with psycopg.connect(rota_database) as db:
        found = db.execute(
            "select proname from pg_proc where pronamespace = 'rota'::regnamespace and prosecdef "
            "and has_function_privilege('public', oid, 'execute') order by 1"
        ).fetchall()

    assert found == []


def test_nobody_tells_of_ends_that_never_were_by_a_trigger_on_a_table_of_their_own(roles: Roles) -> None:
    with psycopg.connect(roles.as_role("enqueue")) as db:
        db.execute("create temp table forged (id bigint, schedule text, slot_at timestamptz)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="note_schedule_end"):
            db.execute(
                "create trigger forge after insert on forged for each row "  # type: ignore[arg-type]
                f"execute function {roles.schema}.note_schedule_end('succeeded')"
            )
