"""What a scrape shows: what this process did, what the database says, and that nothing is dear or fails it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from psycopg_pool import ConnectionPool
from tests.pgbouncer import transaction_pooler

from rota import Discard, Retry, Rota, Snooze
from rota.facts import (
    ControlLost,
    ControlRestored,
    Facts,
    JobLost,
    JobSucceeded,
    LeadershipEnded,
    LeadershipGained,
    MemberJoined,
    MemberLeft,
    ScheduleBroken,
    ScheduleFired,
    ScheduleMissed,
    ScheduleSkipped,
    StandingBy,
)
from rota.integrations.counting import OTHERS, Counting
from rota.integrations.database_reading import DatabaseReader
from rota.integrations.metric_names import METRICS
from rota.integrations.prometheus import collector, exposition
from rota.jobs import depth
from rota.leases.term import Term
from rota.postgres.query import statement
from rota.postgres.session import Session
from rota.projections.checkpoint import declare_projection
from rota.runtime.health import health_of
from rota.service.watchdog import Lag, watched
from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """A port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def scraped(app: Rota) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of one scrape by name and labels."""
    _, body = exposition(app)
    families = text_string_to_metric_families(body.decode())
    return {(sample.name, frozenset(sample.labels.items())): sample.value for f in families for sample in f.samples}


def value(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def test_attempts_are_counted_by_queue_task_and_outcome(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.task(queue="mail", retry=Retry(attempts=2, base=0.0))
    async def send(kind: str) -> None:
        if kind == "fail":
            raise ValueError(kind)
        if kind == "snooze":
            raise Snooze("1h")
        if kind == "discard":
            raise Discard

    await rota_app.enqueue_many([send.bind(kind) for kind in ("ok", "ok", "fail", "snooze", "discard")])
    await rota_app.drain()
    rota_app.advance("1h")
    await rota_app.drain()
    samples = scraped(rota_app)

    def times(outcome: str) -> float | None:
        return value(samples, "rota_jobs_total", queue="mail", task=send.name, outcome=outcome)

    assert [times(outcome) for outcome in ("succeeded", "failed", "dead", "cancelled")] == [2, 1, 1, 1]
    assert (times("snoozed") or 0) >= 1
    count = value(samples, "rota_job_duration_seconds_count", queue="mail", task=send.name)
    assert count == value(samples, "rota_job_duration_seconds_bucket", queue="mail", task=send.name, le="+Inf")
    assert count is not None
    assert count >= 6


async def test_a_job_that_is_cancelled_before_its_first_attempt_is_counted_and_took_no_time(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.task(queue="mail")
    async def send() -> None: ...

    flow = await send.bind().then(send).enqueue()
    await flow.jobs[0].cancel()
    await rota_app.drain()
    samples = scraped(rota_app)

    assert value(samples, "rota_jobs_total", queue="mail", task=send.name, outcome="cancelled") == 1
    assert not value(samples, "rota_job_duration_seconds_count", queue="mail", task=send.name)


async def test_the_wait_is_from_when_it_was_due_to_when_it_was_taken(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.task
    async def work() -> None: ...

    await work.using(delay="30m").enqueue()
    rota_app.advance("40m")
    await rota_app.drain()

    waited = value(scraped(rota_app), "rota_job_wait_seconds_sum", queue="default", task=work.name)
    assert waited == pytest.approx(600, abs=30)


def test_what_others_wait_for_is_told_by_the_database(rota_app: TestRota, db: Db) -> None:
    collector(rota_app, cache=0)
    db.execute(
        "insert into rota.jobs (task, queue, priority, due_at) select 't', 'mail', n % 2, rota.now() - interval '90 seconds' "
        "from generate_series(1, 5) as n"
    )
    db.execute("insert into rota.jobs (task, queue, due_at) values ('t', 'later', rota.now() + interval '1 hour')")
    db.execute(
        "insert into rota.jobs (task, queue, state, token, member) values ('t', 'mail', 'running', 1, gen_random_uuid())"
    )
    db.execute(
        "insert into rota.dead (id, created_at, due_at, attempt, losses, priority, version, reason, queue, task, args) "
        "values (999, now(), now(), 1, 0, 0, 1, 'failed', 'mail', 't', '{}')"
    )

    samples = scraped(rota_app)

    assert value(samples, "rota_database_up") == 1
    assert value(samples, "rota_queue_depth", queue="mail", state="ready") == 5
    assert value(samples, "rota_queue_depth", queue="mail", state="running") == 1
    assert value(samples, "rota_queue_depth", queue="later", state="scheduled") == 1
    assert value(samples, "rota_queue_oldest_age_seconds", queue="mail") == pytest.approx(90, abs=20)
    assert value(samples, "rota_queue_oldest_age_seconds", queue="later") == 0
    assert value(samples, "rota_dead_letters") == 1
    assert value(samples, "rota_members") == 0
    assert value(samples, "rota_schedule_lag_seconds") == 0


def test_what_waits_in_lines_is_told_as_blocked_and_how_old_it_is(rota_app: TestRota, db: Db) -> None:
    collector(rota_app, cache=0, count_up_to=10)

    @rota_app.task(queue="mail", limit=1)
    async def send() -> None: ...

    for _ in range(15):
        send.enqueue_sync()
    db.execute("update rota.jobs set due_at = due_at - interval '90 seconds'")
    db.execute("insert into rota.jobs (task, queue, state, after) values ('t', 'later', 'blocked', 7)")

    samples = scraped(rota_app)

    assert value(samples, "rota_queue_depth", queue="mail", state="blocked") == 10
    assert value(samples, "rota_queue_depth", queue="later", state="blocked") == 1
    assert value(samples, "rota_queue_depth", queue="mail", state="ready") == 0
    assert value(samples, "rota_queue_oldest_age_seconds", queue="mail") == pytest.approx(90, abs=20)
    assert value(samples, "rota_queue_oldest_age_seconds", queue="later") == 0


def test_counts_end_at_their_bound_and_the_help_says_so(rota_app: TestRota, db: Db) -> None:
    collector(rota_app, cache=0, count_up_to=10)
    db.execute("insert into rota.jobs (task, queue) select 't', 'mail' from generate_series(1, 25)")

    _, body = exposition(rota_app)

    assert 'rota_queue_depth{queue="mail",state="ready"} 10.0' in body.decode()
    assert re.search(r"# HELP rota_queue_depth .*up to a bound, 10 ", body.decode())


def test_many_queues_share_the_bound_so_that_a_backlog_in_all_of_them_is_told_in_time(
    rota_app: TestRota, db: Db
) -> None:
    collector(rota_app, cache=0, count_up_to=40)
    db.execute(
        "insert into rota.jobs (task, queue, due_at) select 't', 'customer-' || i % 40, now() - interval '1 minute' "
        "from generate_series(1, 40 * 30) as i"
    )

    samples = scraped(rota_app)

    depths = [value(samples, "rota_queue_depth", queue=f"customer-{i}", state="ready") for i in range(40)]
    assert depths == [20] * 40
    assert value(samples, "rota_queue_oldest_age_seconds", queue="customer-7") == pytest.approx(60, abs=20)


def test_a_queue_of_the_app_that_is_empty_is_told_as_empty(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.task(queue="mail")
    async def send() -> None: ...

    @rota_app.every("1h", name="tick", queue="clock")
    async def tick() -> None: ...

    samples = scraped(rota_app)

    for queue in ("mail", "clock"):
        depths = [
            value(samples, "rota_queue_depth", queue=queue, state=state)
            for state in ("ready", "scheduled", "blocked", "running")
        ]
        assert depths == [0, 0, 0, 0]
        assert value(samples, "rota_queue_oldest_age_seconds", queue=queue) == 0


def test_queues_of_the_app_come_first_and_the_others_beyond_the_bound_become_one(rota_app: TestRota, db: Db) -> None:
    collector(rota_app, cache=0)

    @rota_app.task(queue="zebra")
    async def last_by_name() -> None: ...

    db.execute(
        "insert into rota.jobs (task, queue, due_at) "
        "select 't', 'customer-' || lpad(n::text, 4, '0'), rota.now() - n * interval '1 second' from generate_series(1, 1100) as n"
    )
    db.execute(
        "insert into rota.jobs (task, queue, priority) select 't', 'zebra', n % 2 from generate_series(1, 400) as n"
    )
    db.execute(
        "insert into rota.jobs (task, queue, state, token, member) "
        "values ('t', 'customer-1100', 'running', 1, gen_random_uuid()), ('t', 'zebra', 'running', 1, gen_random_uuid())"
    )

    samples = scraped(rota_app)

    def ready(queue: str) -> float | None:
        return value(samples, "rota_queue_depth", queue=queue, state="ready")

    assert (ready("zebra"), ready("customer-0199"), ready("customer-0200")) == (400, 1, None)
    assert ready(OTHERS) == 1000 - 2 - 199  # of a thousand lanes, two are of the app
    assert value(samples, "rota_queue_depth", queue="zebra", state="running") == 1
    assert value(samples, "rota_queue_depth", queue=OTHERS, state="running") == 1
    assert value(samples, "rota_queue_oldest_age_seconds", queue=OTHERS) == pytest.approx(998, abs=20)
    assert len({dict(labels)["queue"] for name, labels in samples if name == "rota_queue_depth"}) == 201


def test_many_queues_of_others_leave_the_bound_of_the_apps_own_as_it_is(rota_app: TestRota, db: Db) -> None:
    collector(rota_app, cache=0, count_up_to=40)

    @rota_app.task(queue="mail")
    async def send() -> None: ...

    db.execute(
        "insert into rota.jobs (task, queue) select 't', 'customer-' || i % 40 from generate_series(1, 40 * 30) as i"
    )
    db.execute("insert into rota.jobs (task, queue) select 't', 'mail' from generate_series(1, 100)")

    samples = scraped(rota_app)

    depths = [value(samples, "rota_queue_depth", queue=queue, state="ready") for queue in ("mail", "customer-1")]
    assert depths == [40, 20]


def test_a_schedule_that_is_overdue_shows_as_lag(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.task
    async def work() -> None: ...

    rota_app.schedules.put_sync("often", task=work, every="1m")
    rota_app.advance("10m")

    lag = value(scraped(rota_app), "rota_schedule_lag_seconds")
    assert lag is not None
    assert 500 < lag <= 600


def test_an_old_transaction_shows_as_the_age_of_the_oldest_xmin(rota_app: TestRota, rota_database: str) -> None:
    collector(rota_app, cache=0)
    with psycopg.connect(rota_database) as old:
        began = time.monotonic()
        old.execute("select txid_current()")

        first = value(scraped(rota_app), "rota_db_oldest_xmin_age_seconds")
        second = value(scraped(rota_app), "rota_db_oldest_xmin_age_seconds")

    assert first is not None
    assert second is not None
    assert 0 < first < second <= time.monotonic() - began + 0.5


async def test_pollers_show_what_they_did_and_what_is_left(rota_app: TestRota, db: Db) -> None:
    db.execute("create table feeds (id bigint primary key, polled_at timestamptz)")
    db.execute("insert into feeds select n, now() - interval '2 hours' from generate_series(1, 5) as n")

    @rota_app.poller(table="feeds", last="polled_at", interval="1h", name="fetch")
    async def fetch(row: dict[str, Any]) -> None:
        if row["id"] == 1:
            raise ValueError("no")

    collector(rota_app, cache=0)
    before = scraped(rota_app)
    await fetch.run_once(3)
    db.execute("insert into rota.poll_claims (poller, key, parked_at) values ('fetch', '[5]', now())")
    after = scraped(rota_app)

    assert value(before, "rota_poller_backlog_rows", poller="fetch") == 5
    assert value(before, "rota_poller_oldest_due_seconds", poller="fetch") == pytest.approx(3600, abs=60)
    assert (value(after, "rota_poller_errors_total", poller="fetch") or 0) >= 1
    assert (value(after, "rota_poller_claimed_total", poller="fetch") or 0) >= 3
    assert value(after, "rota_poller_backlog_rows", poller="fetch") == 0
    assert value(after, "rota_poller_parked_rows", poller="fetch") == 1
    assert value(after, "rota_database_up") == 1


def test_a_poller_whose_table_is_gone_leaves_all_else_as_it_is(rota_app: TestRota, db: Db) -> None:
    db.execute("create table feeds (id bigint primary key, polled_at timestamptz)")

    @rota_app.poller(table="feeds", last="polled_at", interval="1h", name="fetch")
    async def fetch(row: dict[str, Any]) -> None: ...

    collector(rota_app, cache=0)
    assert value(scraped(rota_app), "rota_poller_backlog_rows", poller="fetch") == 0
    db.execute("drop table feeds")
    samples = scraped(rota_app)

    assert value(samples, "rota_poller_backlog_rows", poller="fetch") is None
    assert value(samples, "rota_members") == 0
    assert (value(samples, "rota_database_up"), value(samples, "rota_database_counted")) == (1, 0)


def test_projections_show_how_far_they_are_behind_their_state_and_what_is_parked(rota_app: TestRota, db: Db) -> None:
    db.execute(
        "create table happened (id bigint primary key, xid xid8, said jsonb not null, at timestamptz not null default now())"
    )
    db.execute("insert into happened (id, said) values (1, '{}'), (2, '{}')")  # older than the column
    db.execute(
        "insert into happened (id, xid, said) select n, pg_current_xact_id(), '{}' from generate_series(3, 5) as n"
    )
    table = rota_app.event_table("happened", position="id", xid="xid", data="said", created_at="at")
    orders = rota_app.event_log("orders")
    for name, source in (("fed", table), ("totals", orders), ("sums", orders)):

        @rota_app.projection(name, source=source)
        async def handler(event: Any, connection: Any) -> None: ...

        rota_app.database.run_sync(declare_projection(name, 1, handler.definition.told()))
    for _ in range(12):
        orders.append_sync("a", "Paid", {})
    db.execute("update rota.events set created_at = now() - interval '90 seconds'")
    db.execute("update rota.projections set state = 'stopped' where name = 'totals'")
    db.execute("insert into rota.projections (name, version, definition) values ('of others', 3, '{}')")
    db.execute("insert into rota.projections (name, version, definition, state) values ('totals', 7, '{}', 'retired')")
    db.execute(
        "insert into rota.parked_events (projection, version, order_xid, position, attempts, error_type, error_message, error_trace) "
        "select 'totals', 1, '3', n, 1, 'E', '', '' from generate_series(1, 12) as n"
    )
    collector(rota_app, cache=0, count_up_to=10)

    samples = scraped(rota_app)

    def told(metric: str, name: str = "totals", **labels: str) -> float | None:
        return value(samples, f"rota_projection_{metric}", **({"projection": name, "version": "1"} | labels))

    assert [told("lag_events", name) for name in ("totals", "sums", "fed")] == [10, 10, 5]
    assert told("lag_seconds") == pytest.approx(90, abs=30)
    assert told("lag_seconds", "fed") == pytest.approx(0, abs=60)
    assert [told("state", state=state) for state in ("running", "paused", "stopped")] == [0, 0, 1]
    assert told("state", "of others", version="3", state="running") == 1
    assert told("lag_events", "of others", version="3") is None
    assert told("state", version="7", state="running") is None
    assert (told("parked_events"), told("parked_events", "sums")) == (10, 0)
    assert value(samples, "rota_database_counted") == 1


def test_projections_that_read_from_one_log_cost_a_scrape_two_statements(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = rota_app.event_log("orders")
    for number in range(5):

        @rota_app.projection(f"totals-{number}", source=orders)
        async def handler(event: Any, connection: Any) -> None: ...

    asked: list[str] = []
    for kind in (Session, type(rota_app.database)):
        run = kind.run

        async def counted(self: Any, query: Any, run: Any = run) -> Any:
            asked.append(query.statement.name)
            return await run(self, query)

        monkeypatch.setattr(kind, "run", counted)
    collector(rota_app, cache=0)

    scraped(rota_app)

    assert [name for name in asked if name in ("projection_states", "count_behind")] == [
        "projection_states",
        "count_behind",
    ]


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes statements of `rota.jobs.depth` take longer than anyone waits."""

    def slow(*names: str) -> None:
        for name in names:
            known = getattr(depth, name)
            monkeypatch.setattr(depth, name, statement(known.name, "select 'x', pg_sleep(60), 0"))

    return slow


@pytest.mark.parametrize("slow", [["DEPTHS"], ["OPEN_LETTERS", "DEPTHS", "RUNNING"]], ids=["one", "several"])
def test_a_count_that_takes_too_long_is_missing_and_no_other_number_is(
    rota_app: TestRota, db: Db, slowly: Callable[..., None], slow: list[str]
) -> None:
    collector(rota_app, cache=0)
    db.execute("insert into rota.jobs (task, queue, due_at) values ('t', 'mail', rota.now() - interval '90 seconds')")
    slowly(*slow)

    began = time.monotonic()
    samples = scraped(rota_app)
    took = time.monotonic() - began

    assert (value(samples, "rota_database_up"), value(samples, "rota_database_counted")) == (1, 0)
    assert value(samples, "rota_queue_depth", queue="mail", state="ready") is None
    assert value(samples, "rota_queue_oldest_age_seconds", queue="mail") == pytest.approx(90, abs=20)
    assert value(samples, "rota_members") == 0
    assert took < 5.5  # two seconds in all, and not for each


def test_a_scrape_through_a_transaction_pooler_tells_the_same_and_leaves_nothing_behind(
    rota_app: TestRota, rota_database: str, db: Db, tmp_path: Path, slowly: Callable[..., None]
) -> None:
    db.execute("insert into rota.jobs (task, queue) select 't', 'mail' from generate_series(1, 5)")
    asleep = "select count(*) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid() and state = 'active'"
    with transaction_pooler(rota_database, tmp_path, size=1) as pooled:
        app = Rota(pooled)
        collector(app, cache=0)
        first = scraped(app)
        slowly("DEPTHS")
        second = scraped(app)
        with psycopg.connect(pooled, autocommit=True) as next_client:
            left = [next_client.execute(f"show {name}").fetchone() for name in ("statement_timeout", "enable_seqscan")]

    assert (value(first, "rota_database_up"), value(first, "rota_database_counted")) == (1, 1)
    assert value(first, "rota_queue_depth", queue="mail", state="ready") == 5
    assert (value(second, "rota_database_up"), value(second, "rota_database_counted")) == (1, 0)
    assert value(second, "rota_dead_letters") == 0
    assert left == [("0",), ("on",)]
    assert db.execute(asleep).fetchone() == (0,)


def test_a_pool_of_the_users_that_is_exhausted_keeps_no_metric_and_no_probe_from_answering(rota_database: str) -> None:
    with ConnectionPool(rota_database, min_size=1, max_size=1) as pool, pool.connection():
        app = Rota(rota_database, pool=pool)
        collector(app, cache=0)

        began = time.monotonic()
        samples, live, ready = scraped(app), health_of(app).live(), health_of(app).ready_sync()
        took = time.monotonic() - began

        health_of(app).close()

    assert (value(samples, "rota_database_up"), value(samples, "rota_database_counted")) == (1, 1)
    assert value(samples, "rota_pool_available", pool="app") == 0
    assert (live.status, ready.status) == (200, 200)
    assert took < 20  # a pool waits for thirty


def test_a_database_that_is_away_leaves_the_process_its_numbers() -> None:
    app = Rota("host=127.0.0.1 port=1 dbname=nowhere")
    collector(app, cache=0)
    app.facts.emit(JobSucceeded(1, "t", "q", 1, 0.5))

    samples = scraped(app)

    assert value(samples, "rota_database_up") == 0
    assert value(samples, "rota_database_counted") is None
    assert value(samples, "rota_members") is None
    assert value(samples, "rota_jobs_total", queue="q", task="t", outcome="succeeded") == 1


def test_a_database_that_never_answers_costs_a_scrape_its_patience_and_no_more() -> None:
    with silent_server() as port:
        app = Rota(f"host=127.0.0.1 port={port} dbname=nowhere")
        collector(app, cache=0, patience=0.2)

        began = time.monotonic()
        samples = scraped(app)
        took = time.monotonic() - began

    assert value(samples, "rota_database_up") == 0
    assert took < 10


def test_who_does_not_wait_for_the_whole_reading_has_what_was_read_so_far(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = DatabaseReader(rota_app, cache=60, patience=1, most=10)
    release = threading.Event()

    async def stuck(*_: Any) -> int:
        return int(release.wait(20))

    monkeypatch.setattr(reader, "_read_tables", stuck)
    told = reader.told()
    release.set()

    assert (told.up, told.counted, told.members, told.letters) == (True, False, 0, 0)


def test_several_scrapes_share_a_reading(rota_app: TestRota, db: Db) -> None:
    reader = DatabaseReader(rota_app, cache=60, patience=5, most=10)
    told: list[Any] = []
    threads = [threading.Thread(target=lambda: told.append(reader.told())) for _ in range(5)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    db.execute("insert into rota.jobs (task) values ('t')")

    assert all(each is told[0] for each in (*told, reader.told()))
    assert told[0].up
    assert told[0].counted
    assert told[0].depths == {}


def test_no_connection_is_held_between_scrapes(rota_app: TestRota, db: Db) -> None:
    collector(rota_app, cache=0)
    scraped(rota_app)

    shown = "select count(*) from pg_stat_activity where application_name like 'rota:metrics%' and datname = current_database()"
    asyncio.run(until(lambda: db.execute(shown).fetchone() == (0,), what="the connections of the scrape are gone"))


def test_a_process_can_leave_the_database_to_others(rota_app: TestRota) -> None:
    collector(rota_app, database=False)

    samples = scraped(rota_app)

    assert value(samples, "rota_database_up") is None
    assert value(samples, "rota_jobs_stuck_total") == 0


def test_an_app_with_a_pool_and_no_address_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROTA_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    app = Rota(pool=ConnectionPool(open=False))
    collector(app, cache=0)
    monkeypatch.setattr(app, "_address", lambda: pytest.fail("it would have started a server"))

    assert value(scraped(app), "rota_database_up") is None


def test_who_leads_and_how_often_that_changed() -> None:
    counting = Counting(facts := Facts())

    facts.emit(StandingBy("b", "other"))
    facts.emit(LeadershipGained("a", 1))
    facts.emit(LeadershipEnded("a", 1, "resigned", "resigned"))
    facts.emit(LeadershipGained("a", 2))

    assert counting.leading() == {"a": 1, "b": 0}
    assert counting.named("leader_changes") == {"a": 2}


def test_slots_count_as_many_as_there_were() -> None:
    counting = Counting(facts := Facts())

    for fact in (ScheduleFired("s", 3), ScheduleFired("s", 2), ScheduleSkipped("s", 4), ScheduleMissed("s", 7)):
        facts.emit(fact)

    told = [counting.named(f"schedule_{what}") for what in ("fired", "skipped", "missed")]
    assert told == [{"s": 5}, {"s": 4}, {"s": 7}]


def test_control_that_is_lost_shows_until_it_is_back() -> None:
    counting = Counting(facts := Facts())
    before = counting.state("control")
    facts.emit(ControlLost(None, "cut"))
    lost = counting.state("control")
    facts.emit(ControlRestored(uuid4()))

    assert (before, lost, counting.state("control")) == (None, 0, 1)


def test_a_process_that_left_has_no_lease_to_lose() -> None:
    counting = Counting(facts := Facts())
    facts.emit(MemberJoined(member := uuid4(), "web"))
    joined = counting.state("control")
    facts.emit(MemberLeft(member))

    assert (joined, counting.state("control")) == (1, None)


def test_what_has_not_happened_yet_is_told_as_nothing(rota_app: TestRota) -> None:
    """Prometheus sees no growth in a series that begins at one."""
    collector(rota_app, database=False)

    @rota_app.task(name="send", queue="mail")
    async def send() -> None: ...

    @rota_app.every("1h", name="tick")
    async def tick() -> None: ...

    @rota_app.singleton("indexer")
    async def index(term: Term) -> None: ...

    rota_app.facts.emit(ScheduleFired("s", 1))
    samples = scraped(rota_app)

    assert value(samples, "rota_jobs_total", queue="mail", task="send", outcome="dead") == 0
    assert value(samples, "rota_schedule_missed_total", schedule="s") == 0
    assert value(samples, "rota_schedule_broken_total", schedule="tick") == 0
    assert value(samples, "rota_singleton_failures_total", resource="indexer") == 0


def test_a_schedule_that_was_declared_wrongly_fails_no_scrape(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.cron("nonsense", name="wrong")
    async def wrong() -> None: ...

    samples = scraped(rota_app)

    assert value(samples, "rota_database_up") == 1
    assert value(samples, "rota_schedule_broken_total", schedule="wrong") == 0


def test_a_schedule_that_was_put_at_run_time_has_its_zeros_before_anything_happens_to_it(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)

    @rota_app.task
    async def work() -> None: ...

    rota_app.schedules.put_sync("customer 7", task=work, every="1m")
    before = scraped(rota_app)
    rota_app.facts.emit(ScheduleBroken("customer 7", "no such task"))
    after = scraped(rota_app)

    broken = [value(samples, "rota_schedule_broken_total", schedule="customer 7") for samples in (before, after)]
    assert broken == [0, 1]


def test_names_without_end_become_one() -> None:
    counting = Counting(facts := Facts(), most=3)

    for number in range(10):
        facts.emit(JobSucceeded(1, f"task {number}", "q", 1, 0.1))
        facts.emit(JobLost(1, f"task {number}", "q", 1, uuid4(), "queued", "gone"))
        facts.emit(ScheduleFired(f"s {number}", 1))
        facts.emit(LeadershipGained(f"l {number}", 1))

    jobs = counting.jobs()
    assert set(jobs) == {("q", "task 0"), ("q", "task 1"), ("q", "task 2"), (OTHERS, OTHERS)}
    assert jobs[OTHERS, OTHERS].outcomes == {"succeeded": 7, "lost": 7}
    assert counting.named("schedule_fired") == {"s 0": 1, "s 1": 1, "s 2": 1, OTHERS: 7}
    assert len(counting.leading()) == 3


def test_pools_tell_of_themselves(rota_app: TestRota) -> None:
    collector(rota_app, cache=0)
    rota_app.members_sync()

    samples = scraped(rota_app)

    assert (value(samples, "rota_pool_size", pool="app") or 0) >= 1
    assert (value(samples, "rota_pool_requests_total", pool="app") or 0) >= 1
    assert value(samples, "rota_pool_wait_seconds_total", pool="app") is not None


async def test_whoever_watches_the_loop_says_how_late_it_is(rota_app: TestRota) -> None:
    collector(rota_app, database=False)
    assert value(scraped(rota_app), "rota_loop_lag_seconds") is None
    with watched(rota_app.facts):
        assert (value(scraped(rota_app), "rota_loop_lag_seconds") or 0.0) >= 0
        assert value(scraped(rota_app), "rota_loop_lag_seconds") is not None


def test_a_loop_that_was_late_between_two_scrapes_shows(rota_app: TestRota, monkeypatch: pytest.MonkeyPatch) -> None:
    collector(rota_app, database=False)
    late = SimpleNamespace(lag=Lag(last=0.0, longest=2.5))
    monkeypatch.setattr("rota.integrations.prometheus.watchdogs", lambda _: [late])

    assert value(scraped(rota_app), "rota_loop_lag_seconds") == 2.5


def test_every_number_is_one_that_was_announced_with_its_labels(rota_app: TestRota, db: Db) -> None:
    db.execute("insert into rota.jobs (task) values ('t')")
    made = collector(rota_app, cache=0)
    rota_app.facts.emit(JobSucceeded(1, "t", "q", 1, 0.5, 0.1))
    rota_app.facts.emit(LeadershipGained("a", 1))

    for family in made.collect():
        for sample in family.samples:
            metric = next(metric for metric in METRICS.values() if sample.name in metric.samples)
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert sample.name.endswith("_total") == (metric.kind == "counter")


def test_registering_it_asks_the_database_nothing_and_a_second_call_gives_the_same() -> None:
    app = Rota("host=127.0.0.1 port=1 dbname=nowhere")
    registry = CollectorRegistry(auto_describe=True)

    registry.register(collector(app))
    reader = collector(app)._reader

    assert collector(app) is collector(app)
    assert reader is not None
    assert reader._read_at == float("-inf")
    assert collector(app) not in REGISTRY._collector_to_names


def test_a_scraper_gets_the_format_it_asks_for(rota_app: TestRota) -> None:
    collector(rota_app, database=False)

    plain, _ = exposition(rota_app)
    modern, body = exposition(rota_app, "application/openmetrics-text; version=1.0.0")

    assert plain.startswith("text/plain")
    assert modern.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert b"process_resident_memory_bytes" in body
