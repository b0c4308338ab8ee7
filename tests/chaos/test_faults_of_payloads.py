"""What is stored is damaged, larger than some can count, or written by another release: one job fails at most, never a worker."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from tests.chaos.faults import StartWorker, count

from rota.cli import main
from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

APP = """
from datetime import datetime
from decimal import Decimal
from rota import Rota

app = Rota()

@app.task(name="order", retry=None)
def order(number: int, price: Decimal, at: datetime, items: list[str], note: str | None = None) -> str:
    assert (type(number), type(price), type(at), type(items)) == (int, Decimal, datetime, list)
    assert all(type(item) is str for item in items)
    return "as declared"
"""
ORDER = '{"number": 17, "price": "12.50", "at": "2026-03-01T12:00:00+00:00", "items": ["a", "b"], "note": null}'


def damaged(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text))
        text = (
            text[:at]
            + chance.choice(['"', "\\", "{", "[", "0", "e9", "null", chr(chance.randrange(32, 600))])
            + text[at + 1 :]
        )
    return text


def test_damaged_payloads_fail_their_own_jobs_and_never_the_worker(
    rota_app: TestRota, rota_worker: StartWorker
) -> None:
    chance = random.Random(3)
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as db:
        for text in [ORDER, *(damaged(ORDER, chance) for _ in range(600))]:
            with contextlib.suppress(psycopg.Error):  # most are no JSON any more, or no object
                db.execute("insert into rota.jobs (task, args) values ('order', %s)", [text])
        stored = count(db, "jobs")

        worker = rota_worker(APP, args=["--drain"], wait=False)
        assert worker.wait(60) == 0

        done = db.execute("select result, count(*) from rota.history group by 1").fetchall()
        kinds = Counter(kind for (kind,) in db.execute("select error_type from rota.dead").fetchall())
    assert stored > 50
    assert [result for result, _ in done] == ["as declared"]
    assert list(kinds) == ["InvalidArguments"]
    assert done[0][1] + kinds.total() == stored


@pytest.mark.parametrize("first_id", [2**31 - 5, 2**53 + 1], ids=["32 bits", "what a float holds"])
def test_ids_of_any_size_go_the_whole_way_and_back_on_the_command_line(
    rota_app: TestRota, capsys: pytest.CaptureFixture[str], first_id: int
) -> None:
    dsn = rota_app.database.dsn.conninfo

    def rota(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--dsn", dsn])
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    @rota_app.task(name="fail", retry=None)
    def fail(n: int) -> None:
        raise ValueError(n)

    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("select setval('rota.jobs_id_seq', %s, false)", [first_id])
        db.execute("select setval('rota.audit_id_seq', %s, false)", [first_id])
    one, two, three = (int(rota("jobs", "enqueue", "fail", f'{{"n": {n}}}')) for n in range(3))
    rota("jobs", "cancel", str(three))
    rota_app.drain_sync()
    again = int(rota("dead", "retry", str(one)))
    rota("dead", "acknowledge", str(two))

    assert [one, two, three, again] == list(range(first_id, first_id + 4))
    assert [job["id"] for job in json.loads(rota("jobs", "list", "--json"))] == [
        again,
        three,
    ]  # letters that are put away are left out
    assert json.loads(rota("jobs", "show", str(one), "--json"))["successor"] == again
    assert json.loads(rota("jobs", "show", str(again), "--json"))["origin"] == one
    assert json.loads(rota("jobs", "explain", str(again), "--json"))["job"]["id"] == again
    assert json.loads(rota("dead", "show", str(one), "--json"))["successor"] == again
    rota_app.drain_sync()
    assert [letter["id"] for letter in json.loads(rota("dead", "list", "--json"))] == [again]


OLD = """
from rota import Rota

app = Rota()

@app.task(name="greet", retry=None)
def greet(name: str) -> str:
    return f"old {name}"

@app.task(name="only old")
def only_old() -> str:
    return "old"
"""

NEW = """
from rota import Rota

app = Rota()

@app.task(name="greet", version=2, retry=None)
def greet(first: str, last: str) -> str:
    return f"new {first} {last}"

@greet.upgrade
def upgrade(arguments, version):
    first, _, last = arguments["name"].partition(" ")
    return {"first": first, "last": last}

@app.task(name="only new")
def only_new() -> str:
    return "new"
"""


@pytest.mark.long
def test_two_releases_share_a_database_and_each_runs_what_it_knows(
    rota_app: TestRota, rota_worker: StartWorker, tmp_path: Path
) -> None:
    """A roll-out: calls of both releases, workers of both, and then those of the old one stop."""
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as db:

        def call(times: int) -> None:
            for _ in range(times):
                db.execute("""select rota.enqueue('greet', '{"name": "Ada L"}')""")
                db.execute("""select rota.enqueue('greet', '{"first": "Alan", "last": "T"}', version => 2)""")
                db.execute("select rota.enqueue('only old'), rota.enqueue('only new')")

        call(50)
        old = rota_worker(OLD)
        new = rota_worker(NEW)
        call(50)
        until_sync(lambda: count(db, "history") == 400, timeout=30, what="each has run what it knows")
        old.terminate()
        assert old.wait() == 0
        call(5)
        until_sync(lambda: count(db, "history") == 415, timeout=30, what="the new one has run what it knows")

        ran = db.execute(
            "select task || ' ' || version, array_agg(distinct result #>> '{}'), count(*) filter (where attempt = 1) "
            "from rota.history group by 1 order by 1"
        ).fetchall()
        assert ran[1:] == [
            ("greet 2", ["new Alan T"], 105),
            ("only new 1", ["new"], 105),
            ("only old 1", ["old"], 100),
        ]
        assert (set(ran[0][1]) <= {"old Ada L", "new Ada L"}, ran[0][2]) == (True, 105)
        assert db.execute("select task, attempt, count(*) from rota.jobs group by 1, 2").fetchall() == [
            ("only old", 0, 5)
        ]
        assert (count(db, "attempts"), count(db, "dead")) == (0, 0)
        assert new.returncode is None
    assert "knows" in str(rota_app.jobs.explain_sync(rota_app.jobs.list_sync(state="queued")[0].id))
