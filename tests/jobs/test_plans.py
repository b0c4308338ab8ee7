"""What the queue's statements read, with a million jobs waiting and a million settled.

PostgreSQL itself tells, by auto_explain: also of the statements inside functions, and as workers run them, prepared and with
the planner's settings of their sessions. None may read more than its batch is worth, whatever the statistics say of the
tables: that nothing waits, as after a quiet night, that nothing runs, as after a large import, nothing at all, or the truth.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from tests.jobs.statements import CHANNEL, LIVE, Db, ask, join, put, unique

from rota.failure import Failure
from rota.integrations.database_reading import _PLANNING as _READING
from rota.jobs.cancel import cancel_jobs, discard_jobs, end_cancelled, find_unwanted
from rota.jobs.chores import find_chores
from rota.jobs.claim import (
    ClaimedJob,
    claim,
    claim_suspect,
    give_back_claim,
)
from rota.jobs.depth import count_open_letters, count_running, lane_heads, queue_depths
from rota.jobs.enqueue import enqueue_many
from rota.jobs.facets import count_jobs
from rota.jobs.glance import glance
from rota.jobs.job import NewJob, Owner
from rota.jobs.lanes import Lane, Start, find_lanes
from rota.jobs.outcome import Retried, Succeeded
from rota.jobs.report import report_progress, save_checkpoint
from rota.jobs.rescue import rescue
from rota.jobs.search import JobsFound, search_jobs
from rota.jobs.settle import find_settled, settle, succeed, succeed_one
from rota.jobs.tally import COUNT
from rota.jobs.trends import _series
from rota.jobs.wanted import Wanted
from rota.jobs.worker import _PLANNING
from rota.leases.connect import _CONTROL_SETTINGS
from rota.leases.members import leave_member
from rota.postgres.look import look
from rota.postgres.query import Query, Steps, nothing
from rota.schedules.history import list_runs
from rota.schedules.timeline import draw_timeline
from rota.testing import DatabaseServer

pytestmark = [pytest.mark.one_server, pytest.mark.long, pytest.mark.timeout(180)]

ROWS = 1_000_000
# Each needs a filled database of its own, so by default one is tried; `make plans` tries them all.
STATISTICS = ["true"]
if os.environ.get("ROTA_ALL_PLANS"):
    STATISTICS = ["when nothing waited", "before anything ran", "none", "true"]
RUNNING = 20_000
MEMBERS = 200  # with a hundred jobs each
ENDED = 50  # members, who hold nothing
MARKED = 50  # of what runs is to be cancelled
QUEUES = ("a", "b", "c")
PRIORITIES = (5, 0, -3)
LANES = len(QUEUES) * len(PRIORITIES)
BATCH = 100
EXPLAIN = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_level": "notice",
}
NOBODY = cast(Owner, None)
READING = dict(_READING)
FAILURE = Failure("ValueError", "no", "trace")


WAITING = """
    insert into rota.jobs (task, queue, priority, due_at, created_at, unique_key)
    select 't', (%(queues)s::text[])[1 + n %% 3], (%(priorities)s::smallint[])[1 + n / 3 %% 3],
           clock.now + (n - 900000) * interval '1 second', clock.now,
           case when n %% 10 = 0 then rota.unique_digest('t', n::text) end
    from generate_series(1, %(rows)s) as n, (select now()) as clock(now)
"""
SETTLED = """
    insert into rota.history (
        id, created_at, due_at, claimed_at, started_at, finished_at, token, attempt, losses, priority, version, member,
        state, queue, task, args
    )
    select n, clock.now, clock.now, clock.now, clock.now, clock.now + n %% 4 * interval '1 day', n, 1, 0, 0, 1, clock.id,
           'succeeded', 'a', 't', '{}'
    from generate_series(2000001, 2000000 + %(rows)s) as n, (select now(), gen_random_uuid()) as clock(now, id)
"""
RUNNING_ONLY = """
    insert into rota.jobs (task, state, token, member)
    select 't', 'running', 1, gen_random_uuid() from generate_series(1, 1000)
"""
# the oldest run; some in the middle were lost before; some that run are to be cancelled
UNDER_WAY = """
    update rota.jobs
    set state = 'running', token = id, attempt = 1, claimed_at = now(), member = lpad(to_hex(id % 200), 32, '0')::uuid
    where id <= 20000;
    update rota.jobs set losses = 1 where id between 500001 and 500500;
    update rota.jobs set cancel_requested_at = now() where id <= 50
"""


@pytest.fixture(scope="module")
def large(rota_server: DatabaseServer) -> Iterator[str]:
    """A database with a million jobs in nine lanes, of which a tenth is not due yet, and a million settled ones.

    Its statistics are from a time when all there was was running.
    """
    with rota_server.database() as dsn, psycopg.connect(dsn, autocommit=True) as db:
        if db.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() != (True,):
            pytest.skip("only a superuser may load auto_explain")
        db.execute(
            "create or replace function rota.now() returns timestamptz language sql stable parallel safe "
            "return statement_timestamp()"
        )
        leaves = [
            name for (name,) in db.execute("select relid::text from pg_partition_tree('rota.history') where isleaf")
        ]
        for table in ("rota.jobs", *leaves):
            db.execute(f"alter table {table} set unlogged")
            db.execute(f"alter table {table} set (autovacuum_enabled = off)")
        db.execute(RUNNING_ONLY)
        db.execute("analyze rota.jobs; delete from rota.jobs; alter sequence rota.jobs_id_seq restart")
        with without_indexes(db, "rota.jobs"):
            db.execute(WAITING, {"queues": list(QUEUES), "priorities": list(PRIORITIES), "rows": ROWS})
        db.execute(SETTLED, {"rows": ROWS})
        for number in range(MEMBERS + ENDED):
            join(db, UUID(int=number))
        db.execute("update rota.members set ended_at = now(), end_reason = 'left' where id >= %s", [UUID(int=MEMBERS)])
        db.execute(UNDER_WAY)
        db.execute("vacuum rota.jobs")
        yield dsn


@contextmanager
def without_indexes(db: Db, table: str) -> Iterator[None]:
    """They are made faster than they grow."""
    indexes = db.execute(
        "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index "
        "where indrelid = %s::regclass and not indisprimary",
        [table],
    ).fetchall()
    for name, _ in indexes:
        db.execute(f"drop index {name}")
    yield
    for _, definition in indexes:
        db.execute(definition)


@pytest.fixture(scope="module", params=STATISTICS)
def statistics(large: str, request: pytest.FixtureRequest) -> str:
    """What the planner knows of the tables, or takes for true. In this order: they begin with the first."""
    with psycopg.connect(large, autocommit=True) as db:
        if request.param == "before anything ran":
            db.execute("update rota.jobs set state = 'queued', token = null, member = null where state = 'running'")
            db.execute("analyze rota.jobs; analyze rota.history")
            db.execute(UNDER_WAY)
            db.execute("vacuum rota.jobs")
        if request.param == "none":
            db.execute("delete from pg_statistic where starelid::regclass::text like 'rota.%'")
        if request.param == "true":
            db.execute("analyze rota.jobs; analyze rota.history")
    return str(request.param)


@dataclass(frozen=True)
class Reading:
    """What a statement read of the large tables."""

    told: Any
    #: by which indexes, or which tables as a whole
    ways: set[str]
    #: rows that it looked at, wanted or not
    rows: int
    pages: int


class Session:
    """A session in which statements are run, undone, and what they read of these tables is told."""

    def __init__(self, dsn: str, settings: Mapping[str, str], tables: tuple[str, ...] = ("jobs", "history")) -> None:
        self._tables = tables
        self._plans: list[dict[str, Any]] = []
        self.db = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
        self.db.execute("load 'auto_explain'")
        for name, value in {**EXPLAIN, "statement_timeout": "20s", **settings}.items():
            self.db.execute("select set_config(%s, %s, false)", [name, value])
        self.db.add_notice_handler(self._note)

    def _note(self, notice: Any) -> None:
        self._plans.append(json.loads(notice.message_primary.partition("plan:")[2])["Plan"])

    def reading(self, query: Query[Any]) -> Reading:
        with self.db.transaction(force_rollback=True):
            self._plans.clear()
            told = ask(self.db, query)
        return self._read(told)

    def looking(self, steps: Steps[Any]) -> Reading:
        """The same for someone who looks, in several statements."""
        with self.db.transaction(force_rollback=True):
            self._plans.clear()
            told = drive(self.db, look(steps))
        return self._read(told)

    def _read(self, told: Any) -> Reading:
        ways: set[str] = set()
        rows, pages = 0.0, 0
        for node in (node for plan in self._plans for node in nodes(plan)):
            name = node.get("Relation Name", "")
            rows += node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
            index = node.get("Index Name", "")  # the part of a bitmap scan that reads the index names no table
            if "Scan" in node["Node Type"] and (name or index).startswith(self._tables) and node["Actual Loops"]:
                removed = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
                ways |= {way(node)} - {""}
                rows += (node["Actual Rows"] + removed) * node["Actual Loops"]
                pages += node["Shared Hit Blocks"] + node["Shared Read Blocks"]
        return Reading(told, ways, round(rows), pages)

    def settled_reading(self, query: Query[Any]) -> Reading:
        """What it reads when it has been run so often that its plan no longer depends on its parameters."""
        for _ in range(6):
            self.reading(query)
        return self.reading(query)


def drive(db: Db, steps: Steps[Any]) -> Any:
    answer: Any = None
    while True:
        try:
            answer = ask(db, steps.send(answer))
        except StopIteration as end:
            return end.value


def way(node: dict[str, Any]) -> str:
    """The index by which a node reads, or that it reads all; nothing if another node has read the index for it."""
    if node["Node Type"] == "Bitmap Heap Scan":
        return ""
    # each partition has an index of its own
    return re.sub("^history.*_id_idx.*", "history_id", node.get("Index Name") or f"all of {node['Relation Name']}")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.fixture(scope="module")
def worker(large: str, statistics: str) -> Iterator[Session]:
    session = Session(large, _PLANNING)
    yield session
    session.db.close()


@pytest.fixture(scope="module")
def app(large: str, statistics: str) -> Iterator[Session]:
    session = Session(large, {})
    yield session
    session.db.close()


def held(id: int) -> ClaimedJob:
    """A job that runs, as its holder knows it."""
    return ClaimedJob(id, "a", "t", 0, 1, 0, 0.0, "{}", id)


MINE = UUID(int=7)
HELD = [held(id) for id in range(MINE.int, RUNNING, MEMBERS)]
TASKS = {"s": 1, "t": 2}
ALL_LANES = [(Lane(queue, priority, 0.0), None) for priority in PRIORITIES for queue in QUEUES]


def claiming(**changed: Any) -> Query[Any]:
    return claim(**{"lanes": ALL_LANES, "tasks": TASKS, "limit": BATCH, "token": 1, "member": MINE, **changed})


def test_finding_the_lanes_costs_the_same_however_much_waits_in_them(worker: Session) -> None:
    read = worker.reading(find_lanes(None))

    assert len(read.told.lanes) == LANES
    # there may be nothing in these, or in the index of lines
    assert (
        {"jobs_claimable", "jobs_suspect"}
        <= read.ways
        <= {"jobs_claimable", "jobs_suspect", "jobs_joining", "lines_ready"}
    )
    assert read.rows <= 3 * LANES  # of each its first job, and the first that is not due
    assert read.pages <= 50 * LANES


def test_finding_the_lanes_of_a_queue_reads_nothing_of_the_others(worker: Session) -> None:
    read = worker.reading(find_lanes(["aa", "d"]))

    assert read.told.lanes == []
    assert (read.rows, read.pages <= 20) == (0, True)


@pytest.mark.parametrize("queues", [None, ["a", "d"]], ids=["all", "some"])
def test_a_glance_reads_the_first_of_each_lane(large: str, statistics: str, queues: list[str] | None) -> None:
    session = Session(large, _CONTROL_SETTINGS)
    read = session.reading(glance(queues, UUID(int=MEMBERS)))
    session.db.close()

    assert read.told.due_in < 0
    assert not read.told.chores
    assert read.ways <= {"jobs_claimable", "jobs_joining", "jobs_held", "jobs_cancelling", "lines_ready"}
    assert read.rows <= 2 * LANES + MARKED
    assert read.pages <= 50 * LANES


@pytest.mark.parametrize("settings", [READING, {}], ids=["as metrics ask", "behind a pooler"])
def test_how_much_waits_is_counted_to_a_bound_in_each_lane(
    large: str, statistics: str, settings: dict[str, str]
) -> None:
    session = Session(large, settings)
    heads = session.reading(lane_heads(["a", "nowhere"]))
    read = session.reading(queue_depths(heads.told, most=BATCH))
    session.db.close()

    assert sorted((head.queue, head.priority) for head in heads.told) == sorted(
        (queue, priority) for queue in QUEUES for priority in PRIORITIES
    )
    assert heads.ways == {"jobs_claimable"}
    assert heads.rows <= 2 * LANES  # one queue is passed twice
    assert {queue: (depth.ready, depth.scheduled) for queue, depth in read.told.items()} == {
        queue: (BATCH * len(PRIORITIES), BATCH * len(PRIORITIES)) for queue in QUEUES
    }
    assert read.ways == {"jobs_claimable"}
    assert read.rows <= 2 * BATCH * LANES
    assert read.pages <= 3 * BATCH * LANES


def test_how_much_runs_is_counted_to_a_bound(large: str, statistics: str) -> None:
    session = Session(large, READING)
    running, letters = session.reading(count_running(most=BATCH)), session.reading(count_open_letters(most=BATCH))
    session.db.close()

    assert sum(running.told.values()) == BATCH
    assert running.ways <= {"jobs_held"}
    assert running.rows <= BATCH
    assert letters.told == 0


def test_a_claim_walks_one_index_and_reads_what_it_takes(worker: Session) -> None:
    read = worker.reading(claiming())

    assert len(read.told) == BATCH
    assert read.ways == {"jobs_claimable", "jobs_pkey"}
    assert read.rows <= 2 * BATCH  # each once to choose it and once to take it
    assert read.pages <= 8 * BATCH


def test_a_claim_that_goes_on_in_the_middle_of_its_lanes_reads_no_more(worker: Session) -> None:
    (read,) = [worker.reading(claiming(lanes=[(lane, start) for lane, _ in ALL_LANES])) for start in middle(worker)]

    assert len(read.told) == BATCH
    assert read.ways == {"jobs_claimable", "jobs_pkey"}
    assert read.rows <= 2 * BATCH
    assert read.pages <= 8 * BATCH


def middle(session: Session) -> list[Start]:
    return [Start(*row) for row in session.db.execute("select due_at, id from rota.jobs where id = 450000")]


def test_a_claim_of_lanes_with_nothing_due_reads_nothing(worker: Session) -> None:
    (start,) = [Start(*row) for row in worker.db.execute("select due_at, id from rota.jobs where id = 990000")]

    read = worker.reading(claiming(lanes=[(lane, start) for lane, _ in ALL_LANES]))

    assert read.told == []
    assert read.rows == 0
    assert read.pages <= 10 * LANES


def test_a_suspect_is_found_by_an_index_of_its_own(worker: Session) -> None:
    read = worker.reading(claim_suspect(queues=None, most_losses=9, tasks=TASKS, token=1, member=MINE))

    assert len(read.told) == 1
    assert read.ways == {"jobs_suspect", "jobs_pkey"}
    assert read.rows <= 2
    assert read.pages <= 50


def test_success_is_written_down_by_the_ids_of_the_batch(worker: Session) -> None:
    read = worker.reading(succeed([Succeeded(job, None, 0.1) for job in HELD]))

    assert len(read.told) == BATCH
    assert read.ways == {"jobs_pkey"}
    assert read.rows <= BATCH
    assert read.pages <= 6 * BATCH


def test_the_success_of_one_job_is_written_down_by_its_id(worker: Session) -> None:
    read = worker.reading(succeed_one(7, 7, None, 0.1))

    assert read.told
    assert (read.ways, read.rows) == ({"jobs_pkey"}, 1)


def test_other_outcomes_are_written_down_by_the_ids_of_the_batch(worker: Session) -> None:
    read = worker.reading(settle([Retried(job, FAILURE, 0.1, 1.0) for job in HELD], CHANNEL))

    assert len(read.told) == BATCH
    assert read.ways == {"jobs_pkey"}
    assert read.rows <= 2 * BATCH  # each once to lock it and once to move it
    assert read.pages <= 12 * BATCH


def test_outcomes_on_record_are_found_by_the_ids_of_the_batch(worker: Session) -> None:
    read = worker.reading(find_settled([held(2_000_001 + 7 * n) for n in range(BATCH)]))

    assert len(read.told) == BATCH
    assert read.ways == {"history_id"}
    assert read.rows <= BATCH
    assert read.pages <= 20 * BATCH  # each partition has an index of its own


def test_what_nobody_wants_any_more_is_found_by_the_ids_of_what_runs_here(worker: Session) -> None:
    read = worker.reading(find_unwanted([(job.id, job.token) for job in HELD]))

    assert read.told.cancelled == {(7, 7)}
    assert read.ways == {"jobs_pkey"}
    assert read.rows <= BATCH
    assert read.pages <= 6 * BATCH


def test_a_rescue_with_nothing_to_rescue_reads_nothing_of_what_runs(worker: Session) -> None:
    read = worker.reading(rescue(CHANNEL))

    assert read.told == []
    assert read.ways == {"jobs_held"}
    assert read.rows == 0
    assert read.pages <= 4 * ENDED


def test_a_rescue_reads_what_the_ended_member_held(worker: Session) -> None:
    with worker.db.transaction(force_rollback=True):
        ask(worker.db, leave_member(MINE))
        read = worker.reading(rescue(CHANNEL))

    assert len(read.told) == BATCH
    assert read.ways == {"jobs_held", "jobs_pkey"}
    assert read.rows <= 3 * BATCH
    assert read.pages <= 12 * BATCH + 4 * ENDED


def test_what_a_member_holds_is_found_by_the_member(worker: Session) -> None:
    given_back = worker.reading(give_back_claim(MINE, 7))

    assert given_back.told == 1
    assert given_back.ways == {"jobs_held"}
    assert given_back.rows <= BATCH
    assert given_back.pages <= 3 * BATCH


def test_a_look_for_chores_reads_what_the_member_holds_and_what_is_marked(worker: Session) -> None:
    read = worker.reading(find_chores(MINE))

    assert (read.told.lost, read.told.closings, len(read.told.held)) == (False, False, BATCH)
    assert read.ways == {"jobs_held", "jobs_cancelling"}
    assert read.rows <= BATCH + MARKED
    assert read.pages <= 4 * BATCH + 4 * ENDED


def test_a_look_for_what_is_to_be_cancelled_and_runs_nowhere_reads_only_what_is_marked(worker: Session) -> None:
    read = worker.reading(end_cancelled())

    assert read.ways == {"jobs_cancelling"}
    assert read.rows <= MARKED


def test_what_an_attempt_reports_is_written_by_its_id(worker: Session) -> None:
    for query in (report_progress(7, 7, 0.5, None), save_checkpoint(7, 7, "1")):
        read = worker.reading(query)

        assert read.told is True
        assert (read.ways, read.rows) == ({"jobs_pkey"}, 1)


def test_enqueuing_reads_no_other_job(app: Session) -> None:
    plain = app.settled_reading(put(NewJob("t", "{}")))
    many = app.settled_reading(enqueue_many([NewJob("t", "{}")] * BATCH, "rota", NOBODY))

    assert (plain.rows, many.rows) == (0, 0)


@pytest.mark.parametrize("states", [LIVE, (*LIVE, "succeeded")], ids=["live", "settled too"])
def test_a_unique_job_is_put_by_looking_up_its_key(app: Session, states: tuple[str, ...]) -> None:
    new, there = unique("new", states=states), unique("500000", states=states)
    replacing = unique("500000", states=states, conflict="replace")

    for job, existing in ((new, False), (there, True), (replacing, True)):
        read = app.settled_reading(put(job))

        assert [each.existing for each in read.told] == [existing]
        assert read.ways <= {"jobs_unique", "jobs_pkey", "history_id"}
        assert read.rows <= 100  # with what earlier tests have put and rolled back under the same key
        assert read.pages <= 100


@pytest.mark.parametrize("ends", [cancel_jobs, discard_jobs], ids=["cancel", "discard"])
def test_jobs_are_ended_by_their_ids(app: Session, ends: Any) -> None:
    half_running = list(range(RUNNING - BATCH // 2, RUNNING + BATCH // 2))

    read = app.settled_reading(ends(half_running, None, CHANNEL))

    assert len(read.told) == BATCH
    assert read.ways == {"jobs_pkey"}
    assert read.rows <= 4 * BATCH
    assert read.pages <= 12 * BATCH


REACH = 5_000


@pytest.mark.parametrize(
    ("wanted", "found", "rows"),
    [
        # each twice: to find where the walk ends, and to look
        (Wanted(), BATCH, 6 * 2_000),
        (Wanted(task="nothing"), 0, 6 * REACH),
        (Wanted(state="queued", queue="nowhere"), 0, 2 * REACH),
        # where the planner knows nothing of the tables, each once more
        (Wanted(state="succeeded", paths=("user",), values=("1",)), 0, 3 * REACH),
        (Wanted(state="dead"), 0, 0),
        (Wanted(error="no such thing"), 0, 0),
        (Wanted(since=timedelta(hours=1), task="nothing"), 0, 6 * REACH),
        (Wanted(until=timedelta(hours=1)), 0, 300),
    ],
    ids=str,
)
def test_a_search_reads_no_more_than_its_reach(app: Session, wanted: Wanted, found: int, rows: int) -> None:
    read = app.looking(search_jobs(wanted, NOBODY, limit=BATCH, reach=REACH))

    assert len(read.told.jobs) == found
    assert read.rows <= rows + BATCH  # and one of each partition at its end
    assert not [way for way in read.ways if way.startswith("all of")]


def test_what_runs_is_searched_by_its_index(app: Session) -> None:
    read: Reading = app.looking(search_jobs(Wanted(state="running", member=MINE), NOBODY, limit=BATCH, reach=RUNNING))

    page: JobsFound = read.told
    assert len(page.jobs) == BATCH
    assert read.ways <= {"jobs_held"}
    assert read.rows <= 2.1 * RUNNING  # to count them, and to look at them


def test_a_count_reads_no_more_than_its_reach_and_what_runs(app: Session) -> None:
    read = app.looking(count_jobs(Wanted(), reach=REACH))

    assert not read.told.exact
    # all of the newest have settled
    assert read.told.states == {"running": REACH, "succeeded": REACH}
    assert read.rows <= 6 * REACH + RUNNING


OFTEN = """
    insert into rota.schedules (name, task, kind, every, next_slot, next_at)
    select 'often-' || n, 't', 'every', '1m', now() + interval '1 minute', now() + interval '1 minute'
    from generate_series(1, 20) as n
"""
SLOTS = """
    insert into rota.slots (schedule, slot_at, cause, job_id)
    select 'often-' || n, now() - slot * interval '1 minute', 'due', 2000000 + 4 * (n * 100 + slot)
    from generate_series(1, 20) as n, generate_series(1, 50) as slot
"""


def test_runs_of_schedules_are_looked_up_and_not_joined_with_all_that_has_settled(app: Session) -> None:
    with app.db.transaction(force_rollback=True):
        app.db.execute(OFTEN)
        app.db.execute(SLOTS)
        timeline = app.looking(draw_timeline(most=20))
        runs = app.reading(list_runs("often-7", limit=50, after=None))

    assert sum(run.state == "succeeded" for lane in timeline.told.lanes for run in lane.past) == 1000
    assert timeline.rows <= 1000
    assert [run.state for run in runs.told] == ["succeeded"] * 50
    assert runs.rows <= 50


def test_a_trend_reads_tallies_and_no_jobs(app: Session) -> None:
    read = app.looking(_series("6h", None, None, None, None))

    assert len(read.told.buckets) >= 72
    assert (read.rows, read.ways) == (0, set())


def test_counting_a_minute_reads_the_partition_of_the_day(app: Session) -> None:
    now = datetime.now(UTC)

    read = app.reading(COUNT.query({"since": now - timedelta(minutes=3), "until": now}, read=nothing))

    assert read.rows <= ROWS / 2  # around midnight of two days
