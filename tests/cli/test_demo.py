from __future__ import annotations

import io
import json
import os
import pty
import re
import termios
import threading
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from rich.console import Console
from tests.commands import Command, is_running

from rota import NewJob, Rota
from rota.cli.demo import CODE, KEYS
from rota.cli.demo_screen import Frame, render
from rota.jobs.inspect import TakenOver
from rota.runtime.demo.events import Event, worth_showing
from rota.runtime.demo.ledger import Ledger
from rota.runtime.demo.slots import Slots, count_slots
from rota.runtime.demo.takeover import Takeover
from rota.runtime.demo.tour import Snapshot, WorkerView
from rota.testing import until_sync

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ledger", "exit_code"),
    [
        (Ledger(enqueued=0), 0),
        (Ledger(enqueued=6, succeeded=1, queued=1, blocked=1, running=1, dead=1, cancelled=1), 0),
        (Ledger(enqueued=5, succeeded=4), 1),
        (Ledger(enqueued=5, succeeded=6), 1),
        (Ledger(enqueued=5, succeeded=9, before=4), 0),
        (Ledger(enqueued=5, scheduled=2, succeeded=7), 0),
        (Ledger(enqueued=5, scheduled=2, succeeded=6), 1),
        (Ledger(enqueued=5, succeeded=6, unanswered=1), 0),
        (Ledger(enqueued=5, succeeded=4, unanswered=1), 1),
    ],
)
def test_exit_code_is_1_unless_every_job_is_accounted_for(ledger: Ledger, exit_code: int) -> None:
    assert ledger.exit_code == exit_code
    assert (" = " in str(ledger)) == ledger.adds_up


@pytest.mark.one_server
@pytest.mark.long
def test_short_demo_on_a_given_database_counts_what_was_there_apart(tmp_path: Path, rota_database: str) -> None:
    with Rota(rota_database, schema="rota_demo") as app:
        app.migrate_sync()
        app.enqueue_sync(NewJob(task="someone else's", args="{}"))

    options = ("demo", "--no-dashboard", "--seconds", "1", "--workers", "1", "--json", "--dsn", rota_database)
    with Command(*options, folder=tmp_path) as demo:
        assert demo.wait() == 0, demo.err
        account = json.loads(demo.out)

    assert account["adds_up"]
    assert account["before"] == 1
    assert (
        account["enqueued"] + account["scheduled"] + 1 == account["succeeded"] + account["queued"] + account["dead"] > 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [["--workers", "2"], pytest.param([], marks=pytest.mark.long)], ids=["two", "as by default"]
)
def test_demo_kills_a_worker_and_loses_nothing(tmp_path: Path, workers: list[str]) -> None:
    with Command("demo", "--seconds", "6", *workers, folder=tmp_path) as demo:
        assert demo.wait() == 0, demo.err

        assert re.search(
            r"^enqueued [\d,]+ \+ scheduled [1-9]\d* = succeeded [\d,]+ \+ queued \d+ .* running 0 \+ dead \d+",
            demo.out,
        )
        assert re.search(r"kill -9 worker-\d \(pid \d+\), which was running \d+ jobs", demo.err)
        assert re.search(r"missed after [\d.]+ s; \d+ jobs? recorded as lost with it, all started again", demo.err)
        assert re.search(r"^take_stock, every second: ([5-9]|\d\d) slots, each once$", demo.err, re.MULTILINE)
        assert CODE in "\n".join(line.rstrip() for line in demo.err.splitlines()) + "\n"


@pytest.mark.long
def test_interrupt_on_a_terminal_leaves_it_as_before_and_no_process_behind(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    shown: list[bytes] = []
    threading.Thread(target=read_all, args=(master, shown), daemon=True).start()

    with Command("demo", "--no-dashboard", "--workers", "2", folder=tmp_path, terminal=terminal) as demo:
        until_sync(lambda: b"".join(shown).count(b"live") >= 2, timeout=30, what="two live workers on the screen")
        workers, servers = demo.children(), demo.servers()
        os.write(master, b"c")
        until_sync(lambda: b"finished what it ran" in b"".join(shown), timeout=15, what="the end of a worker")

        demo.interrupt()

        assert demo.wait() == 0, demo.err
        assert "accounted for" in demo.err
        assert termios.tcgetattr(terminal) == before
        assert (len(workers), len(servers) > 0) == (2, True)
        assert not any(is_running(pid) for pid in [*workers, *servers])
        assert list(tmp_path.glob("rota-postgres-*")) == []
    os.close(terminal)


@pytest.mark.long
@pytest.mark.one_server
def test_its_jobs_are_seen_on_the_dashboard_that_it_serves_and_all_ends_with_it_when_it_is_killed(
    tmp_path: Path, rota_database: str
) -> None:
    def page(path: str) -> str:
        with urllib.request.urlopen(f"{address}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    with Command("demo", "--seconds", "60", "--workers", "1", "--dsn", rota_database, folder=tmp_path) as demo:
        demo.wait_for("✓ 1 worker")
        found = re.search(r"✓ dashboard on (http://\S+)", demo.err)
        assert found is not None
        address = found[1]
        until_sync(lambda: "charge_card" in page("jobs"), 30, "the page shows the jobs of the demo")
        assert "take_stock" in page("schedules")
        workers = demo.children()
        assert len(workers) == 2

        demo.process.kill()

        until_sync(lambda: not any(is_running(pid) for pid in workers), timeout=20, what="the worker's end")


def test_code_shown_at_the_end_runs() -> None:
    module: dict[str, Any] = {"__name__": "shown"}
    exec(CODE, module)

    with module["app"].inline():
        assert module["charge_card"].enqueue_sync(7).result == "order 7 is paid"


def test_takeover_is_complete_once_nothing_is_held_and_all_is_started_again() -> None:
    killed_at, peer = NOW, uuid4()

    def job(started_after: float | None) -> TakenOver:
        again = None if started_after is None else NOW + timedelta(seconds=started_after)
        return TakenOver(1, "send_welcome", NOW, again, peer)

    ended_at = NOW + timedelta(seconds=0.9)

    assert not Takeover("worker-1", killed_at, None, (), 0).complete
    assert not Takeover("worker-1", killed_at, ended_at, (), 2).complete
    assert not Takeover("worker-1", killed_at, ended_at, (job(1.0), job(None)), 0).complete
    assert Takeover("worker-1", killed_at, ended_at, (job(1.5), job(1.0)), 0).starts == [1.0, 1.5]
    assert "all started again by peers within 1.50 s" in str(
        Takeover("worker-1", killed_at, ended_at, (job(1.5), job(1.0)), 0)
    )


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([], "0 slots, each once"),
        ([7], "1 slot, each once"),
        ([2, 1, 3], "3 slots, each once"),
        ([1, 3, 4, 4], "4 slots: 1 left out, 1 run(s) too many"),
    ],
)
def test_slots_are_each_once_unless_one_is_left_out_or_ran_twice(seconds: list[int], told: str) -> None:
    slots = count_slots([NOW + timedelta(seconds=second) for second in seconds])

    assert str(slots) == told
    assert slots.each_once == told.endswith("each once")


@pytest.mark.one_server
@pytest.mark.long
def test_what_passed_since_an_earlier_demo_is_not_made_up_for(tmp_path: Path, rota_database: str) -> None:
    options = ("demo", "--no-dashboard", "--seconds", "2", "--workers", "1", "--json", "--dsn", rota_database)
    for again in (False, True):
        if again:
            with psycopg.connect(rota_database) as db:
                db.execute(
                    "update rota_demo.schedules set next_slot = next_slot - interval '1 h', next_at = next_at - interval '1 h'"
                )
        with Command(*options, folder=tmp_path) as demo:
            assert demo.wait() == 0, demo.err
            account = json.loads(demo.out)

        assert account["slots"]["each_once"]
        assert 1 <= account["slots"]["runs"] == account["scheduled"] < 30


def test_frame_fits_a_small_terminal() -> None:
    workers = tuple(WorkerView(f"worker-{n}", 1000 + n, "killed, taken over", 0, 1) for n in range(9))
    live = tuple(WorkerView(f"worker-{n}", 1000 + n, "live", 30, 12345) for n in range(9, 12))
    events = [Event(NOW, "worker-1", "[red] is not markup " * 9)] * 30
    takeover = Takeover("worker-1", NOW, NOW)
    snapshot = Snapshot(
        workers + live, {"succeeded": 10**6, "queued": 3, "running": 3, "dead": 1}, 10**6, 31.4, Slots(7, 7, 7)
    )
    console = Console(width=80, height=24, record=True, file=io.StringIO())

    console.print(render(Frame("PostgreSQL 18.6", 61, snapshot, [1.0, 2.0], events, takeover, KEYS, 24)))

    lines = console.export_text().splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    assert "worker-11" in "".join(lines)
    assert "7 slots, each once" in "".join(lines)
    assert "[red] is not markup" in "".join(lines)


def test_only_warnings_of_workers_are_shown() -> None:
    assert worth_showing("21:03:04 WARNING job 1 (a) failed in attempt 1: x; it is dead") is not None
    assert worth_showing("21:03:04 INFO    worker stopped") is None
    assert worth_showing("Traceback (most recent call last):") is None


def read_all(descriptor: int, into: list[bytes]) -> None:
    try:
        while data := os.read(descriptor, 65536):
            into.append(data)
    except OSError:
        return
