from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from rota.errors import ConfigurationError
from rota.jobs.retention import Retention, Upkeep, declare_retention, list_retention, read_retention, upkeep
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.keys import lock_key
from rota.postgres.query import Query
from rota.postgres.schema import migrate
from rota.testing import TestRota

Db = psycopg.Connection[Any]

KEY = lock_key("rota", "lock", "upkeep")
MANY = 5001  # one more than upkeep moves from a net while others wait
IDLE = Upkeep(created=0, dropped=0, deleted=0, forgotten=0, hindered=[], unfinished=False)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    """A database where it is noon, so that no test meets midnight."""
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute(
            "update rota.test_clock set shift = date_trunc('day', now(), 'UTC') + interval '1 day 12 hours' - now()"
        )
        keep(connection)
        yield connection


@pytest.fixture
def other(rota_database: str) -> Iterator[Db]:
    """Another session, in a transaction."""
    with psycopg.connect(rota_database) as connection:
        yield connection


def ask(db: Db, query: Query[Any], schema: str = "rota") -> Any:
    cursor = db.execute(query.statement.sql(schema), query.params)
    return query.read(cursor.fetchall() if cursor.description else [])


def keep(db: Db, schema: str = "rota") -> Upkeep:
    """Rounds of upkeep until nothing is left to do, and what they did together."""
    rounds: list[Upkeep] = [ask(db, upkeep(KEY), schema)]
    while rounds[-1].unfinished:
        rounds.append(ask(db, upkeep(KEY), schema))
    return Upkeep(
        created=sum(one.created for one in rounds),
        dropped=sum(one.dropped for one in rounds),
        deleted=sum(one.deleted for one in rounds),
        forgotten=sum(one.forgotten for one in rounds),
        hindered=rounds[-1].hindered,
        unfinished=False,
    )


def settle(db: Db, count: int = 1, *, retention: str | None = None, result: str | None = None) -> None:
    db.execute(
        "insert into rota.history "
        "(id, created_at, due_at, attempt, losses, priority, version, state, queue, task, args, retention, result) "
        "select n, rota.now(), rota.now(), 1, 0, 0, 1, 'succeeded', 'default', 't', '{}', %s, %s "
        "from generate_series(1, %s) as n",
        [retention, result, count],
    )


def fail(db: Db) -> None:
    db.execute("insert into rota.attempts (job_id, attempt, outcome) values (1, 1, 'failed')")


def declare(db: Db, **classes: Any) -> None:
    ask(db, declare_retention(read_retention(classes)))


def rows(db: Db, table: str) -> list[Any]:
    return db.execute(f"select * from rota.{table}").fetchall()


def column(db: Db, sql: str) -> list[Any]:
    return [value for (value,) in db.execute(sql).fetchall()]


def homes(db: Db, table: str = "history") -> dict[str, int]:
    """How many rows are in which partition, named by the days from today to its first one."""
    found = db.execute(
        "select replace(there.named, to_char(rota.now() at time zone 'UTC', 'YYYYMMDD'), 'today'), count(*) "
        f"from (select tableoid::regclass::text as named from rota.{table}) as there group by 1 order by 1"
    )
    return {name.removeprefix("rota."): count for name, count in found.fetchall()}


def days(db: Db, timeline: str) -> list[tuple[int, int]]:
    """The bounds of the partitions in days from today."""
    return db.execute(
        "select (from_at at time zone 'UTC')::date - today, (to_at at time zone 'UTC')::date - today "
        "from rota.partitions(%s::regclass), (select (rota.now() at time zone 'UTC')::date as today) as clock order by 1",
        [f"rota.{timeline}"],
    ).fetchall()


def test_a_new_database_begins_with_partitions_for_today_and_three_more_days(rota_database: str, db: Db) -> None:
    migrate(Connector(Dsn(rota_database), "test"), "fresh")

    for timeline in ("history_standard", "attempts"):
        bounds = db.execute(
            "select from_at - day, to_at - day from fresh.partitions(%s::regclass), "
            "(select date_trunc('day', max(applied_at), 'UTC') as day from fresh.migrations) as applied order by 1",
            [f"fresh.{timeline}"],
        ).fetchall()
        assert bounds == [(timedelta(n), timedelta(n + 1)) for n in range(4)]


def test_what_settles_goes_to_the_partition_of_its_day(db: Db) -> None:
    settle(db)
    settle(db, retention="standard")
    fail(db)

    assert homes(db) == {"history_standard_today": 2}
    assert homes(db, "attempts") == {"attempts_today": 1}


def test_partitions_are_made_ahead_day_by_day(rota_app: TestRota, db: Db) -> None:
    assert days(db, "history_standard")[-4:] == [(0, 1), (1, 2), (2, 3), (3, 4)]

    rota_app.advance("1d")
    done = keep(db)

    assert done == Upkeep(created=2, dropped=0, deleted=0, forgotten=0, hindered=[], unfinished=False)
    for timeline in ("history_standard", "attempts"):
        assert days(db, timeline)[-5:] == [(-1, 0), (0, 1), (1, 2), (2, 3), (3, 4)]


def test_partitions_are_dropped_once_all_they_hold_has_reached_its_age(rota_app: TestRota, db: Db) -> None:
    settle(db, 3)
    fail(db)

    rota_app.advance("7d")
    keep(db)
    before = homes(db), homes(db, "attempts")
    rota_app.advance("1d")
    done = keep(db)

    assert [sum(there.values()) for there in before] == [3, 1]
    assert done.dropped > 0
    assert done.deleted == 0
    assert rows(db, "history") == rows(db, "attempts") == []
    assert days(db, "history_standard")[0] >= (-8, -7)


def test_a_partition_has_the_indexes_of_its_parent(db: Db) -> None:
    attached = db.execute(
        "select parent.relname, bool_and(index.indisvalid), count(*) "
        "from pg_class as parent join pg_inherits on inhparent = parent.oid join pg_index as index on indexrelid = inhrelid "
        "where parent.relname in ('history_standard_id_idx', 'history_standard_finished_at_idx', 'attempts_job') "
        "group by 1 order by 1"
    ).fetchall()

    partitions = len(days(db, "history_standard")) + 1
    assert attached == [
        (name, True, partitions)
        for name in ("attempts_job", "history_standard_finished_at_idx", "history_standard_id_idx")
    ]


def test_what_settles_on_a_day_without_a_partition_lands_in_the_net_and_is_deleted_by_age(
    rota_app: TestRota, db: Db
) -> None:
    rota_app.advance("30d")
    settle(db, 2)
    fail(db)
    assert homes(db) == {"history_standard_rest": 2}

    rota_app.advance("5d")
    keep(db)
    assert homes(db) == {"history_standard_rest": 2}
    rota_app.advance("3d")
    done = keep(db)

    assert done.deleted == 3
    assert rows(db, "history") == rows(db, "attempts") == []


def test_the_first_upkeep_after_a_long_pause_moves_what_is_in_the_net_already(rota_app: TestRota, db: Db) -> None:
    rota_app.advance("30d")
    settle(db, 2)
    fail(db)

    keep(db)

    assert homes(db) == {"history_standard_today": 2}
    assert homes(db, "attempts") == {"attempts_today": 1}
    assert days(db, "history_standard") == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_net_that_will_be_large_has_partitions_beside_it_until_it_has_aged(rota_app: TestRota, db: Db) -> None:
    rota_app.advance("30d")
    settle(db, MANY)

    keep(db)

    assert homes(db) == {"history_standard_rest": MANY}
    assert days(db, "history_standard") == [(day, day + 1) for day in range(1, 11)]


def test_a_large_net_is_drained_in_several_rounds(rota_app: TestRota, db: Db) -> None:
    rota_app.advance("30d")
    settle(db, MANY)
    rota_app.advance("8d")

    first = ask(db, upkeep(KEY))

    assert (first.deleted, first.unfinished) == (MANY - 1, True)
    assert keep(db).deleted == 1


def test_nothing_is_attached_beside_a_net_too_large_to_be_searched(rota_app: TestRota, db: Db) -> None:
    rota_app.advance("30d")
    settle(db)

    _, _, _, _, hindered, unfinished = db.execute("select * from rota.upkeep(%s, net_limit => 0)", [KEY]).fetchone()  # type: ignore[misc]

    assert ["history_standard_rest is too large" in reason for reason in hindered] == [True]
    assert homes(db) == {"history_standard_rest": 1}
    assert max(days(db, "history_standard")) < (0, 0)
    assert unfinished  # what nothing was in the way of was done


def test_classes_are_kept_apart(rota_app: TestRota, db: Db) -> None:
    declare(db, audit="60d", brief="1h", standard="2d")
    keep(db)
    for retention in (None, "audit", "brief"):
        settle(db, retention=retention)
    assert homes(db) == {"history_audit_today": 1, "history_brief_today": 1, "history_standard_today": 1}

    left = []
    for step in ("1d", "2d", "57d", "3d"):
        rota_app.advance(step)
        keep(db)
        left.append(column(db, "select coalesce(retention, 'none') from rota.history order by 1"))

    assert left == [["audit", "none"], ["audit"], ["audit"], []]


def test_attempts_are_kept_as_long_as_any_class(rota_app: TestRota, db: Db) -> None:
    declare(db, audit="30d")
    fail(db)

    rota_app.advance("29d")
    keep(db)
    kept = len(rows(db, "attempts"))
    rota_app.advance("3d")
    keep(db)

    assert kept == 1
    assert rows(db, "attempts") == []


def test_what_is_kept_long_has_few_partitions(rota_app: TestRota, db: Db) -> None:
    declare(db, audit="365d")
    keep(db)
    assert days(db, "history_audit") == [(0, 12)]

    rota_app.advance("10d")
    keep(db)

    assert days(db, "history_audit") == [(-10, 2), (2, 14)]


def test_a_class_that_is_kept_for_longer_from_now_on_goes_on_after_its_last_partition(
    rota_app: TestRota, db: Db
) -> None:
    declare(db, standard="90d")
    rota_app.advance("1d")
    keep(db)

    assert days(db, "history_standard")[-4:] == [(0, 1), (1, 2), (2, 3), (3, 6)]


def test_jobs_that_settled_before_their_class_was_declared_are_moved_to_it(db: Db) -> None:
    settle(db, 3, retention="audit")
    settle(db, retention="unheard_of")
    assert homes(db) == {"history_rest": 4}

    declare(db, audit="30d")
    keep(db)

    assert homes(db) == {"history_audit_today": 3, "history_rest": 1}


def test_a_class_of_which_much_has_settled_stays_in_the_net_and_is_kept_all_the_same(
    rota_app: TestRota, db: Db
) -> None:
    settle(db, MANY, retention="audit")
    declare(db, audit="30d")

    done = keep(db)
    rota_app.advance("29d")
    keep(db)
    kept = homes(db)
    rota_app.advance("2d")
    keep(db)

    assert ["class audit" in reason for reason in done.hindered] == [True]
    assert kept == {"history_rest": MANY}
    assert rows(db, "history") == []
    assert days(db, "history_audit") == [(0, 1), (1, 2), (2, 3), (3, 4)]  # now that there is nothing to move


def test_a_class_that_nobody_declared_is_kept_like_the_standard_one(rota_app: TestRota, db: Db) -> None:
    declare(db, audit="30d")
    settle(db, retention="unheard_of")

    rota_app.advance("6d")
    keep(db)
    kept = homes(db)
    rota_app.advance("2d")
    keep(db)

    assert kept == {"history_rest": 1}
    assert rows(db, "history") == []


def test_a_class_whose_table_would_have_a_taken_name_stays_in_the_net(db: Db) -> None:
    declare(db, with_result="30d")  # there is an index of this name
    settle(db, retention="with_result")

    assert keep(db) == IDLE
    assert homes(db) == {"history_rest": 1}


def test_results_are_forgotten_while_their_jobs_stay(rota_app: TestRota, db: Db) -> None:
    declare(db, audit=Retention("30d", results="1d"), with_result=Retention("30d", results="1d"))
    settle(db, retention="audit", result="1")  # to history_rest, and moved
    keep(db)
    for retention in (None, "audit", "with_result", "unheard_of"):
        settle(db, retention=retention, result="2")
    rota_app.advance("23h")
    assert keep(db).forgotten == 0

    rota_app.advance("2h")
    settle(db, retention="audit", result="3")
    done = keep(db)

    assert done.forgotten == 3
    assert done.deleted == 0
    assert sorted(column(db, "select coalesce(retention, 'none') from rota.history where result is not null")) == [
        "audit",
        "none",
        "unheard_of",
    ]
    assert len(rows(db, "history")) == 6


def test_results_in_the_net_of_a_class_are_forgotten_too(rota_app: TestRota, db: Db) -> None:
    declare(db, standard=Retention("7d", results="1d"))
    rota_app.advance("30d")
    settle(db, MANY, result="1")
    rota_app.advance("25h")

    first = ask(db, upkeep(KEY))
    second = keep(db)

    assert (first.forgotten, first.unfinished) == (MANY - 1, True)
    assert second.forgotten == 1
    assert column(db, "select count(*) from rota.history where result is null") == [MANY]


def test_dead_letters_are_pruned_a_month_after_they_were_resolved_and_never_before(rota_app: TestRota, db: Db) -> None:
    db.execute(
        "insert into rota.dead (id, created_at, due_at, attempt, losses, priority, version, reason, queue, task, args, "
        "resolved_at, resolution) select n, rota.now(), rota.now(), 1, 0, 0, 1, 'failed', 'default', 't', '{}', "
        "case when n = 2 then rota.now() end, case when n = 2 then 'acknowledged' end from generate_series(1, 2) as n"
    )

    rota_app.advance("29d")
    keep(db)
    before = column(db, "select id from rota.dead order by id")
    rota_app.advance("3650d")
    done = keep(db)

    assert before == [1, 2]
    assert column(db, "select id from rota.dead") == [1]
    assert done.deleted == 1


def test_keys_of_unique_jobs_are_pruned_once_nothing_minds_them(rota_app: TestRota, db: Db) -> None:
    db.execute("insert into rota.jobs (task) values ('t')")
    db.execute(
        "insert into rota.uniques (key, job_id, keep_until) select gen_random_uuid(), job_id, rota.now() + keep "
        "from (values (0, null), (1, null), (2, null), (3, interval '2 hours'), (4, interval '2 days')) as row(job_id, keep)"
    )
    db.execute("insert into rota.uniques (key, job_id, keep_until) values (gen_random_uuid(), 5, 'infinity')")

    left = []
    for step in ("59m", "2m", "2h"):
        rota_app.advance(step)
        keep(db)
        left.append(column(db, "select job_id from rota.uniques order by 1"))

    # 1 is live, and the last two are remembered for longer
    assert left == [[0, 1, 2, 3, 4, 5], [1, 3, 4, 5], [1, 4, 5]]


def test_a_key_that_someone_is_about_to_use_is_not_pruned(rota_app: TestRota, db: Db, other: Db) -> None:
    db.execute("insert into rota.uniques (key, job_id) values (gen_random_uuid(), 2)")
    rota_app.advance("2h")
    other.execute("select from rota.uniques for update")

    assert keep(db) == IDLE
    other.rollback()
    assert keep(db).deleted == 1


def test_many_stale_keys_are_pruned_in_several_rounds(rota_app: TestRota, db: Db) -> None:
    db.execute("insert into rota.uniques (key, job_id) select gen_random_uuid(), 2 from generate_series(1, 20000)")
    rota_app.advance("2h")

    first = ask(db, upkeep(KEY))
    keep(db)

    assert 5000 <= first.deleted <= 10000
    assert first.unfinished
    assert len(rows(db, "uniques")) < 2000


def test_the_audit_log_is_kept_for_400_days(db: Db) -> None:
    db.execute(
        "insert into rota.audit (at, actor, action) "
        "select now() - days * interval '1 day', 'me', 'retried' from unnest('{401, 399, 0}'::integer[]) as days"
    )

    assert keep(db).deleted == 1
    assert len(rows(db, "audit")) == 2


def test_only_one_runs_at_a_time_and_others_return_at_once(rota_app: TestRota, db: Db, other: Db) -> None:
    rota_app.advance("1d")
    ask(other, upkeep(KEY))

    meanwhile = ask(db, upkeep(KEY))
    other.rollback()

    assert meanwhile is None
    assert keep(db).created == 2


def test_an_idle_upkeep_writes_nothing(rota_app: TestRota, db: Db) -> None:
    declare(db, audit=Retention("30d", results="1d"))
    keep(db)
    for retention in (None, "audit", "unheard_of"):
        settle(db, retention=retention, result="1")

    with db.transaction():
        assert ask(db, upkeep(KEY)) == IDLE
        declare(db, audit=Retention("30d", results="1d"))
        assert column(db, "select pg_current_xact_id_if_assigned()") == [None]


def test_an_upkeep_that_meets_a_reader_of_the_history_leaves_it_to_the_next_time(
    rota_app: TestRota, db: Db, other: Db
) -> None:
    settle(db)
    fail(db)
    rota_app.advance("8d")
    other.execute("select from rota.history")

    began = time.monotonic()
    hindered = keep(db)
    took = time.monotonic() - began
    other.rollback()
    after = keep(db)

    assert took < 20  # and not until the reader is done
    assert [reason.partition(":")[0] for reason in hindered.hindered] == [
        "adding partitions to rota.history_standard",
        "dropping partitions of rota.history_standard",
    ]
    assert rows(db, "attempts") == []  # what nobody locked was kept up all the same
    assert (after.created, after.hindered) == (4, [])
    assert rows(db, "history") == []


def test_jobs_settle_while_an_upkeep_waits_for_a_lock(
    rota_database: str, rota_app: TestRota, db: Db, other: Db
) -> None:
    rota_app.advance("8d")
    other.execute("select from rota.history")

    with ThreadPoolExecutor(1) as thread, psycopg.connect(rota_database, autocommit=True) as connection:
        running = thread.submit(keep, connection)
        slowest = 0.0
        while not running.done():
            began = time.monotonic()
            settle(db)
            slowest = max(slowest, time.monotonic() - began)

    assert running.result().hindered
    assert slowest < 1


def test_jobs_settle_while_they_are_given_partitions(rota_database: str, rota_app: TestRota, db: Db) -> None:
    declare(db, standard="3650d", audit="3650d")
    stop = threading.Event()

    def work() -> int:
        settled = 0
        with psycopg.connect(rota_database, autocommit=True) as connection:
            while not stop.is_set():
                settle(connection)
                settle(connection, retention="audit")
                fail(connection)
                settled += 1
        return settled

    with ThreadPoolExecutor(3) as threads:
        workers = [threads.submit(work) for _ in range(3)]
        for _ in range(10):
            rota_app.advance("200d")  # beyond the last partition, so that they settle in the net meanwhile
            keep(db)
        stop.set()

    settled = sum(worker.result() for worker in workers)
    assert len(rows(db, "history")) == 2 * settled
    assert len(rows(db, "attempts")) == settled


@pytest.mark.long
def test_settled_jobs_are_found_at_every_moment_while_they_are_given_partitions(
    rota_database: str, rota_app: TestRota, db: Db
) -> None:
    """One who reads has learnt which partitions there are, and waits for the net while its rows move to a new one."""
    names = [f"class{n}" for n in range(12)]
    for name in names:
        settle(db, retention=name)
    there = len(names)
    stop = threading.Event()

    def read() -> list[int]:
        found = set()
        # planned each time: a plan that is kept is checked once its locks are taken
        with psycopg.connect(rota_database, autocommit=True, prepare_threshold=None) as connection:
            while not stop.is_set():
                found.add(column(connection, "select count(*) from rota.history where id = 1")[0])
        return sorted(found)

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        try:
            for name in names:
                declare(db, **{name: "30d"})
                keep(db)
        finally:
            stop.set()

    assert [reader.result() for reader in readers] == [[there]] * 3


@pytest.fixture
def few_rights(rota_database: str) -> Iterator[Callable[[str], str]]:
    """A schema `owned` by someone who is no superuser, and one who may do nothing but ask for its upkeep."""
    suffix = uuid4().hex[:8]
    owner, worker = f"owner_{suffix}", f"worker_{suffix}"
    with psycopg.connect(rota_database, autocommit=True) as admin:
        admin.execute(f"create role {owner} login; create role {worker} login")
        admin.execute(f"create schema owned authorization {owner}")
        migrate(Connector(Dsn(make_conninfo(rota_database, user=owner)), "test"), "owned")
        admin.execute(f"grant usage on schema owned to {worker}")
        yield lambda role: make_conninfo(rota_database, user=f"{role}_{suffix}")
        admin.execute(f"drop owned by {owner}, {worker} cascade; drop role {owner}, {worker}")


@pytest.mark.direct("it lets in one user only")
def test_upkeep_needs_no_right_but_to_ask_for_it(few_rights: Callable[[str], str], rota_database: str) -> None:
    with psycopg.connect(rota_database, autocommit=True) as admin:
        admin.execute("insert into owned.retention values ('audit', '30 days')")
        with psycopg.connect(few_rights("worker"), autocommit=True) as worker:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="upkeep"):
                ask(worker, upkeep(KEY), "owned")
            admin.execute(f"grant execute on function owned.upkeep to {worker.info.user}")

            assert keep(worker, "owned").created == 4
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("create table owned.mine ()")


def test_functions_with_the_rights_of_their_owner_find_only_what_the_owner_means(db: Db) -> None:
    pinned = dict(
        db.execute(
            "select proname, 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}')) "
            "from pg_proc where pronamespace = 'rota'::regnamespace and prosecdef"
        ).fetchall()
    )

    assert "upkeep" in pinned
    assert all(pinned.values()), pinned


@pytest.mark.parametrize("schema", ["Rota", 'quo"te', "100%", "it's", "$$", "a.b", "{schema}", "%I %s", "x" * 63])
@pytest.mark.long
def test_upkeep_works_in_a_schema_of_any_name(rota_database: str, db: Db, schema: str) -> None:
    migrate(Connector(Dsn(rota_database), "test"), schema)
    ask(db, declare_retention(read_retention({"audit": Retention("60d", results="1d")})), schema)

    done = keep(db, schema)

    assert done == Upkeep(created=2, dropped=0, deleted=0, forgotten=0, hindered=[], unfinished=False)
    assert keep(db, schema) == IDLE
    assert db.execute(
        SQL("select count(*) from {schema}.partitions({table}::regclass)").format(
            schema=Identifier(schema), table=Identifier(schema, "history_audit").as_string(db)
        )
    ).fetchone() == (2,)


def test_sessions_with_odd_settings_keep_the_same_days(rota_app: TestRota, db: Db) -> None:
    db.execute("set timezone = 'Pacific/Kiritimati'; set datestyle = 'SQL, DMY'; set standard_conforming_strings = off")
    rota_app.advance("1d")

    assert keep(db).created == 2
    assert days(db, "history_standard")[-5:] == [(-1, 0), (0, 1), (1, 2), (2, 3), (3, 4)]


def test_declaring_changes_the_classes_it_names_and_no_others(db: Db) -> None:
    declare(db, audit=Retention("365d", results="1d"), brief="1h")
    declare(db, audit="30d", standard="14d")

    assert ask(db, list_retention()) == {
        "audit": Retention(timedelta(days=30)),
        "brief": Retention(timedelta(hours=1)),
        "standard": Retention(timedelta(days=14)),
    }


def test_a_database_begins_with_the_standard_class(db: Db) -> None:
    assert ask(db, list_retention()) == {"standard": Retention(timedelta(days=7))}


def test_a_bare_duration_is_that_of_the_history() -> None:
    audit = Retention("365d", results="1d")

    assert read_retention({"standard": "7d", "audit": audit}) == {"standard": Retention("7d"), "audit": audit}


def test_all_that_cannot_work_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_retention({"Audit": "7d", "brief": "59m", "long": "101w 36500d", "soon": "soon", "fine": "1d"})

    message = str(refused.value)
    assert [name in message for name in ("'Audit'", "'brief'", "'long'", "'soon'", "'fine'")] == [True] * 4 + [False]


def test_a_lone_duration_names_no_class() -> None:
    with pytest.raises(ConfigurationError, match="'standard': '7d'"):
        read_retention("7d")  # type: ignore[arg-type]


@pytest.mark.parametrize("results", ["0s", "59s", "8d", -1])
def test_a_result_is_kept_for_a_minute_or_more_and_no_longer_than_its_job(results: Any) -> None:
    with pytest.raises(ConfigurationError, match="results is"):
        Retention("7d", results=results)


ODD_CLASSES = ["", "Audit", "a b", "a-b", 'a"b', "a'b", "%s", "ä", "x" * 41, "a\n", "rest", "audit_rest", "a_20250101"]  # fmt: skip


@pytest.mark.parametrize("name", ODD_CLASSES)
def test_odd_class_names_are_refused_here_and_there(db: Db, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a class"):
        read_retention({name: "7d"})
    with pytest.raises(psycopg.errors.CheckViolation):
        ask(db, declare_retention({name: Retention()}))


@pytest.mark.parametrize("name", ["a", "x" * 40, "7d", "_", "restful", "arrest", "a20250101", "select"])
@pytest.mark.long
def test_any_other_name_has_its_tables(db: Db, name: str) -> None:
    declare(db, **{name: "7d"})

    assert keep(db) == Upkeep(created=4, dropped=0, deleted=0, forgotten=0, hindered=[], unfinished=False)
    assert len(days(db, f'"history_{name}"')) == 4
