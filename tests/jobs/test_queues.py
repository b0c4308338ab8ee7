"""Queues as rows: what is seen of them, and what someone says about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.jobs.test_explain import _rows_read, add, join

from rota import ConfigurationError
from rota.jobs import queue_view
from rota.jobs.queue_view import QueueView
from rota.jobs.source import JobSource
from rota.jobs.worker import Worker, WorkerSettings
from rota.postgres.notify import wake_channel
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Db = psycopg.Connection[Any]

RUNNING = {"state": "running", "member": UUID(int=1), "token": 1, "attempt": 1, "claimed_at": "2024-01-01 UTC"}


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def row(db: Db, name: str, columns: str) -> Any:
    return db.execute(f"select {columns} from rota.queues where name = %s", [name]).fetchone()


def audit(db: Db) -> list[tuple[str, str, dict[str, Any]]]:
    return db.execute("select actor, action, details from rota.audit order by id").fetchall()


def begin(db: Db, queue: str, count: int) -> None:
    """Have so many of its jobs begun, as a worker under a rate counts them."""
    add(db, count, queue=queue)
    member = join(db)
    db.execute(
        "select from rota.claim_flow(%s, '{0}', '{f}', '{-infinity}', '{0}', '{t}', '{1}', '{}', %s, 0, 1, %s)",
        [[queue], count, member],
    )


def names(views: Any) -> list[str | None]:
    return [view.name for view in views]


def test_every_queue_that_anyone_knows_of_is_listed(rota_app: TestRota, db: Db) -> None:
    rota_app.task(name="t", queue="declared")(lambda: None)
    join(db, queues=["taken"])
    join(db, "gone:1", queues=["forgotten"], lease=-1)
    add(db, 2, queue="mail")
    add(db, 1, queue="mail", priority=5, due_at="2999-01-01 UTC")
    db.execute("insert into rota.lines (id, task) values (%s, 't')", [UUID(int=7)])
    add(db, 3, queue="mail", state="blocked", line=UUID(int=7), place=7)
    add(db, 1, queue="later", state="blocked")
    add(db, 1, queue="after", state="blocked", after=1)
    add(db, 4, queue="busy", **RUNNING)
    rota_app.queues.weigh_sync("heavy", 2)
    rota_app.queues.pause_sync("mentioned")
    rota_app.queues.resume_sync("mentioned")

    listed = {view.name: view for view in rota_app.queues.list_sync()}

    assert list(listed) == ["after", "busy", "declared", "heavy", "later", "mail", "taken"]
    mail = listed["mail"]
    assert (mail.queued, mail.due, mail.blocked, mail.running, mail.at_least) == (3, 2, 3, 0, False)
    assert mail == replace(rota_app.queues.get_sync("mail"), oldest_seconds=mail.oldest_seconds)
    assert [(listed[name].blocked, listed[name].running) for name in ("after", "busy", "later")] == [
        (1, 0),
        (0, 4),
        (1, 0),
    ]
    assert [listed[name].workers for name in ("taken", "mail")] == [1, 0]
    assert all(view.is_known for name, view in listed.items() if name != "heavy")
    assert not listed["heavy"].is_known


async def test_both_colours_see_the_same(rota_app: TestRota, db: Db) -> None:
    add(db, 2, queue="mail", due_at="2024-01-01 UTC")
    await rota_app.queues.limit(None, running=9, by="ana")

    listed = await rota_app.queues.list()

    assert names(listed) == [None, "mail"]
    every, mail = listed
    assert (every.queued, every.running_limit, every.changed_by) == (2, 9, "ana")
    assert mail.oldest_seconds > 1e6
    assert names(rota_app.queues.list_sync()) == [None, "mail"]
    assert (await rota_app.queues.get(None)).running_limit == rota_app.queues.get_sync(None).running_limit == 9
    assert (await rota_app.queues.get("mail")).name == "mail"


async def test_a_pause_has_an_author_a_reason_and_an_end(rota_app: TestRota, db: Db) -> None:
    paused = await rota_app.queues.pause("mail", "provider is down", for_="1h", by="ana")

    assert (paused.paused_by, paused.pause_reason, paused.changed_by) == ("ana", "provider is down", "ana")
    assert paused.paused_at is not None
    assert paused.paused_until == paused.paused_at + timedelta(hours=1)
    assert row(db, "mail", "paused_at, paused_until, paused_by, pause_reason") == (
        paused.paused_at,
        paused.paused_until,
        "ana",
        "provider is down",
    )
    until = paused.paused_until.astimezone(UTC).isoformat()
    assert audit(db) == [
        ("ana", "queue.pause", {"queue": "mail", "until": until, "reason": "provider is down"}),
    ]

    resumed = await rota_app.queues.resume("mail", by="bob")

    assert (resumed.paused_at, resumed.paused_until, resumed.paused_by, resumed.pause_reason) == (None,) * 4
    assert row(db, "mail", "paused_at, paused_until, paused_by, pause_reason, changed_by") == (None,) * 4 + ("bob",)
    await rota_app.queues.resume("mail", by="bob")
    assert audit(db)[1:] == [("bob", "queue.resume", {"queue": "mail"})]


def test_a_pause_that_is_said_again_began_when_it_did_and_ends_as_it_was_said_last(rota_app: TestRota, db: Db) -> None:
    first = rota_app.queues.pause_sync("mail", "why", for_="1h", by="ana")
    rota_app.advance("10m")

    again = rota_app.queues.pause_sync("mail", until=datetime(2999, 1, 1, tzinfo=UTC), by="bob")

    assert again.paused_at == first.paused_at
    assert (again.paused_until, again.paused_by, again.pause_reason) == (datetime(2999, 1, 1, tzinfo=UTC), "bob", None)


def test_a_pause_that_is_over_is_as_none(rota_app: TestRota, db: Db) -> None:
    first = rota_app.queues.pause_sync("mail", "why", for_="1h")
    rota_app.advance("61m")

    assert (rota_app.queues.get_sync("mail").paused_at, rota_app.queues.list_sync()) == (None, [])
    again = rota_app.queues.pause_sync("mail")
    assert first.paused_at is not None
    assert again.paused_at is not None
    assert again.paused_at - first.paused_at > timedelta(hours=1)
    assert again.paused_until is None


async def test_limits_are_set_kept_and_removed_one_by_one(rota_app: TestRota, db: Db) -> None:
    limits = "running_limit, rate_count, rate_seconds"

    await rota_app.queues.limit("mail", running=5, rate="100/1m", by="ana")
    assert row(db, "mail", limits) == (5, 100, 60)
    assert (await rota_app.queues.limit("mail", running=2)).rate == "100/1m"
    assert row(db, "mail", limits) == (2, 100, 60)
    assert rota_app.queues.limit_sync("mail", rate="5/s").running_limit == 2
    assert row(db, "mail", limits) == (2, 5, 1)
    assert rota_app.queues.limit_sync("mail", rate=None).rate is None
    assert row(db, "mail", limits) == (2, None, None)
    assert (await rota_app.queues.limit("mail", running=None)).running_limit is None
    assert row(db, "mail", limits) == (None, None, None)

    assert audit(db)[0] == ("ana", "queue.limit", {"queue": "mail", "running": 5, "rate": "100/1m"})
    assert [details for _, _, details in audit(db)[1:]] == [
        {"queue": "mail", "running": 2},
        {"queue": "mail", "rate": "5/1s"},
        {"queue": "mail", "rate": None},
        {"queue": "mail", "running": None},
    ]


def test_what_began_counts_under_a_new_rate_too(rota_app: TestRota, db: Db) -> None:
    spent = "(select sum(each)::integer from unnest(spent) as each), not_before > rota.now()"
    rota_app.queues.limit_sync("mail", rate="10/1h")
    begin(db, "mail", 6)
    assert row(db, "mail", spent) == (6, None)

    rota_app.queues.limit_sync("mail", running=99)
    assert row(db, "mail", spent) == (6, None)
    rota_app.queues.limit_sync("mail", rate="5/1h")
    assert row(db, "mail", spent) == (6, True)
    # the slots of another period have other numbers, and may lie in the future of this one
    rota_app.queues.limit_sync("mail", rate="6/1d")
    assert row(db, "mail", spent) == (6, True)
    rota_app.queues.limit_sync("mail", rate="7/1d")
    assert row(db, "mail", spent) == (6, None)
    rota_app.queues.limit_sync("mail", rate="6/1m")
    assert row(db, "mail", spent) == (6, True)
    rota_app.advance("2m")
    rota_app.queues.limit_sync("mail", rate="6/1h")
    assert row(db, "mail", spent) == (0, None)
    rota_app.queues.limit_sync("mail", rate=None)
    assert row(db, "mail", "spent, spent_slot, not_before") == (None, None, None)


async def test_a_queue_is_weighed(rota_app: TestRota, db: Db) -> None:
    assert rota_app.queues.get_sync("mail").weight == 1
    assert (await rota_app.queues.weigh("mail", 2, by="ana")).weight == 2
    assert rota_app.queues.weigh_sync("mail", 0.5, by="ana").weight == 0.5
    assert row(db, "mail", "weight, changed_by") == (0.5, "ana")
    assert audit(db)[1] == ("ana", "queue.weigh", {"queue": "mail", "weight": 0.5})


def test_what_is_said_about_all_queues_is_a_row_of_its_own(rota_app: TestRota, db: Db) -> None:
    add(db, queue="mail")
    rota_app.queues.pause_sync(None, "upgrade", by="ana")

    every, mail = rota_app.queues.list_sync()

    assert (every.name, every.pause_reason, every.queued) == (None, "upgrade", 1)
    assert (mail.name, mail.paused_at) == ("mail", None)
    assert db.execute("select name from rota.queues").fetchall() == [("",)]
    assert audit(db)[0][2]["queue"] is None
    assert rota_app.queues.resume_sync(None).paused_at is None


def test_with_dry_run_nothing_is_written_and_all_is_told(rota_app: TestRota, db: Db) -> None:
    queues = rota_app.queues

    assert queues.pause_sync("mail", "why", for_=60, dry_run=True).pause_reason == "why"
    assert queues.limit_sync("mail", running=3, rate="5/s", dry_run=True).running_limit == 3
    assert queues.weigh_sync("mail", 3, dry_run=True).weight == 3
    assert queues.resume_sync("mail", dry_run=True).paused_at is None

    assert (row(db, "mail", "*"), audit(db)) == (None, [])


@pytest.mark.direct("who listens through a pooler hears nothing")
async def test_workers_hear_of_each_change(rota_app: TestRota, db: Db) -> None:
    db.execute(f'listen "{wake_channel("rota")}"')

    await rota_app.queues.pause("mail")
    rota_app.queues.resume_sync("mail")
    rota_app.queues.limit_sync("mail", running=1)
    rota_app.queues.weigh_sync("mail", 2)
    rota_app.queues.pause_sync(None)

    heard = [notice.payload for notice in db.notifies(timeout=10, stop_after=5)]
    assert heard == ["mail", "mail", "mail", "mail", ""]


PAST = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("verb", "arguments", "options", "why"),
    [
        ("pause", [""], {}, "queue cannot be ''"),
        ("pause", [7], {}, "queue cannot be 7"),
        ("pause", ["q" * 201], {}, "queue cannot be 'qqq"),
        ("pause", ["mail"], {"for_": 0}, "for_ cannot be 0"),
        ("pause", ["mail"], {"for_": -5}, "for_ cannot be -5"),
        ("pause", ["mail"], {"for_": "soon"}, "for_ cannot be 'soon'"),
        ("pause", ["mail"], {"for_": "9999999d"}, "for_ cannot be '9999999d'"),
        ("pause", ["mail"], {"until": datetime(2999, 1, 1)}, "until cannot be datetime"),
        ("pause", ["mail"], {"until": "2999-01-01"}, "until cannot be '2999-01-01'"),
        ("pause", ["mail"], {"until": PAST}, "Queue mail cannot be paused until 2001-01-01 "),
        ("pause", [None], {"until": PAST}, "has passed. Give a later one, say for how long instead, or neither"),
        ("pause", ["mail"], {"until": PAST, "for_": 5}, "give one of them"),
        ("pause", ["mail", "a\0b"], {}, "reason cannot be"),
        ("pause", ["mail"], {"by": ""}, "by cannot be ''"),
        ("resume", [""], {}, "queue cannot be ''"),
        ("get", [""], {}, "queue cannot be ''"),
        ("limit", ["mail"], {}, "give running=, rate=, or both"),
        ("limit", ["mail"], {"running": 0}, "running cannot be 0"),
        ("limit", ["mail"], {"running": -1}, "running cannot be -1"),
        ("limit", ["mail"], {"running": True}, "running cannot be True"),
        ("limit", ["mail"], {"running": 1.5}, "running cannot be 1.5"),
        ("limit", ["mail"], {"running": 2**31}, "running cannot be 2147483648"),
        ("limit", ["mail"], {"running": 5, "rate": "fast"}, "rate cannot be 'fast'"),
        ("limit", ["mail"], {"rate": "0/1m"}, "rate cannot be '0/1m'"),
        ("weigh", ["mail", 0], {}, "weight cannot be 0"),
        ("weigh", ["mail", -1], {}, "weight cannot be -1"),
        ("weigh", ["mail", float("nan")], {}, "weight cannot be nan"),
        ("weigh", ["mail", float("inf")], {}, "weight cannot be inf"),
        ("weigh", ["mail", "2"], {}, "weight cannot be '2'"),
        ("weigh", [None, 2], {}, "a weight is that of one queue beside others"),
    ],
)
def test_what_cannot_hold_is_refused_with_its_field_before_anything_is_written(
    rota_app: TestRota, db: Db, verb: str, arguments: list[Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        getattr(rota_app.queues, f"{verb}_sync")(*arguments, **options)

    assert why in str(refused.value)
    assert db.execute("select from rota.queues union all select from rota.audit").fetchall() == []


def test_counting_ends_somewhere_and_says_so(rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_view, "_MOST", 100)
    add(db, 2_000, queue="mail")
    add(db, 2_000, queue="mail", priority=3, due_at="2999-01-01 UTC")
    add(db, 2_000, queue="lines", state="blocked", place=1)
    add(db, 2_000, queue="lines", state="blocked", after=3)
    add(db, 2_000, queue="lines", **RUNNING)
    add(db, 5, queue="zero")
    # scattered, so that an index does not look cheap
    db.execute(
        """
        update rota.jobs
        set line = case when place is not null then gen_random_uuid() end,
            after = case when after is not null then random() * 1e6 end
        where state = 'blocked'
        """
    )
    db.execute("insert into rota.lines (id, task) select line, task from rota.jobs where line is not null")
    db.execute("vacuum analyze rota.jobs, rota.lines")

    def counted(view: QueueView) -> tuple[int, int, int, int, bool]:
        return (view.queued, view.due, view.blocked, view.running, view.at_least)

    assert counted(rota_app.queues.get_sync("mail")) == (200, 100, 0, 0, True)
    assert counted(rota_app.queues.get_sync("lines")) == (0, 0, 200, 100, True)
    assert counted(rota_app.queues.get_sync("zero")) == (5, 5, 0, 0, True)
    query = queue_view.count_blocked(most=100)
    sql = "explain (analyze, format json) " + query.statement.sql("rota")
    plan = db.execute(sql, query.params, prepare=False).fetchone()
    assert plan is not None
    assert _rows_read(plan[0][0]["Plan"]) < 1_000


@pytest.mark.parametrize(("long", "told"), [(["mail"], 11), (["mail", "films", "songs"], 3)])
def test_a_long_line_does_not_hide_the_others(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch, long: list[str], told: int
) -> None:
    monkeypatch.setattr(queue_view, "_MOST", 11)
    for queue in ("mail", "films", "songs", "images"):
        task = rota_app.task(name=queue, queue=queue, limit=1)(lambda: None)
        rota_app.enqueue_many_sync([task.bind()] * (30 if queue in long else 1))

    views = rota_app.queues.list_sync()

    assert {view.name: view.blocked for view in views} == dict.fromkeys(["mail", "films", "songs", "images"], 1) | (
        dict.fromkeys(long, told)
    )
    assert all(view.at_least for view in views)


async def test_a_worker_of_some_queues_looks_when_something_is_said_about_one_of_them_or_all(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[JobSource] = []
    monkeypatch.setattr(JobSource, "wake", lambda source, job: looks.append(source))
    worker = Worker(rota_app.database, {}, WorkerSettings(queues=("mail",)), rota_app.facts)

    for payload, so_far in (("images", 0), ("mail", 1), ("", 2)):
        worker.heard(payload)
        assert len(looks) == so_far
