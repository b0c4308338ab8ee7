"""Changing a schedule: what is said becomes other, the rest stays, and what it was is on record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from rota import ConfigurationError, InvalidArguments, Rota, ScheduleNotFound
from rota.schedules.definition import ScheduleDefinition
from rota.testing import TestRota

START = datetime(2080, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(queue="mails", priority=3, redact=["token"], retry=None)
    def mail(to: str, *, token: str = "") -> None: ...

    @rota_app.task
    def tick(n: int = 0) -> None: ...

    return rota_app


def said(db: psycopg.Connection[Any], name: str) -> dict[str, Any]:
    """All that its row says."""
    columns = [each.name for each in fields(ScheduleDefinition) if each.name != "parents"]
    row = db.execute(f"select {', '.join(columns)} from rota.schedules where name = %s", [name]).fetchone()  # type: ignore[arg-type]
    return dict(zip(columns, row or (), strict=True))


RULES: dict[str, Any] = {
    "tz": "Europe/Berlin", "start_at": START, "end_at": START + timedelta(days=900), "max_runs": 9, "jitter": "30s",
    "exclude": {"weekdays": ["sat"]}, "misfire": "all", "misfire_grace": "5m", "misfire_limit": 7, "overlap": "queue",
    "queue": "q", "priority": 0, "key": "k", "tags": ["a", "b"], "note": "n",
}  # fmt: skip


@pytest.mark.by_default("words0", "words3", "words5", "words7")
@pytest.mark.parametrize(
    "words",
    [
        {"cron": "0 9 * * *", "dst_gap": "skip", "dst_overlap": "twice", **RULES},
        {"every": "90s", **RULES},
        {"every": "1 month", "counted_from": "end", "overlap": "allow"},
        {"at": START, "misfire": "skip"},
        {"after": ["p", "q"], "overlap": "skip", "max_runs": 3},
        {"after": "p", "dormant": True},
        {"on": "paid", "overlap": "allow"},
        {},
    ],
)
def test_what_is_not_said_stays_as_it_is_in_every_kind(
    app: TestRota, db: psycopg.Connection[Any], words: dict[str, Any]
) -> None:
    app.schedules.put_many_sync([{"name": name, "task": "tick"} for name in ("p", "q")])
    app.schedules.put_sync("s", task="mail", args={"to": "me", "token": "t"}, **words)
    before, parents = said(db, "s"), app.schedules.get_sync("s").parents

    same = app.schedules.change_sync("s")
    changed = app.schedules.change_sync("s", note="another")

    assert (same.revision, changed.revision) == (1, 2)
    assert said(db, "s") == {**before, "note": "another"}
    assert (changed.parents, changed.args) == (parents, {"to": "me", "token": "•••"})


def test_arguments_go_over_those_there_are_and_are_checked(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="mail", args={"to": "me", "token": "hush"}, every="1h")

    app.schedules.change_sync("s", args={"to": "you"})

    assert db.execute("select args from rota.schedules").fetchall() == [({"to": "you", "token": "hush"},)]
    with pytest.raises(InvalidArguments, match="Schedule 's' was not changed: argument to is 7"):
        app.schedules.change_sync("s", args={"to": 7})
    with pytest.raises(InvalidArguments, match="its arguments, which are redacted, do not fit") as hidden:
        app.schedules.change_sync("s", task="tick")
    assert "hush" not in str(hidden.value)


def test_another_kind_takes_the_place_of_the_old_one_and_of_rules_that_mean_nothing_to_it(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 9 * * *", dst_gap="skip", tz="Asia/Tokyo", max_runs=3)

    every = app.schedules.change_sync("s", every="1h")
    after = app.schedules.change_sync("s", on="paid")

    assert (every.kind, every.cron, every.dst_gap, every.tz, every.max_runs) == ("every", None, "run", "Asia/Tokyo", 3)
    assert (after.kind, after.every, after.tz, after.overlap, after.max_runs) == ("event", None, "UTC", "queue", None)
    with pytest.raises(ConfigurationError, match="'s' was not changed: cron= and every= cannot go together"):
        app.schedules.change_sync("s", cron="* * * * *", every="1h")
    with pytest.raises(ConfigurationError, match="'s' was not changed: jitter= means nothing with on="):
        app.schedules.change_sync("s", jitter="1s")


def test_what_is_reset_is_as_if_it_had_never_been_said(app: TestRota) -> None:
    app.schedules.put_sync("s", task="mail", args={"to": "me"}, every="1h", max_runs=3, queue="q", counted_from="end")

    after = app.schedules.change_sync("s", reset=["max_runs", "queue", "counted_from"])
    manual = app.schedules.change_sync("s", reset=["every"])

    assert (after.kind, after.every, after.max_runs, after.queue) == ("every", "1h", None, "mails")
    assert manual.kind == "manual"
    with pytest.raises(ConfigurationError, match="note cannot be given and reset"):
        app.schedules.change_sync("s", note="n", reset=["note"])
    for wrong in ("note", ["notes"]):
        with pytest.raises(ConfigurationError, match="reset cannot be"):
            app.schedules.change_sync("s", reset=wrong)


def test_another_task_brings_its_version_and_what_it_redacts_along(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="other", args={"to": "me"}, every="1h", queue="q")

    after = app.schedules.change_sync("s", task="mail", args={"token": "hush"})

    assert (after.task, after.queue, after.args) == ("mail", "q", {"to": "me", "token": "•••"})
    assert said(db, "s")["redact"] == ["token"]
    assert said(db, "s")["lost_limit"] == app.tasks.find("mail").options.retry.losses
    app.schedules.change_sync("s", task="elsewhere")
    assert (said(db, "s")["redact"], said(db, "s")["lost_limit"]) == (None, None)


def test_what_an_event_brought_along_must_be_there_when_it_runs_by_itself(app: TestRota) -> None:
    app.task(name="ship")(lambda order: None)
    app.schedules.put_sync("s", task="ship", on="paid")

    with pytest.raises(InvalidArguments, match="Schedule 's' was not changed: order is missing"):
        app.schedules.change_sync("s", every="1h")
    assert app.schedules.change_sync("s", every="1h", args={"order": 7}).kind == "every"


def test_what_a_codec_wrote_stays_with_and_without_it(rota_database: str, db: psycopg.Connection[Any]) -> None:
    class Backwards:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    with Rota(rota_database, codec=Backwards()) as app, Rota(rota_database) as other:
        app.schedules.put_sync("s", task="tick", args={"n": 1}, every="1h")
        stored = db.execute("select args from rota.schedules").fetchall()

        other.schedules.change_sync("s", note="without")
        assert db.execute("select args, note from rota.schedules").fetchall() == [(*stored[0], "without")]
        app.schedules.change_sync("s", note="with")
        assert db.execute("select args, note from rota.schedules").fetchall() == [(*stored[0], "with")]
        with pytest.raises(InvalidArguments, match="stored by a codec"):
            other.schedules.change_sync("s", args={"n": 2})
        assert app.schedules.change_sync("s", args={"m": 2}).args == {"n": 1, "m": 2}


def test_what_it_said_before_is_on_record_but_for_arguments_and_keys(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", args={"n": 1}, cron="0 1 * * *")
    app.schedules.put_sync("t", task="tick", every="1h")

    app.schedules.change_sync("s", cron="0 2 * * *", args={"n": 2}, key="ana", by="me")
    app.schedules.put_sync("s", task="tick", args={"n": 2}, cron="0 2 * * *", key="ana", jitter="5s", by="me")
    many = app.schedules.put_many_sync(
        [{"name": "s", "task": "tick", "at": START}, {"name": "t", "task": "tick", "every": "2h"}], by="me"
    )

    changed, put, of_many = db.execute(
        "select action, details from rota.audit where actor = 'me' order by id"
    ).fetchall()
    assert changed == (
        "schedule.change",
        {"schedule": "s", "changes": {"cron": ["0 1 * * *", "0 2 * * *"], "args": None, "key": None}},
    )
    assert put == ("schedule.put", {"schedule": "s", "changes": {"jitter": [0, 5]}})
    assert of_many[1]["changes"]["t"] == {"every": ["1h", "2h"]}
    assert of_many[1]["changes"]["s"]["at"] == [None, START.isoformat()]
    assert many.changes["t"] == {"every": ("1h", "2h")}


async def test_it_has_both_colours_a_dry_run_and_a_name(app: TestRota) -> None:
    await app.schedules.put("s", task="tick", every="1h")

    assert (await app.schedules.change("s", every="2h", dry_run=True)).every == "2h"
    assert (await app.schedules.get("s")).every == "1h"
    assert (await app.schedules.change("s", every="2h")).every == "2h"
    with pytest.raises(ScheduleNotFound):
        app.schedules.change_sync("x", every="1h")


async def test_a_preview_tells_what_would_be_and_leaves_all_as_it_is(
    app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 9 * * *", start_at=START)
    before, audit = said(db, "s"), db.execute("select count(*) from rota.audit").fetchall()

    changed = await app.schedules.preview_change("s", cron="30 8 * * *", tz="Europe/Berlin", n=2)
    put = app.schedules.preview_put_sync("new", task="tick", every="1h", start_at=START, n=3)

    assert changed.schedule.when.startswith("At 08:30 every day, Europe/Berlin time")
    assert changed.slots == (START + timedelta(hours=7, minutes=30), START + timedelta(days=1, hours=7, minutes=30))
    assert put.slots == tuple(START + timedelta(hours=hour) for hour in range(3))
    assert said(db, "s") == before
    assert db.execute("select count(*) from rota.audit").fetchall() == audit
    assert [each.name for each in app.schedules.list_sync()] == ["s"]
    assert (await app.schedules.preview_put("new", task="tick")).slots == ()
    assert app.schedules.preview_change_sync("s", reset=["start_at"], n=1).slots[0] < START
    with pytest.raises(ConfigurationError, match="cron='0 9 \\* \\* mom'"):
        await app.schedules.preview_change("s", cron="0 9 * * mom")
    with pytest.raises(InvalidArguments):
        await app.schedules.preview_put("new", task="tick", args={"m": 1})
    with pytest.raises(ScheduleNotFound):
        await app.schedules.preview_change("nothing", cron="0 9 * * *")
