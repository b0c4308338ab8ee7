"""What people do to schedules from any process: pause, resume, skip, delete, preview."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.schedules.rounds import give_out
from tests.schedules.rows import now

from rota import ConfigurationError, NotPossible, ScheduleNotFound
from rota.postgres.notify import schedule_channel
from rota.testing import TestRota, WorkerProcess, until_sync

START = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task
    def tick(n: int = 0) -> None: ...

    return rota_app


def test_a_paused_schedule_gives_out_nothing_and_makes_up_for_nothing(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", misfire="all")

    paused = app.schedules.pause_sync("s", by="me")
    app.advance("5h")
    given = give_out(app)
    resumed = app.schedules.resume_sync("s")

    assert (paused.state, paused.paused_by, given) == ("paused", "me", 0)
    assert paused.paused_at is not None
    assert paused.why_idle == f"paused by me since {paused.paused_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert (resumed.state, resumed.paused_at, resumed.paused_by, resumed.why_idle) == ("active", None, None, None)
    assert resumed.next_slot is not None
    assert now(db) < resumed.next_slot <= now(db) + timedelta(hours=1)
    assert give_out(app) == 0
    app.advance("1h")
    assert give_out(app) == 1


def test_pausing_again_keeps_who_paused_first(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    first = app.schedules.pause_sync("s", by="one")

    assert app.schedules.pause_sync("s", by="two") == first
    app.schedules.resume_sync("s")
    assert app.schedules.resume_sync("s").state == "active"
    told = db.execute("select actor, action from rota.audit order by id offset 1").fetchall()
    assert [action for _, action in told] == ["schedule.pause", "schedule.resume"]


def test_a_moment_that_passed_during_a_pause_is_over(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", at=now(db) + timedelta(hours=1))
    app.schedules.pause_sync("s")
    app.advance("2h")

    resumed = app.schedules.resume_sync("s")

    assert (resumed.state, resumed.why_idle) == ("ended", "its moment is past")


def break_(db: psycopg.Connection[Any], **columns: str) -> None:
    said = {"problem": "an older leader could not read it", **columns}
    db.execute(
        f"update rota.schedules set next_at = null, next_slot = null, {', '.join(f'{each} = %s' for each in said)}",  # type: ignore[arg-type]
        list(said.values()),
    )


@pytest.mark.parametrize("paused", [False, True])
def test_resuming_mends_what_is_broken(app: TestRota, db: psycopg.Connection[Any], *, paused: bool) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    app.schedules.put_sync("m", task="tick")
    break_(db)
    app.advance("5h")
    if paused:
        app.schedules.pause_sync("s")

    assert app.schedules.resume_sync("s", dry_run=True).state == "active"
    mended = app.schedules.resume_sync("s", by="me")

    assert (mended.state, mended.problem, mended.paused_at) == ("active", None, None)
    assert mended.next_slot is not None
    assert now(db) < mended.next_slot <= now(db) + timedelta(hours=1)
    assert app.schedules.resume_sync("m").state == "waiting"
    app.advance("1h")
    assert give_out(app) == 1


def test_resuming_what_is_still_wrong_says_why(app: TestRota, db: psycopg.Connection[Any]) -> None:
    @app.task(redact=["pin"])
    def secret(pin: int) -> None: ...

    app.schedules.put_sync("s", task="tick", every="1h")
    app.schedules.pause_sync("s")
    break_(db, every="nonsense")
    words = app.schedules.resume_sync("s")
    break_(db, every="1h", args='{"n": "many"}')
    args = app.schedules.resume_sync("s")
    break_(db, task="secret", args='{"pin": "hunter2"}')
    hidden = app.schedules.resume_sync("s")

    for seen, reason in ((words, "nonsense"), (args, "do not fit task 'tick': n is 'many'"), (hidden, "are redacted")):
        assert (seen.state, seen.next_at, seen.paused_at) == ("broken", None, None)
        assert reason in (seen.problem or "")
        assert reason in (seen.why_idle or "")
    assert "hunter2" not in (hidden.problem or "")
    break_(db, task="elsewhere")
    assert app.schedules.resume_sync("s").state == "active"


def test_a_moment_that_was_missed_as_it_was_broken_is_left_to_its_policy(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", at=now(db) + timedelta(hours=1))
    break_(db)
    app.advance("2h")

    app.schedules.resume_sync("s")

    assert give_out(app) == 1


def test_a_skipped_slot_does_not_run_and_the_next_one_does(app: TestRota) -> None:
    put = app.schedules.put_sync("s", task="tick", every="1h")
    assert put.next_slot is not None

    skipped = app.schedules.skip_sync("s")

    after = app.schedules.get_sync("s")
    assert skipped == put.next_slot
    assert (after.next_slot, after.skipped) == (put.next_slot + timedelta(hours=1), 1)
    app.advance("1h")
    assert give_out(app) == 0
    app.advance("1h")
    assert give_out(app) == 1


def test_during_a_pause_the_slot_that_is_skipped_is_still_to_come(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    app.schedules.put_sync("o", task="tick", at=now(db) + timedelta(hours=1))
    for name in ("s", "o"):
        app.schedules.pause_sync(name)
    app.advance("5h")

    skipped = app.schedules.skip_sync("s")

    assert now(db) < skipped <= now(db) + timedelta(hours=1)
    assert app.schedules.resume_sync("s").next_slot == skipped + timedelta(hours=1)
    with pytest.raises(NotPossible, match="no next slot to leave out"):
        app.schedules.skip_sync("o")


def test_where_no_slot_is_to_come_none_is_skipped(app: TestRota) -> None:
    app.schedules.put_sync("m", task="tick")
    app.schedules.put_sync("o", task="tick", at=datetime(2090, 1, 1, tzinfo=UTC))

    assert app.schedules.skip_sync("o") == datetime(2090, 1, 1, tzinfo=UTC)
    for name in ("m", "o"):
        with pytest.raises(NotPossible, match="no next slot to leave out"):
            app.schedules.skip_sync(name)


def test_where_none_is_skipped_as_it_is_broken_that_is_told(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    break_(db)

    with pytest.raises(NotPossible, match="it is broken until .* resumed: an older leader could not read it"):
        app.schedules.skip_sync("s")


def test_deleting_takes_what_waits_along_and_leaves_history(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", misfire="all", overlap="queue")
    app.advance("3h")
    assert give_out(app) == 3
    assert [run.state for run in app.schedules.history_sync("s")] == ["waiting", "waiting", "queued"]

    app.schedules.delete_sync("s")

    assert [run.state for run in app.schedules.history_sync("s")] == ["queued"]
    with pytest.raises(ScheduleNotFound, match="no schedule 's'"):
        app.schedules.get_sync("s")


def test_deleting_a_parent_names_who_follows_it(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("p", task="tick", every="1h")
    app.schedules.put_sync("c", task="tick", after="p")

    assert app.schedules.delete_sync("c", dry_run=True) == []
    assert app.schedules.delete_sync("p", dry_run=True) == ["c"]
    assert app.schedules.delete_sync("p") == ["c"]
    told = db.execute("select details -> 'followed_by' from rota.audit where action = 'schedule.delete'").fetchall()
    assert told == [(["c"],)]


def test_a_schedule_that_comes_back_does_not_repeat_its_slots(app: TestRota, db: psycopg.Connection[Any]) -> None:
    moment = now(db) + timedelta(hours=1)
    app.schedules.put_sync("s", task="tick", at=moment)
    app.advance("1h")
    assert give_out(app) == 1
    app.schedules.delete_sync("s")

    app.schedules.put_sync("s", task="tick", at=moment)

    assert give_out(app) == 0


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.get_sync("x"),
        lambda s: s.pause_sync("x"),
        lambda s: s.resume_sync("x"),
        lambda s: s.trigger_sync("x"),
        lambda s: s.skip_sync("x"),
        lambda s: s.delete_sync("x"),
        lambda s: s.preview_sync("x"),
        lambda s: s.backfill_sync("x", START, START + timedelta(days=1)),
        lambda s: s.clear_sync("x"),
    ],
)
def test_a_name_that_is_not_there_is_named(app: TestRota, call: Any) -> None:
    with pytest.raises(ScheduleNotFound, match="There is no schedule 'x'"):
        call(app.schedules)


@pytest.mark.direct("it is about notifications, which a pooler does not pass on")
def test_every_verb_is_told_to_the_scheduler_and_on_record(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", start_at=START, by="me")
    db.execute(f"listen {schedule_channel('rota')}")

    app.schedules.pause_sync("s", by="me")
    app.schedules.resume_sync("s", by="me")
    app.schedules.skip_sync("s", by="me")
    app.schedules.backfill_sync("s", START, START + timedelta(hours=2), by="me")
    app.schedules.trigger_sync("s", by="me")
    app.schedules.delete_sync("s", by="me")

    assert len(list(db.notifies(timeout=5, stop_after=5))) == 5
    told = db.execute("select actor, action, details ->> 'schedule' from rota.audit order by id").fetchall()
    verbs = ["put", "pause", "resume", "skip", "backfill", "trigger", "delete"]
    assert told == [("me", f"schedule.{verb}", "s") for verb in verbs]


@pytest.mark.direct("changes are found by polling there, each second")
@pytest.mark.long
def test_each_verb_of_one_process_is_honoured_by_the_worker_of_another_within_a_second(
    app: TestRota, rota_worker: Callable[..., WorkerProcess], db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """By the database's clock. Whoever leads would look again after five seconds if it heard nothing."""
    file = tmp_path / "app.py"
    file.write_text("from rota import Rota\napp = Rota()\n\n@app.task(name='tick')\ndef tick() -> None: ...\n")
    rota_worker(file)
    second = timedelta(seconds=1)

    def given(name: str, since: datetime) -> list[tuple[datetime, datetime]]:
        """When runs of it were given out since then, and for which slots."""
        asked = "select created_at, slot_at from rota.slots where schedule = %s and created_at > %s order by id"
        return db.execute(asked, [name, since]).fetchall()  # type: ignore[return-value]

    def first(name: str, since: datetime) -> datetime:
        until_sync(lambda: given(name, since), what=f"a run of {name} is given out")
        return given(name, since)[0][0]

    def quiet_since(name: str, said: datetime) -> bool:
        until_sync(lambda: now(db) > said + second, what="a second has passed")
        return given(name, said) == []

    said = now(db)
    app.schedules.put_sync("s", task="tick", every="50ms")
    assert first("s", said) - said < second

    app.schedules.pause_sync("s")
    assert quiet_since("s", now(db))

    said = now(db)
    app.schedules.resume_sync("s")
    assert first("s", said) - said < second

    app.schedules.put_sync("s", task="tick", every="1h")
    assert quiet_since("s", now(db))
    said = now(db)
    app.schedules.put_sync("s", task="tick", every="50ms")
    assert first("s", said) - said < second

    app.schedules.delete_sync("s")
    assert quiet_since("s", now(db))

    app.schedules.put_sync("hand", task="tick")
    said = now(db)
    job = app.schedules.trigger_sync("hand")
    until_sync(lambda: job.refresh_sync().state == "succeeded", what="it has run by hand")
    (run,) = app.schedules.history_sync("hand")
    assert run.finished_at is not None
    assert run.finished_at - said < second

    put = app.schedules.put_sync("halves", task="tick", every="500ms")
    skipped = app.schedules.skip_sync("halves")
    assert first("halves", skipped) - skipped < second + timedelta(milliseconds=500)
    assert skipped not in [slot for _, slot in given("halves", put.created_at)]


def test_dry_runs_change_nothing(app: TestRota, db: psycopg.Connection[Any]) -> None:
    before = app.schedules.put_sync("s", task="tick", every="1h", start_at=START)

    assert app.schedules.pause_sync("s", dry_run=True).state == "paused"
    assert app.schedules.skip_sync("s", dry_run=True) == before.next_slot
    assert app.schedules.backfill_sync("s", START, START + timedelta(hours=2), dry_run=True) == 2
    assert app.schedules.trigger_sync("s", dry_run=True).state == "queued"
    app.schedules.delete_sync("s", dry_run=True)

    assert app.schedules.get_sync("s") == before
    assert db.execute("select count(*) from rota.slots").fetchall() == [(0,)]


def test_a_preview_shows_the_slots_to_come(app: TestRota, db: psycopg.Connection[Any]) -> None:
    start = datetime(2080, 1, 31, tzinfo=UTC)
    app.schedules.put_sync("months", task="tick", every="1 month", start_at=start, max_runs=3)
    app.schedules.put_sync("once", task="tick", at=start)
    app.schedules.put_sync("manual", task="tick")
    app.schedules.put_sync("pause", task="tick", every="1h", counted_from="end", start_at=start)

    assert app.schedules.preview_sync("months") == [
        start,
        datetime(2080, 2, 29, tzinfo=UTC),
        datetime(2080, 3, 31, tzinfo=UTC),
    ]
    assert app.schedules.preview_sync("months", 1) == [start]
    assert app.schedules.preview_sync("once") == [start]
    assert app.schedules.preview_sync("pause") == [start]
    assert app.schedules.preview_sync("manual") == []
    with pytest.raises(ConfigurationError, match="n cannot be 0"):
        app.schedules.preview_sync("once", 0)


def test_a_preview_of_what_was_not_put_yet(app: TestRota, db: psycopg.Connection[Any]) -> None:
    definition = app.schedules.define("s", task="tick", cron="0 9 * * *", tz="Europe/Berlin", max_runs=2)

    slots = app.schedules.preview_sync(definition)

    assert len(slots) == 2
    assert slots[1] - slots[0] in (timedelta(hours=23), timedelta(days=1), timedelta(hours=25))
    assert app.schedules.list_sync() == []


def test_a_preview_of_a_paused_one_is_as_if_it_were_resumed(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    app.schedules.pause_sync("s")
    app.advance("5h")

    assert app.schedules.preview_sync("s", 1)[0] > now(db)


def test_lists_are_filtered_and_come_in_pages(app: TestRota) -> None:
    for name in ("a-1", "a-2", "b-1"):
        app.schedules.put_sync(name, task="tick", every="1h")
    app.schedules.put_sync("a-3", task="tick")
    app.schedules.pause_sync("a-2")
    listed = app.schedules.list_sync

    assert [each.name for each in listed()] == ["a-1", "a-2", "a-3", "b-1"]
    assert [each.name for each in listed(prefix="a-")] == ["a-1", "a-2", "a-3"]
    assert [each.name for each in listed(state="active")] == ["a-1", "b-1"]
    assert [each.name for each in listed(state="paused")] == ["a-2"]
    assert [each.name for each in listed(state="waiting")] == ["a-3"]
    assert [each.name for each in listed(limit=2, after="a-1")] == ["a-2", "a-3"]
    with pytest.raises(ConfigurationError, match="No schedule is ever 'idle'"):
        listed(state="idle")
    with pytest.raises(ConfigurationError, match="limit cannot be 0"):
        listed(limit=0)
    with pytest.raises(ConfigurationError, match="prefix cannot be 7"):
        listed(prefix=7)


async def test_every_verb_has_both_colours(app: TestRota) -> None:
    await app.schedules.put_many([{"name": "s", "task": "tick", "every": "1h", "start_at": START}])

    assert (await app.schedules.pause("s")).state == "paused"
    assert (await app.schedules.resume("s")).state == "active"
    assert await app.schedules.skip("s") < await _first(app)
    assert await app.schedules.backfill("s", START, START + timedelta(hours=1)) == 1
    assert await app.schedules.clear("s") == 1
    assert [each.name for each in await app.schedules.list()] == ["s"]
    assert len(await app.schedules.preview("s", 3)) == 3
    await app.schedules.delete("s")
    with pytest.raises(ScheduleNotFound):
        await app.schedules.get("s")


async def _first(app: TestRota) -> datetime:
    return (await app.schedules.preview("s", 1))[0]
