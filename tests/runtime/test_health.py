"""What a process says of its own health: it tells trouble from no trouble, asks little, and never raises."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool
from tests.runtime.away import locked_out

from rota import Rota
from rota.errors import ConfigurationError
from rota.facts import ControlLost
from rota.runtime import health as health_module
from rota.runtime.health import Health, health_of
from rota.service.ending import ENDING
from rota.testing import DatabaseServer, TcpProxy, TestRota, fact, until

READY = (200, {"ready": True})


@pytest.fixture(autouse=True)
def _not_ending() -> Iterator[None]:
    yield
    ENDING.reset()


def not_ready(reason: str) -> tuple[int, dict[str, object]]:
    return 503, {"ready": False, "reason": reason}


async def answered(health: Health) -> tuple[int, dict[str, object]]:
    """What both colours say, which is the same."""
    report = await health.ready()
    assert await asyncio.to_thread(health.ready_sync) == report
    return report.status, report.body


def sessions(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity where application_name like 'rota:health@%' and datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


async def test_ready_is_200_where_nothing_is_wrong(rota_app: TestRota) -> None:
    health = Health(rota_app)

    assert await answered(health) == READY
    assert health.live().body == {"live": True}
    health.close()


@pytest.mark.one_server
async def test_the_health_of_an_app_is_one_for_all_who_ask_and_goes_with_it() -> None:
    app = Rota("dbname=nowhere")
    seen = weakref.ref(health_of(app))
    assert health_of(app) is seen()

    del app
    gc.collect()

    assert seen() is None


@pytest.mark.one_server
async def test_a_database_that_is_away_is_told_within_a_second_and_live_stays_200() -> None:
    health = Health(Rota("postgresql://nobody@127.0.0.1:1/none"))

    assert await answered(health) == not_ready("database")
    assert health.live().status == 200
    detail = await health.detail()
    assert (detail.status, detail.body["reason"], detail.body["database"]["reached"]) == (503, "database", False)
    health.close()


@pytest.mark.one_server
async def test_a_database_that_never_answers_costs_each_probe_a_second_at_most(silent: str) -> None:
    health = Health(Rota(silent))
    loop = asyncio.get_running_loop()

    began = loop.time()
    reports = await asyncio.gather(*(health.ready() for _ in range(20)))
    took = loop.time() - began
    again = loop.time()
    report = await health.ready()

    assert {(each.status, each.body["reason"]) for each in (*reports, report)} == {(503, "database")}
    assert took < 10  # and not each its own, one after the other
    assert loop.time() - again < 0.9  # the same question is still under way, and has had its second
    assert health._line._calls.empty()  # nor does another wait behind it
    health.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none"


async def test_a_schema_that_does_not_fit_is_told_until_it_does(
    rota_server: DatabaseServer, rota_app: TestRota
) -> None:
    health = Health(rota_app)
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute("alter table rota.migrations rename to elsewhere")
        assert await answered(health) == not_ready("schema")
        admin.execute("alter table rota.elsewhere rename to migrations")

    async def is_ready() -> bool:
        return (await health.ready()).well

    await until(is_ready, what="it fits")
    assert await answered(health) == READY
    health.close()


async def test_however_many_ask_there_is_one_question_and_its_answer_is_good_for_a_second(rota_app: TestRota) -> None:
    health = Health(rota_app)
    asked = list[object]()
    put = health._line.put
    health._line.put = lambda query: (asked.append(query), put(query))[1]  # type: ignore[method-assign, assignment]

    reports = await asyncio.gather(
        *(health.ready() for _ in range(50)), *(asyncio.to_thread(health.ready_sync) for _ in range(5))
    )

    assert {report.status for report in reports} == {200}
    assert len(asked) == 1
    assert sessions(rota_app.database.dsn.conninfo) == 1
    health.close()


async def test_the_line_goes_when_nobody_asks_any_more(rota_app: TestRota) -> None:
    health = Health(rota_app)
    await health.ready()

    health.close()

    await until(lambda: health._line._thread is None)
    assert sessions(rota_app.database.dsn.conninfo) == 0
    assert (await Health.ready(health)).well  # and comes back
    health.close()


async def test_a_busy_pool_is_not_taken_for_a_database_that_is_away(rota_database: str) -> None:
    async with Rota(rota_database, pool_size=1) as app, app.database.transaction():
        health = Health(app)

        assert await answered(health) == READY
        detail = (await health.detail()).body["database"]
        assert detail["pool"] == {"limit": 1, "size": 1, "used": 1, "waiting": 0}
        health.close()


async def test_an_app_with_a_pool_of_the_users_alone_is_asked_about_through_it(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROTA_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    async with AsyncConnectionPool(rota_database, open=False) as pool:
        app = Rota(pool=pool)
        monkeypatch.setattr(app, "_address", lambda: pytest.fail("a probe started a server"))
        health = Health(app)

        assert await answered(health) == READY
        health.close()


async def test_a_process_that_is_to_end_is_not_ready_and_asks_nobody(rota_app: TestRota) -> None:
    health = Health(rota_app)
    ENDING.begin("SIGTERM")

    assert await answered(health) == not_ready("shutting_down")
    assert health._line._thread is None
    assert health.live().status == 200


async def test_a_process_that_is_to_have_a_worker_is_starting_until_it_works_and_over_with_it(
    rota_app: TestRota,
) -> None:
    health = Health(rota_app)
    assert await answered(health) == READY

    health.expect_worker = True
    assert await answered(health) == not_ready("starting")
    fresh = Health(rota_app)
    fresh.expect_worker = True
    assert (await fresh.startup()).body == {"started": False, "reason": "starting"}

    working = asyncio.create_task(rota_app.work())

    async def is_ready() -> bool:
        return (await health.ready()).well

    await until(is_ready, what="it works")
    assert (await fresh.startup()).body == {"started": True}
    rota_app.stop()
    await working
    assert await answered(health) == not_ready("shutting_down")
    assert (await fresh.startup()).body == {"started": True}  # whatever comes later
    health.close()
    fresh.close()


@pytest.mark.direct("a lease is renewed all the same, but seldom within the second")
async def test_a_worker_that_renews_its_lease_need_not_be_asked_about(rota_app: TestRota) -> None:
    health = Health(rota_app)
    health.expect_worker = True
    working = asyncio.create_task(rota_app.work())

    async def is_ready() -> bool:
        return (await health.ready()).well

    await until(is_ready, what="it works")
    health.close()
    await until(lambda: health._line._thread is None)
    health._reach.forget()
    reports = [await health.ready() for _ in range(10)]

    assert {report.status for report in reports} == {200}
    assert health._line._thread is None
    rota_app.stop()
    await working


async def test_detail_tells_of_each_part(rota_app: TestRota) -> None:
    @rota_app.task
    async def known() -> None: ...

    @rota_app.singleton("indexer")
    async def indexer(term: object) -> None:
        await asyncio.Event().wait()

    await known.enqueue()
    health = Health(rota_app)
    health.expect_worker = True
    working = asyncio.create_task(rota_app.work())

    async def told() -> bool:
        body = (await health.detail()).body
        terms = {term["name"] for term in body["leaderships"]}
        return (
            bool(
                body["ready"]
                and "indexer" in terms
                and body["workers"][0]["finished"]
                and body["workers"][0]["listener"]
            )
            and not body["database"]["queue_latency"]
        )

    await until(told)
    body = (await health.detail()).body

    assert (body["live"], body["ready"], "reason" in body) == (True, True, False)
    assert body["database"]["reached"]
    assert 0 <= body["database"]["round_trip"] < 10
    assert body["database"]["queue_latency"] == 0
    assert body["loop"]["lag"] < 10
    (worker,) = body["workers"]
    assert (worker["state"], worker["finished"]) == ("running", 1)
    assert 0 <= worker["lease"]["age"] < worker["lease"]["left"]
    assert [term["valid"] for term in body["leaderships"] if term["name"] == "indexer"] == [True]
    assert await asyncio.to_thread(lambda: health.detail_sync().status) == 200
    rota_app.stop()
    await working
    health.close()


async def test_detail_tells_how_late_the_oldest_due_job_is(rota_app: TestRota) -> None:
    @rota_app.task
    async def late() -> None: ...

    await late.enqueue()
    rota_app.advance("90s")
    health = Health(rota_app)

    latency = (await health.detail()).body["database"]["queue_latency"]

    assert 90 <= latency < 150
    health.close()


async def test_a_loop_that_is_blocked_for_longer_than_the_limit_is_not_live(rota_app: TestRota) -> None:
    health = Health(rota_app, live_limit=1.0)
    working = asyncio.create_task(rota_app.work())
    await until(lambda: rota_app.workings and rota_app.workings[0].state == "running")
    seen = threading.Event()

    def probe() -> dict[str, object]:
        from rota.testing import until_sync

        try:
            until_sync(lambda: health.live().status == 503, what="live is 503")
            return health.live().body
        finally:
            seen.set()

    probing = asyncio.get_running_loop().run_in_executor(None, probe)
    seen.wait(20)  # blocks the loop

    body = await probing
    assert (body["live"], body["reason"]) == (False, "event_loop")
    await until(lambda: health.live().status == 200, what="it turns again")
    rota_app.stop()
    await working


async def test_a_lease_thread_that_stands_still_is_not_live_but_one_that_waits_for_the_database_is(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_SURE_SECONDS", 0.1)
    health = Health(rota_app, live_limit=1.0)
    working = asyncio.create_task(rota_app.work())
    await until(lambda: rota_app.workings and rota_app.workings[0].state == "running")
    (control,) = health._controls()
    go_on = threading.Event()

    monkeypatch.setattr(control._session, "rest", lambda *_: go_on.wait(20))
    await until(lambda: control.silent_for >= 1.0)
    assert health.live().status == 200  # it may have just woken up
    await until(lambda: health.live().body.get("reason") == "lease_thread", what="it is seen")
    monkeypatch.setattr(control._session, "asking", True)
    assert health.live().status == 200

    monkeypatch.undo()
    go_on.set()
    await until(lambda: health.live().status == 200)
    rota_app.stop()
    await working


@pytest.mark.direct("a pooler keeps connections to the server of its own")
async def test_ready_is_503_while_the_database_lets_nobody_in_and_comes_back_by_itself(rota_app: TestRota) -> None:
    health = Health(rota_app)
    assert (await health.ready()).well

    async def says(reason: str | None) -> bool:
        return (await health.ready()).body.get("reason") == reason

    with locked_out(rota_app.database.dsn.conninfo):
        await until(lambda: says("database"))
        assert health.live().status == 200
    await until(lambda: says(None))
    health.close()


@pytest.mark.direct("a pooler has roles of its own")
async def test_a_role_that_may_not_see_the_tables_finds_the_database_there_all_the_same(rota_app: TestRota) -> None:
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute("create role stranger_of_health login")
        try:
            health = Health(Rota(make_conninfo(rota_app.database.dsn.conninfo, user="stranger_of_health")))
            assert await answered(health) == READY
            health.close()
            await until(lambda: health._line._thread is None)
            health._reach.forget()
            admin.execute(f'revoke connect on database "{admin.info.dbname}" from public')
            assert await answered(health) == not_ready("database")  # but not if it is not even let in
            health.close()
        finally:
            admin.execute("drop role stranger_of_health")


@pytest.mark.direct("a pooler keeps connections to the server of its own")
async def test_a_connection_that_was_closed_meanwhile_says_nothing_of_the_database(rota_app: TestRota) -> None:
    health = Health(rota_app)
    assert (await health.ready()).well

    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name like 'rota:health@%'"
            " and datname = current_database()"
        )
    health._reach.forget()

    assert await answered(health) == READY
    health.close()


@pytest.mark.slow
async def test_a_lease_thread_that_waits_for_a_silent_database_is_live(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_SURE_SECONDS", 0.1)
    statuses = set[int]()
    with TcpProxy(rota_app.database.dsn.conninfo) as proxy:
        async with Rota(proxy.dsn(rota_app.database.dsn.conninfo)) as app:
            health = Health(app, live_limit=1.5)
            working = asyncio.create_task(app.work())
            await until(lambda: app.workings and app.workings[0].state == "running")
            (control,) = health._controls()
            lost = fact(app.facts, ControlLost, timeout=20)

            proxy.blackhole()
            await until(lambda: statuses.add(health.live().status) or lost._found.done(), timeout=20)
            proxy.heal()
            await until(lambda: control.may_act, timeout=20)
            app.stop()
            await working

    assert statuses == {200}


FORKING = """
import os, sys, time
from rota import Rota
from rota.runtime.health import Health

app = Rota(sys.argv[1])
health = Health(app)
assert health.ready_sync().well
app.close_sync()
# what the parent has asked for is answered to the parent alone
health._line._calls.put(lambda: time.sleep(1))
health._reach.forget()
health._reach.ask()
child = os.fork()
if child == 0:
    os._exit(0 if health.ready_sync().well else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code)
"""


def test_a_forked_child_asks_on_a_line_of_its_own(rota_database: str) -> None:
    forked = subprocess.run([sys.executable, "-c", FORKING, rota_database], timeout=60, check=False)

    assert forked.returncode == 0


def test_the_limit_of_live_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Rota("dbname=nowhere")
    assert Health(app).live_limit == 30

    for said, limit in (("5", 5.0), ("2m", 120.0)):
        monkeypatch.setenv("ROTA_LIVE_LIMIT", said)
        assert Health(app).live_limit == limit

    for wrong in ("0", "soon"):
        monkeypatch.setenv("ROTA_LIVE_LIMIT", wrong)
        with pytest.raises(ConfigurationError, match="ROTA_LIVE_LIMIT"):
            Health(app)
