"""`rota leaders`: who leads what, as tables and as JSON; having a leader step down; and any program under a term."""

# ruff: noqa: PT012 - what is raised at the end of a block is raised after its statements

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.commands import Command, is_running

from rota import LeadershipLost, Rota
from rota.leases.terms import request_resignation
from rota.testing import TcpProxy, until_sync

Run = Callable[..., Any]


@pytest.fixture
def app(rota_database: str) -> Iterator[Rota]:
    with Rota(rota_database) as app:
        yield app


def test_who_leads_and_who_led_is_listed_as_tables_and_as_json(rota: Run, app: Rota) -> None:
    dsn = app.database.dsn.conninfo
    assert "nothing was ever led" in rota("leaders", "list", "--dsn", dsn).err
    with app.leadership("nightly") as first:
        pass
    with app.leadership("nightly") as term:
        listed = rota("leaders", "list", "--dsn", dsn)
        (view,) = json.loads(rota("leaders", "list", "--json", "--dsn", dsn).out)
        terms = rota("leaders", "terms", "nightly", "--dsn", dsn)
        as_json = json.loads(rota("leaders", "terms", "nightly", "--json", "--limit", "1", "--dsn", dsn).out)

    assert str(term.epoch) in listed.out
    assert (view["name"], view["epoch"], view["member"]) == ("nightly", term.epoch, str(term.member))
    assert (view["pid"], view["standbys"]) == (os.getpid(), [])
    assert [line.split()[0] for line in terms.out.splitlines()[1:]] == [str(term.epoch), str(first.epoch)]
    assert ["leads" in line for line in terms.out.splitlines()[1:]] == [True, False]
    assert [(each["epoch"], each["ended_at"]) for each in as_json] == [(term.epoch, None)]
    assert "nobody" in rota("leaders", "list", "--dsn", dsn).out
    assert "never led" in rota("leaders", "terms", "daily", "--dsn", dsn).err


def test_the_progress_of_a_leader_is_listed(rota: Run, app: Rota) -> None:
    dsn = app.database.dsn.conninfo
    with app.leadership("nightly") as term:
        term.progress("page 7")
        until_sync(lambda: app.leaders.list_sync()[0].progress_note == "page 7", what="it is known")
        listed = rota("leaders", "list", "--dsn", dsn)
        (view,) = json.loads(rota("leaders", "list", "--json", "--dsn", dsn).out)

    assert " s ago: page 7" in listed.out
    assert (view["progress_note"], 0 <= view["progress_age"] < 60) == ("page 7", True)


@pytest.mark.one_server
@pytest.mark.long
def test_changes_are_shown_while_one_watches(app: Rota, tmp_path: Path) -> None:
    with app.leadership("unwatched"), app.leadership("nightly") as first:
        options = ("--json", "--every", "20ms", "--dsn", app.database.dsn.conninfo)
        with Command("leaders", "watch", "nightly", *options, folder=tmp_path) as watching:

            def shown() -> list[tuple[str, int, bool]]:
                views = [json.loads(line) for line in watching.out.splitlines()]
                return [(view["name"], view["epoch"], view["holder"] is not None) for view in views]

            until_sync(lambda: shown() == [("nightly", first.epoch, True)], what="the leader is shown")
            first.resign_sync()
            until_sync(lambda: shown()[1:] == [("nightly", first.epoch, False)], what="that nobody leads is shown")
            watching.interrupt()
            assert watching.wait() == 0


@pytest.mark.long
@pytest.mark.one_server
def test_who_watches_a_name_that_nobody_has_led_is_told_so_once(app: Rota, tmp_path: Path) -> None:
    options = ("--every", "20ms", "--dsn", app.database.dsn.conninfo)
    with (
        Command("leaders", "watch", "nightyl", *options, folder=tmp_path) as watching,
        app.leadership("nightly"),
    ):
        watching.wait_for("nobody has led nightyl here so far")
        with app.leadership("nightyl") as term:
            until_sync(lambda: f"epoch {term.epoch}" in watching.out, what="it is watched all the same")
        watching.interrupt()
        assert (watching.wait(), watching.err.count("nobody")) == (0, 1)


@pytest.mark.parametrize(
    ("reason", "said"),
    [("expired", "lost: its lease ran out"), ("suspected", "lost: its session ended, and it did not come back")],
)
def test_why_a_term_was_lost_is_told_before_and_after_another_leads(
    rota: Run, app: Rota, reason: str, said: str
) -> None:
    dsn = app.database.dsn.conninfo
    with (
        contextlib.suppress(LeadershipLost),
        Rota(dsn) as other,
        psycopg.connect(dsn, autocommit=True) as db,
        app.leadership("nightly"),
    ):
        db.execute("update rota.members set ended_at = now(), end_reason = %s", [reason])
        (term,) = app.leaders.terms_sync("nightly")
        with other.leadership("nightly"):
            db.execute("delete from rota.members where ended_at is not null")  # as after a week
            terms = rota("leaders", "terms", "nightly", "--dsn", dsn).out.splitlines()[1:]

    assert (term.end_reason, term.lost_because, term.ended_at is None) == ("lost", reason, False)
    assert ["leads" in terms[0], said in terms[1]] == [True, True]


def test_a_leader_is_asked_to_step_down_or_loses_its_term(rota: Run, app: Rota) -> None:
    dsn = app.database.dsn.conninfo
    assert rota("leaders", "resign", "nightly", "--dsn", dsn).code == 1
    with contextlib.suppress(LeadershipLost), app.leadership("nightly") as term:
        tried = rota("leaders", "resign", "nightly", "--dry-run", "--dsn", dsn)
        assert (tried.code, "would be asked" in tried.err, term.valid) == (0, True, True)
        asked = rota("leaders", "resign", "nightly", "--dsn", dsn)
        assert (asked.code, str(term.epoch) in asked.err) == (0, True)
        until_sync(lambda: not term.valid, what="it was told")
        assert "asked to step down" in rota("leaders", "list", "--dsn", dsn).out
    with contextlib.suppress(LeadershipLost), app.leadership("nightly") as term:
        tried = rota("leaders", "resign", "nightly", "--force", "--dry-run", "--dsn", dsn)
        assert (tried.code, "would lose" in tried.err) == (0, True)
        term.confirm_sync()
        assert rota("leaders", "resign", "nightly", "--force", "--dsn", dsn).code == 0
        assert "nobody" in rota("leaders", "list", "--dsn", dsn).out


def test_only_the_term_that_was_meant_is_asked_to_end(rota: Run, app: Rota) -> None:
    dsn = app.database.dsn.conninfo
    with app.leadership("nightly") as last:
        pass
    with app.leadership("nightly") as term:
        for force in ((), ("--force",)):
            ended = rota("leaders", "resign", "nightly", "--epoch", str(last.epoch), *force, "--dsn", dsn)
            assert (ended.code, f"epoch {last.epoch}, is over" in ended.err) == (1, True)
        # who steps down between the look and the request
        assert not app.database.run_sync(request_resignation("nightly", last.epoch))
        assert not app.leaders.list_sync()[0].asked_to_resign
        term.confirm_sync()
    with contextlib.suppress(LeadershipLost), app.leadership("nightly") as term:
        assert rota("leaders", "resign", "nightly", "--epoch", str(term.epoch), "--dsn", dsn).code == 0


@pytest.mark.long
@pytest.mark.one_server
def test_one_can_wait_until_a_leader_has_stepped_down(rota: Run, app: Rota, tmp_path: Path) -> None:
    dsn = app.database.dsn.conninfo
    with contextlib.suppress(LeadershipLost), app.leadership("nightly"):
        ended = rota("leaders", "resign", "nightly", "--wait", "10ms", "--dsn", dsn)
        assert (ended.code, "still leads nightly" in ended.err) == (1, True)
        command = ("leaders", "resign", "nightly", "--wait", "1m", "--dsn", dsn)
        waiting = Command(*command, folder=tmp_path)
        waiting.wait_for("was asked to step down")
        assert waiting.process.poll() is None
    with waiting:
        assert (waiting.wait(), "has stepped down" in waiting.err) == (0, True)


def test_who_had_a_leader_step_down_is_on_record(rota: Run, app: Rota) -> None:
    dsn = app.database.dsn.conninfo
    with contextlib.suppress(LeadershipLost), app.leadership("nightly") as term:
        rota("leaders", "resign", "nightly", "--dry-run", "--dsn", dsn)
        rota("leaders", "resign", "nightly", "--force", "--dry-run", "--dsn", dsn)
        rota("leaders", "resign", "nightly", "--by", "ana", "--dsn", dsn)
        app.leaders.resign_sync("nightly", force=True)
    rota("leaders", "resign", "nightly", "--by", "bo", "--dsn", dsn)  # whom nobody heard

    with psycopg.connect(dsn) as db:
        entries = db.execute("select actor, action, details from rota.audit order by id").fetchall()
    asked = {"name": "nightly", "epoch": term.epoch, "force": False}
    assert [entry[1:] for entry in entries] == [("resign", asked), ("resign", {**asked, "force": True})]
    assert (entries[0][0], "@" in entries[1][0]) == ("ana", True)


@pytest.mark.one_server
def test_a_term_is_taken_away_from_a_leader_who_hangs_inside_its_transaction(rota: Run, app: Rota) -> None:
    dsn = app.database.dsn.conninfo
    with app.leadership("nightly") as term, term.transaction():
        assert rota("leaders", "resign", "nightly", "--force", "--dry-run", "--dsn", dsn).code == 0
    with pytest.raises((LeadershipLost, psycopg.Error)), app.leadership("nightly") as term, term.transaction():
        assert rota("leaders", "resign", "nightly", "--force", "--dsn", dsn).code == 0
        assert "nobody" in rota("leaders", "list", "--dsn", dsn).out


@contextlib.contextmanager
def led(app: Rota, folder: Path, *command: str, wait: str | None = None) -> Iterator[Command]:
    """`rota leaders exec nightly`, in a process of its own."""
    options = ["--dsn", app.database.dsn.conninfo, *(["--wait", wait] if wait else [])]
    with Command("leaders", "exec", *options, "nightly", "--", *command, folder=folder) as process:
        yield process


# says what it was told, starts something else that heeds no SIGTERM, and tells both pids
PROGRAM = """
echo "$ROTA_LEADERSHIP $ROTA_EPOCH"
(trap '' TERM; exec sleep 600) &
echo "$$ $!" > pids
{then}
wait
"""


def pids(folder: Path) -> list[int]:
    file = folder / "pids"
    until_sync(lambda: file.exists() and len(file.read_text().split()) == 2, 20, what="the program runs")
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.one_server
def test_a_program_runs_under_a_term_and_its_exit_code_is_that_of_the_command(
    rota: Run, app: Rota, tmp_path: Path
) -> None:
    said, dsn = tmp_path / "said", app.database.dsn.conninfo
    program = f'echo "$ROTA_LEADERSHIP $ROTA_EPOCH $*" > {said}; exit 7'
    # options of ours may follow the name; those of the program are its own
    ended = rota("leaders", "exec", "nightly", "--dsn", dsn, "--", "sh", "-c", program, "sh", "--dsn", "--")
    (term,) = app.leaders.terms_sync("nightly")
    assert (ended.code, said.read_text()) == (7, f"nightly {term.epoch} --dsn --\n")
    assert term.end_reason == "resigned"
    assert rota("leaders", "exec", "nightly", "--dsn", dsn).code == 2


@pytest.mark.one_server
def test_what_cannot_be_started_is_told(rota: Run, app: Rota) -> None:
    ended = rota("leaders", "exec", "nightly", "--dsn", app.database.dsn.conninfo, "--", "./nothing-here")
    assert (ended.code, "'./nothing-here' cannot be started" in ended.err) == (2, True)


@pytest.mark.one_server
def test_a_program_is_not_started_while_another_leads(rota: Run, app: Rota, tmp_path: Path) -> None:
    with app.leadership("nightly") as term:
        for wait in ((), ("--wait", "10ms")):
            options = (*wait, "--dsn", app.database.dsn.conninfo)
            ended = rota("leaders", "exec", "nightly", *options, "--", "touch", str(tmp_path / "ran"))
            assert (ended.code, f"(epoch {term.epoch}), so touch was not started. --wait TIME" in ended.err) == (
                3,
                True,
            )
    assert not (tmp_path / "ran").exists()


@pytest.mark.one_server
@pytest.mark.long
def test_a_crontab_may_choose_the_code_and_the_silence_of_those_who_do_not_lead(app: Rota, tmp_path: Path) -> None:
    options = ("--quiet", "--held-code", "75", "--dsn", app.database.dsn.conninfo)
    command = ("leaders", "exec", *options, "nightly", "--", "sh", "-c", "echo done; exit 3")
    with app.leadership("nightly"), Command(*command, folder=tmp_path) as held:
        assert (held.wait(), held.out, held.err) == (75, "", "")
    with Command(*command, folder=tmp_path) as leading:
        assert (leading.wait(), leading.out, leading.err) == (3, "done\n", "")


@pytest.mark.one_server
def test_a_program_is_not_started_when_the_database_is_away(rota: Run, app: Rota, tmp_path: Path) -> None:
    with TcpProxy(app.database.dsn.conninfo) as proxy:
        dsn = proxy.dsn(app.database.dsn.conninfo)
    ended = rota("leaders", "exec", "--quiet", "nightly", "--dsn", dsn, "--", "touch", str(tmp_path / "ran"))
    assert (ended.code, "refused" in ended.err) == (4, True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.one_server
@pytest.mark.long
def test_a_program_is_started_when_its_turn_comes_and_not_after_a_signal(app: Rota, tmp_path: Path) -> None:
    with app.leadership("nightly") as term:
        with led(app, tmp_path, "touch", "early", wait="forever") as process:
            process.wait_for("standing by for nightly")
            process.interrupt()
            assert process.wait() == 128 + signal.SIGINT
        with led(app, tmp_path, "touch", "ran", wait="forever") as process:
            process.wait_for("standing by for nightly")
            term.resign_sync()
            assert process.wait() == 0
    assert f"leading nightly (epoch {app.leaders.terms_sync('nightly')[0].epoch})" in process.err
    assert [(tmp_path / name).exists() for name in ("early", "ran")] == [False, True]


@pytest.mark.parametrize(
    "name", ["TERM", pytest.param("HUP", marks=pytest.mark.long), pytest.param("QUIT", marks=pytest.mark.long)]
)
@pytest.mark.one_server
def test_a_signal_is_passed_on_and_the_program_ends_in_its_own_way(app: Rota, tmp_path: Path, name: str) -> None:
    program = PROGRAM.format(then=f"trap 'echo tidied; exit 5' {name}")
    with led(app, tmp_path, "sh", "-c", program) as process:
        running = pids(tmp_path)
        until_sync(lambda: process.out.startswith("nightly"), what="it has told its epoch")
        process.process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait() == 5
        assert [is_running(pid) for pid in running] == [False, False]
    assert "tidied" in process.out
    assert app.leaders.terms_sync("nightly")[0].end_reason == "resigned"


@pytest.mark.long
@pytest.mark.one_server
def test_a_program_under_nohup_outlives_its_terminal(app: Rota, tmp_path: Path) -> None:
    heeding = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        with led(app, tmp_path, "sh", "-c", PROGRAM.format(then="trap 'exit 5' TERM")) as process:
            pids(tmp_path)
            process.process.send_signal(signal.SIGHUP)
            process.process.send_signal(signal.SIGTERM)
            assert process.wait() == 5
    finally:
        signal.signal(signal.SIGHUP, heeding)


@pytest.mark.one_server
def test_a_program_does_not_outlive_its_keeper(app: Rota, tmp_path: Path) -> None:
    """Without it nobody would end the program in time if the process that leads froze."""
    with led(app, tmp_path, "sh", "-c", PROGRAM.format(then="")) as process:
        running = pids(tmp_path)
        (keeper,) = {os.getpgid(pid) for pid in running}
        os.kill(keeper, signal.SIGKILL)
        assert (process.wait(), f"process {keeper}, has died" in process.err) == (1, True)
        assert [is_running(pid) for pid in running] == [False, False]
    assert app.leaders.terms_sync("nightly")[0].end_reason == "resigned"


@pytest.mark.one_server
@pytest.mark.long
def test_a_program_that_does_not_heed_the_signal_is_killed_after_its_grace(app: Rota, tmp_path: Path) -> None:
    program = PROGRAM.format(then="trap '' TERM; while :; do sleep 0.1; done")
    options = ("--grace", "100ms", "--dsn", app.database.dsn.conninfo)
    with Command("leaders", "exec", *options, "nightly", "--", "sh", "-c", program, folder=tmp_path) as process:
        running = pids(tmp_path)
        process.process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGKILL
        assert [is_running(pid) for pid in running] == [False, False]


@pytest.mark.one_server
@pytest.mark.long
def test_a_program_and_what_it_has_started_end_when_the_term_is_lost(app: Rota, tmp_path: Path) -> None:
    with led(app, tmp_path, "sh", "-c", PROGRAM.format(then="trap '' TERM")) as process:
        running = pids(tmp_path)
        app.leaders.resign_sync("nightly", force=True)
        assert process.wait() == 3
        assert [is_running(pid) for pid in running] == [False, False]
    assert "is over" in process.err
    assert "Traceback" not in process.err


@pytest.mark.long
@pytest.mark.one_server
def test_a_program_and_what_it_has_started_die_with_the_process_that_leads(app: Rota, tmp_path: Path) -> None:
    """Also one that is being stopped, and a program that takes its time."""
    program = PROGRAM.format(then="trap 'touch told' TERM; while :; do sleep 0.1; done")
    with led(app, tmp_path, "sh", "-c", program) as process:
        running = pids(tmp_path)
        process.process.send_signal(signal.SIGTERM)
        until_sync((tmp_path / "told").exists, what="the program was told")
        process.process.kill()
        until_sync(lambda: not any(is_running(pid) for pid in running), what="they are gone")


@pytest.mark.long
@pytest.mark.one_server
def test_a_program_ends_in_time_when_the_process_that_leads_is_frozen(rota_database: str, tmp_path: Path) -> None:
    """Its keeper knows until when it may run, and nobody else leads before that."""
    command = ("leaders", "exec", "--dsn", rota_database, "nightly", "--", "sh", "-c", PROGRAM.format(then=""))
    with (
        Rota(rota_database, lease="1.5s") as app,
        Command(*command, folder=tmp_path, env={"ROTA_LEASE": "1.5s"}) as process,
    ):
        running = pids(tmp_path)
        process.process.send_signal(signal.SIGSTOP)
        with app.leadership("nightly").wait("30s"):
            assert [is_running(pid) for pid in running] == [False, False]
            process.process.send_signal(signal.SIGCONT)
            assert process.wait() == 3
