"""Schedules as rows: put, put again, changed without losing or doubling a slot, many at once, pruned."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import psycopg
import pytest
from tests.schedules.rounds import give_out

from rota import ConfigurationError, InvalidArguments, Rota
from rota.postgres.notify import schedule_channel
from rota.schedules.due import find_due, fire
from rota.schedules.plan import make_plan
from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task
    def tick(n: int = 0) -> None: ...

    @rota_app.task
    def mail(to: str, *, token: str = "") -> None: ...

    return rota_app


def rows(db: psycopg.Connection[Any], what: str, *params: Any) -> list[tuple[Any, ...]]:
    return db.execute(what, params).fetchall()


def test_what_is_put_can_be_got(app: TestRota, db: psycopg.Connection[Any]) -> None:
    put = app.schedules.put_sync(
        "daily",
        task="mail",
        args={"to": "a@b"},
        cron="0 9 * * mon-fri",
        tz="Europe/Berlin",
        jitter="5m",
        tags=["x"],
        note="n",
    )

    ((now,),) = rows(db, "select rota.now()")
    assert put == app.schedules.get_sync("daily")
    assert (put.task, put.args, put.kind, put.state) == ("mail", {"to": "a@b"}, "cron", "active")
    assert put.next_slot is not None
    assert put.next_at is not None
    assert now < put.next_slot <= put.next_at < put.next_slot + timedelta(minutes=5)
    assert put.when == "At 09:00 on Monday through Friday, Europe/Berlin time"
    assert (put.revision, put.runs, put.owner, put.declared) == (1, 0, put.owner, None)


async def test_both_colours_do_the_same(app: TestRota) -> None:
    one = await app.schedules.put("a", task="tick", every="1h")
    other = app.schedules.put_sync("a", task="tick", every="1h")

    assert one == other == await app.schedules.get("a")


def test_putting_the_same_again_changes_nothing(app: TestRota, db: psycopg.Connection[Any]) -> None:
    options: dict[str, Any] = {
        "every": "90s", "start_at": datetime(2020, 1, 1, tzinfo=UTC), "end_at": datetime(2090, 1, 1, tzinfo=UTC),
        "jitter": 1.5, "exclude": {"windows": [["22:00", "06:00"]]}, "misfire_grace": "2m", "tags": ["a"], "key": "k",
        "max_runs": 9, "overlap": "queue", "priority": 3, "queue": "q", "misfire": "all",
    }  # fmt: skip
    first = app.schedules.put_sync("s", task="mail", args={"to": "x", "token": "t"}, **options)
    audited = rows(db, "select count(*) from rota.audit")
    app.advance("10s")

    again = app.schedules.put_sync("s", task="mail", args={"token": "t", "to": "x"}, **options)

    assert again == first
    assert rows(db, "select count(*) from rota.audit") == audited == [(1,)]


def test_a_change_is_a_new_revision_and_keeps_how_far_it_has_come(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    app.advance("1h")
    assert give_out(app) == 1
    before = app.schedules.get_sync("s")

    after = app.schedules.put_sync("s", task="tick", args={"n": 7}, every="1h")

    assert (after.revision, after.args, after.runs) == (2, {"n": 7}, 1)
    assert (after.anchor, after.next_slot, after.last_slot) == (before.anchor, before.next_slot, before.last_slot)


def test_a_new_expression_takes_effect_without_losing_or_doubling_a_slot(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", args={"n": 1}, every="1h", start_at=datetime(2020, 1, 1, tzinfo=UTC))
    due = app.schedules.get_sync("s").next_slot
    app.advance("1h")

    after = app.schedules.put_sync("s", task="tick", args={"n": 2}, cron="*/15 * * * *")

    # the one that was due ran by the old words, and is not there again by the new ones
    assert rows(db, "select slot_at, (select args from rota.jobs where id = job_id) from rota.slots") == [
        (due, {"n": 1})
    ]
    ((now,),) = rows(db, "select rota.now()")
    assert after.next_slot is not None
    assert now < after.next_slot <= now + timedelta(minutes=15)
    assert (after.runs, after.last_slot) == (1, due)
    assert give_out(app) == 0


def test_what_is_due_is_given_out_before_a_change_whatever_is_excluded(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", exclude={"dates": ["2020-01-01"]})
    app.advance("1h")

    assert app.schedules.put_sync("s", task="tick", every="2h", exclude={"dates": ["2020-01-02"]}).runs == 1


def test_a_scheduler_that_froze_before_the_change_adds_nothing(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", overlap="allow")
    app.advance("1h")
    (due,) = app.database.run_sync(find_due(10))
    plan = make_plan(due, lambda _: None)

    app.schedules.put_sync("s", task="tick", every="2h", overlap="allow")
    woken = app.database.run_sync(fire([plan]))

    assert woken == []
    assert len(plan.slots) == 1
    assert rows(db, "select count(*) from rota.jobs") == [(1,)]


def test_changes_and_the_scheduler_go_on_beside_each_other(app: TestRota, db: psycopg.Connection[Any]) -> None:
    names = [f"s{i}" for i in range(10)]
    app.schedules.put_many_sync([{"name": name, "task": "tick", "every": "1s", "overlap": "allow"} for name in names])
    stop = Event()

    def change(turn: int) -> None:
        ordered = names if turn % 2 else names[::-1]
        for number in range(10):
            app.schedules.put_many_sync(
                [
                    {
                        "name": name,
                        "task": "tick",
                        "args": {"n": turn * 100 + number},
                        "every": "1s",
                        "overlap": "allow",
                    }
                    for name in ordered
                ]
            )

    def schedule() -> None:
        while not stop.is_set():
            app.advance("1s")
            give_out(app)

    with ThreadPoolExecutor(5) as threads:
        scheduler = threads.submit(schedule)
        list(threads.map(change, range(4)))
        stop.set()
        scheduler.result()

    # none twice, none left out between the first and the last
    assert (
        rows(
            db,
            "select count(*) from rota.slots group by schedule "
            "having count(*) <> extract(epoch from max(slot_at) - min(slot_at)) + 1 or count(distinct slot_at) <> count(*)",
        )
        == []
    )
    assert rows(db, "select count(*) > 10 from rota.slots") == [(True,)]


def test_a_slot_that_was_given_out_does_not_come_back_with_another_expression(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 * * * *")
    slot = app.schedules.get_sync("s").next_slot
    assert slot is not None
    # as after the database's clock went back
    db.execute("update rota.schedules set last_slot = next_slot")

    after = app.schedules.put_sync("s", task="tick", cron="0,30 * * * *")

    assert after.next_slot == slot + timedelta(minutes=30)


def test_a_change_after_a_skip_takes_effect_at_once(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 0 1 1 *")
    app.schedules.skip_sync("s")

    after = app.schedules.put_sync("s", task="tick", cron="* * * * *")

    ((now,),) = rows(db, "select rota.now()")
    assert after.next_slot is not None
    assert now < after.next_slot <= now + timedelta(minutes=1)


def test_slots_that_were_skipped_stay_so_through_a_change_and_no_other_does(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", overlap="allow")
    first, second = app.schedules.skip_sync("s"), app.schedules.skip_sync("s")

    anchor = app.schedules.get_sync("s").anchor
    same_slots = app.schedules.put_sync("s", task="tick", every="1h", start_at=anchor)
    app.schedules.put_sync("s", task="tick", every="30m", overlap="allow", misfire="all", start_at=anchor)

    assert same_slots.next_slot == anchor + timedelta(hours=3)
    coming = [anchor + timedelta(minutes=minutes) for minutes in (30, 90, 150, 180)]
    assert (first, second) == (anchor + timedelta(hours=1), anchor + timedelta(hours=2))
    assert app.schedules.preview_sync("s", 4) == coming
    # one that was due before it is given out in time, and then in an outage over the other
    app.advance("30m")
    assert give_out(app) == 1
    assert app.schedules.get_sync("s").next_slot == coming[1]
    app.advance("2h 30m")
    assert give_out(app) == 3
    assert [slot for (slot,) in rows(db, "select slot_at from rota.slots order by slot_at")] == coming
    assert app.schedules.get_sync("s").missed == 0


@pytest.mark.parametrize("counted_from", ["start", "end"])
def test_the_same_pace_in_other_words_keeps_its_slots(app: TestRota, counted_from: Any) -> None:
    before = app.schedules.put_sync("s", task="tick", every="1h", counted_from=counted_from)
    app.advance("10m")

    after = app.schedules.put_sync("s", task="tick", every="60m", counted_from=counted_from)

    assert (after.every, after.anchor, after.next_slot) == ("60m", before.anchor, before.next_slot)
    assert app.schedules.put_sync("s", task="tick", every="1 month").anchor > before.anchor


def test_one_whose_slots_are_all_excluded_has_ended(app: TestRota) -> None:
    exclude = {"ranges": [["2020-01-01", "9999-12-29"]]}

    assert app.schedules.put_sync("s", task="tick", cron="0 9 * * *", exclude=exclude).state == "ended"


def test_a_slot_that_its_jitter_keeps_back_is_kept_through_a_change(app: TestRota, db: psycopg.Connection[Any]) -> None:
    start = datetime(2080, 1, 1, tzinfo=UTC)
    app.schedules.put_sync("s", task="tick", every="1h", jitter="50m", start_at=start)
    before = app.schedules.get_sync("s")
    assert before.next_slot is not None
    assert before.next_at is not None
    assert before.next_at - before.next_slot > timedelta(minutes=1)
    ((late,),) = rows(db, "select %s - rota.now()", before.next_slot)
    app.advance(late + timedelta(seconds=1))

    after = app.schedules.put_sync("s", task="tick", cron="0 0 1 1 *")

    assert (after.next_slot, after.next_at) == (before.next_slot, before.next_at)
    app.advance("50m")
    assert give_out(app) == 1
    assert app.schedules.get_sync("s").next_slot > before.next_slot + timedelta(hours=2)


def test_a_paused_schedule_stays_paused_when_it_is_changed(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    app.schedules.pause_sync("s", by="me")
    app.advance("3h")

    after = app.schedules.put_sync("s", task="tick", every="2h")

    assert (after.state, after.paused_by, after.runs, after.live) == ("paused", "me", 0, 0)


def test_what_was_broken_is_mended_by_putting_it(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    db.execute("update rota.schedules set problem = 'odd', next_at = null, next_slot = null")
    assert app.schedules.get_sync("s").state == "broken"

    after = app.schedules.put_sync("s", task="tick", every="1h")

    assert (after.state, after.problem) == ("active", None)


def test_more_runs_may_be_given_to_one_that_has_ended(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", max_runs=1)
    app.advance("1h")
    give_out(app)
    assert app.schedules.get_sync("s").state == "ended"

    assert app.schedules.put_sync("s", task="tick", every="1h", max_runs=2).state == "active"
    assert app.schedules.put_sync("s", task="tick", every="1h", max_runs=1).state == "ended"


def test_a_moment_that_is_past_is_due_at_once_and_only_once(app: TestRota) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    app.schedules.put_sync("s", task="tick", at=past)
    assert give_out(app) == 1

    changed = app.schedules.put_sync("s", task="tick", at=past, note="again")

    assert changed.state == "ended"
    assert give_out(app) == 0
    assert app.schedules.put_sync("s", task="tick", at=past + timedelta(days=1)).state == "active"


def test_a_pause_counts_from_the_end_of_a_run(app: TestRota) -> None:
    put = app.schedules.put_sync("s", task="tick", every="1h", counted_from="end")
    app.advance("1h")
    assert give_out(app) == 1

    # while it runs nobody knows when it is due
    changed = app.schedules.put_sync("s", task="tick", every="2h", counted_from="end")

    assert put.next_slot is not None
    assert (changed.next_slot, changed.state) == (None, "active")


def test_a_start_to_come_is_the_first_slot(app: TestRota) -> None:
    start = datetime(2080, 1, 31, 12, tzinfo=UTC)

    every = app.schedules.put_sync("e", task="tick", every="1 month", start_at=start)
    delay = app.schedules.put_sync("d", task="tick", every="1h", counted_from="end", start_at=start)

    assert every.next_slot == delay.next_slot == start


@pytest.mark.direct("it is about notifications, which a pooler does not pass on")
def test_putting_tells_the_scheduler(app: TestRota, db: psycopg.Connection[Any]) -> None:
    db.execute(f"listen {schedule_channel('rota')}")

    app.schedules.put_sync("s", task="tick", every="1h")

    assert len(list(db.notifies(timeout=5, stop_after=1))) == 1


def test_a_dry_run_checks_all_and_stores_nothing(app: TestRota, db: psycopg.Connection[Any]) -> None:
    would = app.schedules.put_sync("s", task="tick", every="1h", dry_run=True)

    assert would.name == "s"
    assert rows(db, "select count(*) from rota.schedules") == [(0,)]
    with pytest.raises(InvalidArguments, match="Schedule 's' was not put: to is missing"):
        app.schedules.put_sync("s", task="mail", cron="0 9 * * *", dry_run=True)


def test_many_are_put_in_one_transaction_and_told_apart(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("t-1", task="tick", every="1h")
    app.schedules.put_sync("t-2", task="tick", every="1h")
    schedules = app.schedules

    put = schedules.put_many_sync(
        [
            {"name": "t-3", "task": "tick", "after": "t-4"},
            schedules.define("t-2", task="tick", every="2h"),
            {"name": "t-1", "task": "tick", "every": "1h"},
            {"name": "t-4", "task": "tick"},
        ]
    )

    assert (put.added, put.changed, put.unchanged, put.deleted) == (("t-3", "t-4"), ("t-2",), ("t-1",), ())
    assert rows(db, "select count(distinct xmin::text) from rota.schedules where name <> 't-1'") == [(1,)]


def test_all_mistakes_of_many_are_told_at_once_and_nothing_is_put(app: TestRota, db: psycopg.Connection[Any]) -> None:
    with pytest.raises(ConfigurationError) as told:
        app.schedules.put_many_sync(
            [
                {"name": "good", "task": "tick", "every": "1h"},
                {"name": "bad", "task": "tick", "cron": "61 * * * *"},
                {"name": "worse", "task": "mail"},
                {"name": "good", "task": "tick"},
                "nothing",
            ]
        )

    for part in ("4 schedules are wrong", "'bad' was not put", "'worse' was not put", "called 'good'", "Item 4"):
        assert part in str(told.value)
    assert rows(db, "select count(*) from rota.schedules") == [(0,)]


def test_pruning_deletes_what_has_the_prefix_and_was_not_put_but_never_what_code_declares(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    for name in ("crm-old", "crm-kept", "crm-code", "other", "crm"):
        app.schedules.put_sync(name, task="tick")
    db.execute("update rota.schedules set digest = gen_random_uuid() where name = 'crm-code'")

    dry = app.schedules.put_many_sync([{"name": "crm-kept", "task": "tick"}], prune_prefix="crm-", dry_run=True)
    put = app.schedules.put_many_sync([{"name": "crm-kept", "task": "tick"}], prune_prefix="crm-")

    assert dry == put
    assert put.deleted == ("crm-old",)
    assert [each.name for each in app.schedules.list_sync()] == ["crm", "crm-code", "crm-kept", "other"]
    with pytest.raises(ConfigurationError, match="prune_prefix cannot be ''"):
        app.schedules.put_many_sync([], prune_prefix="")


def test_pruning_does_not_take_the_parent_of_one_that_is_put(app: TestRota) -> None:
    app.schedules.put_sync("crm-p", task="tick", every="1h")
    child = {"name": "crm-c", "task": "tick", "after": "crm-p"}

    refused = "'crm-' would prune what others of these follow: 'crm-c' after 'crm-p'"
    with pytest.raises(ConfigurationError, match=refused):
        app.schedules.put_many_sync([child], prune_prefix="crm-")
    app.schedules.put_many_sync([child])
    with pytest.raises(ConfigurationError, match=refused):  # nor of one that says the same
        app.schedules.put_many_sync([child], prune_prefix="crm-")

    assert [each.name for each in app.schedules.list_sync()] == ["crm-c", "crm-p"]


def test_a_child_whose_parent_is_gone_can_be_put_the_same_again(app: TestRota) -> None:
    app.schedules.put_sync("p", task="tick", every="1h")
    app.schedules.put_sync("c", task="tick", after="p")
    app.schedules.delete_sync("p")

    assert app.schedules.put_sync("c", task="tick", after="p").revision == 1
    with pytest.raises(ConfigurationError, match="no such schedule to follow: 'c' after 'p'"):
        app.schedules.put_sync("c", task="tick", after="p", note="changed")


def test_pruning_takes_a_prefix_as_it_is_written(app: TestRota) -> None:
    app.schedules.put_sync("a%b-1", task="tick")
    app.schedules.put_sync("axb-1", task="tick")

    assert app.schedules.put_many_sync([], prune_prefix="a%b").deleted == ("a%b-1",)


def test_thousands_are_put_at_once(app: TestRota, db: psycopg.Connection[Any]) -> None:
    items = [{"name": f"n{i:05}", "task": "tick", "args": {"n": i}, "every": "1h"} for i in range(2500)]

    assert len(app.schedules.put_many_sync(items).added) == 2500
    assert len(app.schedules.put_many_sync(items).unchanged) == 2500
    assert rows(db, "select count(*), count(distinct args) from rota.schedules") == [(2500, 2500)]


def test_many_who_put_the_same_at_once_make_one(app: TestRota) -> None:
    names = [f"s{i}" for i in range(20)]

    def put(turn: int) -> None:
        ordered = names if turn % 2 else names[::-1]
        app.schedules.put_many_sync([{"name": name, "task": "tick", "every": "1h"} for name in ordered])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, range(16)))

    assert {each.revision for each in app.schedules.list_sync()} == {1}
    assert len(app.schedules.list_sync()) == 20


def test_arguments_are_stored_by_the_codec_and_compared_without_it(
    rota_database: str, db: psycopg.Connection[Any]
) -> None:
    class Salted:
        salt = 0

        def encode(self, text: str) -> str:
            self.salt += 1
            return f"{self.salt}:{text[::-1]}"

        def decode(self, text: str) -> str:
            return text.partition(":")[2][::-1]

    app = Rota(rota_database, codec=Salted())
    app.task(name="mail")(lambda to: None)
    with app:
        first = app.schedules.put_sync("s", task="mail", args={"to": "me"}, every="1h")
        second = app.schedules.put_sync("s", task="mail", args={"to": "me"}, every="1h")
        third = app.schedules.put_sync("s", task="mail", args={"to": "you"}, every="1h")

    assert (first.args, first.revision, second.revision, third.revision) == ({"to": "me"}, 1, 1, 2)
    ((stored,),) = rows(db, "select args from rota.schedules")
    assert list(stored) == ["rota:coded"]


@pytest.mark.parametrize("args", ["[" * 5000 + "]" * 5000, "9" * 100_000], ids=["too deep", "too long"])
def test_arguments_that_cannot_be_read_hide_no_other_and_can_be_mended(
    app: TestRota, db: psycopg.Connection[Any], args: str
) -> None:
    for name in ("bad", "good"):
        app.schedules.put_sync(name, task="tick", every="1h", args={"n": 1})
    db.execute(
        "update rota.schedules set args = %s::jsonb, exclude = %s::jsonb where name = 'bad'", [f'{{"n": {args}}}', args]
    )

    bad, good = app.schedules.list_sync()
    assert (bad.args, bad.exclude, good.args) == ("unreadable", "unreadable", {"n": 1})
    assert bad.when.startswith("Never: ")
    app.advance("61m")
    app.drain_sync()
    assert app.schedules.get_sync("bad").state == "broken"
    assert app.schedules.resume_sync("bad").state == "broken"
    mended = app.schedules.put_sync("bad", task="tick", every="1h", args={"n": 1})
    assert (mended.state, mended.args, mended.exclude) == ("active", {"n": 1}, None)


def test_a_slot_that_is_due_by_the_old_words_is_given_out_though_some_are_excluded(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    never = {"dates": ["2001-01-01"]}
    app.schedules.put_sync("s", task="tick", every="1h", exclude=never)
    app.advance("61m")

    assert app.schedules.put_sync("s", task="tick", every="2h", exclude=never).runs == 1


def test_redacted_arguments_are_not_shown(app: TestRota) -> None:
    app.task(name="login", redact=["token"])(lambda token, n=1: None)

    put = app.schedules.put_sync("s", task="login", args={"token": "hush", "n": 2})

    assert put.args == {"token": "•••", "n": 2}


async def test_no_transaction_is_open_while_many_are_made(app: TestRota, db: psycopg.Connection[Any]) -> None:
    def items() -> Iterator[dict[str, Any]]:
        open_ = "select count(*) from pg_stat_activity where datname = current_database() and xact_start is not null"
        for number in range(2):
            seen.extend(rows(db, f"{open_} and pid <> pg_backend_pid()"))
            yield {"name": f"s{number}", "task": "tick", "every": "1h"}

    seen: list[Any] = []
    await app.schedules.put_many(items())
    app.schedules.put_many_sync(items())

    assert seen == [(0,)] * 4


def test_the_mistakes_of_many_are_told_without_a_database() -> None:
    nowhere = Rota("postgresql://nobody@127.0.0.1:1/nowhere")

    with pytest.raises(ConfigurationError, match="Schedule 'a' was not put"):
        nowhere.schedules.put_many_sync([{"name": "a", "task": "tick", "every": "soon"}])
