from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Command

from rota import Rota
from rota.cli.discover import app_paths
from rota.embedded import EmbeddedServer
from rota.errors import AppNotFound, ConfigurationError, RotaError
from rota.runtime.reload import changed, read_code
from rota.testing import TcpProxy, until_sync

Run = Callable[..., Any]

APP = """
from rota import Rota

app = Rota({dsn!r})


@app.task
def greet(name: str) -> str:
    return "hello " + name
"""


RELOADED = """
import time
from pathlib import Path
from rota import Rota, current_job

app = Rota({dsn!r})

@app.task
def short(gate: str) -> str:
    time.sleep(0.5)
    return "rested"

@app.task
def long(gate: str) -> int:
    job = current_job()
    runs = (job.saved or 0) + 1
    while not Path(gate).exists():
        if job.stopping:
            job.checkpoint_sync(runs)
        time.sleep(0.01)
    return runs
"""


def greeting(dsn: str) -> str:
    """What a job enqueued now comes back with."""
    app = Rota(dsn)

    @app.task(name="greet")
    def greet(name: str) -> str:
        raise NotImplementedError

    with app:
        return greet.enqueue_sync("you").wait_sync(20)


@pytest.mark.long
@pytest.mark.one_server
def test_a_change_is_picked_up_and_broken_code_is_waited_out(tmp_path: Path, rota_database: str) -> None:
    file = tmp_path / "tasks.py"
    file.write_text(APP.format(dsn=rota_database))

    with Command("dev", "--no-dashboard", folder=tmp_path) as dev:
        dev.wait_for("working on")
        assert "tasks       greet" in dev.err
        assert greeting(rota_database) == "hello you"

        file.write_text(file.read_text().replace("hello ", "good evening "))
        dev.wait_for("working on", times=2)
        assert greeting(rota_database) == "good evening you"

        file.write_text(file.read_text() + "\ndef (")
        dev.wait_for("Waiting for the next change")
        assert "tasks.py cannot be read as Python" in dev.err

        file.write_text(file.read_text().replace("\ndef (", "\nraise RuntimeError('not yet')"))
        dev.wait_for("Waiting for the next change", times=2)
        assert "RuntimeError: not yet" in dev.err

        file.write_text(APP.format(dsn=rota_database).replace("hello ", "good night "))
        dev.wait_for("working on", times=3)
        assert greeting(rota_database) == "good night you"

        dev.interrupt()
        assert dev.wait() == 0


@pytest.mark.one_server
def test_the_dashboard_is_served_beside_the_worker_and_ends_with_it(tmp_path: Path, rota_database: str) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(dsn=rota_database))

    with Command("dev", folder=tmp_path) as dev:
        dev.wait_for("dashboard on http://")
        found = re.search(r"dashboard on (http://\S+)", dev.err)
        assert found is not None
        page = until_sync(lambda: read(f"{found[1]}jobs"), 30, "it is served")
        dev.wait_for("working on")
        dev.interrupt()
        assert dev.wait() == 0

    assert "No job fits" in page
    assert read(f"{found[1]}jobs") is None


def read(url: str) -> str | None:
    """The page, if somebody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


@pytest.mark.long
@pytest.mark.one_server
def test_what_a_worker_held_that_crashed_is_free_when_that_is_told(tmp_path: Path, rota_database: str) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(dsn=rota_database))

    with Command("dev", "--no-dashboard", folder=tmp_path) as dev, Rota(rota_database) as app:
        dev.wait_for("working on")
        (worker,) = dev.children()
        os.kill(worker, signal.SIGKILL)
        dev.wait_for("The worker ended (killed by SIGKILL)")
        assert [member.end_reason for member in app.members_sync(ended=True)] == ["suspected"]

        dev.interrupt()
        assert dev.wait() == 0


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.parametrize(
    "reloads", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)]
)
def test_reloads_lose_no_work_and_charge_none(tmp_path: Path, rota_database: str, reloads: int) -> None:
    """What runs finishes within the grace, or ends at its next checkpoint and goes on in the next worker."""
    file = tmp_path / "tasks.py"
    file.write_text(RELOADED.format(dsn=rota_database))

    with Command("dev", "--no-dashboard", folder=tmp_path) as dev, Rota(rota_database) as app:
        short, long = (app.task(name=name)(lambda gate: 0) for name in ("short", "long"))
        gate = str(tmp_path / "gate")
        dev.wait_for("working on")
        jobs = [long.enqueue_sync(gate)]
        for reload in range(reloads):
            jobs += [short.enqueue_sync(gate) for _ in range(5)]
            until_sync(lambda: len(app.jobs.list_sync(state="running")) == 6, what="all of them run")
            file.write_text(file.read_text() + "\n")
            dev.wait_for("working on", times=reload + 2)
        Path(gate).touch()

        assert jobs[0].wait_sync(20) == reloads + 1  # one run per worker
        assert [job.wait_sync(20) for job in jobs[1:]] == ["rested"] * 5 * reloads
        assert {(job.refresh_sync().attempt, job.refresh_sync().losses) for job in jobs} == {(1, 0)}
        assert not any(job.refresh_sync().errors for job in jobs)
        assert [line for line in dev.err.splitlines() if line.startswith("health")] == [
            "health      ready",
            *["health      not ready: stopping", "health      ready"] * reloads,
        ]
        dev.interrupt()
        assert dev.wait() == 0


@pytest.mark.long
@pytest.mark.one_server
@pytest.mark.direct("what is cut off is the way to the server")
def test_that_the_database_is_away_and_back_is_told_in_a_line(tmp_path: Path, rota_database: str) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(dsn=None))

    with TcpProxy(rota_database) as proxy:
        address = {"ROTA_DATABASE_URL": proxy.dsn(rota_database)}
        with Command("dev", "--no-dashboard", folder=tmp_path, env=address) as dev:
            dev.wait_for("health      ready")
            proxy.blackhole()
            proxy.cut()
            dev.wait_for("health      not ready: the database is away")

            proxy.heal()

            dev.wait_for("health      ready", times=2)
            dev.interrupt()
            assert dev.wait() == 0


@pytest.mark.long
def test_dev_brings_its_own_server_and_takes_it_along(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(APP.format(dsn=None))

    with Command("dev", "--no-dashboard", folder=tmp_path) as dev:
        dev.wait_for("working on")
        assert "embedded, data in .rota/postgres; look inside with `rota postgres psql`" in dev.err
        (worker,) = dev.children()
        with EmbeddedServer(tmp_path / ".rota" / "postgres") as server:
            assert greeting(server.start()) == "hello you"

        dev.interrupt()

        assert dev.wait() == 0
        assert dev.servers() == []
        assert not Path(f"/proc/{worker}").exists()


@pytest.mark.long
def test_an_ephemeral_dev_leaves_nothing_behind(tmp_path: Path, rota: Run) -> None:
    (tmp_path / "main.py").write_text(APP.format(dsn=None))

    with Command("dev", "--no-dashboard", "--ephemeral", folder=tmp_path) as dev:
        dev.wait_for("working on")
        assert not (tmp_path / ".rota").exists()

        dev.interrupt()
        assert dev.wait() == 0

    assert not (tmp_path / ".rota").exists()
    assert rota("dev", "main.py", "--ephemeral", "--dsn", "dbname=x").code == 2


@pytest.mark.long
def test_the_data_of_the_embedded_server_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(APP.format(dsn=None))

    with Command("dev", "--data", "elsewhere", folder=tmp_path) as dev:
        dev.wait_for("working on")

        dev.interrupt()
        assert dev.wait() == 0

    assert (tmp_path / "elsewhere" / "data" / "PG_VERSION").exists()
    assert not (tmp_path / ".rota").exists()


@pytest.mark.long
@pytest.mark.one_server
def test_dsn_beats_the_one_in_the_code_and_stands_on_no_command_line(tmp_path: Path, rota_database: str) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(dsn="postgresql://nobody@127.0.0.1:1/nowhere"))

    with Command("dev", "--no-dashboard", "tasks.py", "--dsn", rota_database, folder=tmp_path) as dev:
        dev.wait_for("working on")
        (worker,) = dev.children()

        assert greeting(rota_database) == "hello you"
        assert b"dsn" not in Path(f"/proc/{worker}/cmdline").read_bytes()

        dev.process.kill()
        until_sync(lambda: "left (" in dev.err, what="the worker stops cleanly although its parent was killed")


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({}, [], "there is no main.py, app.py, tasks.py or jobs.py that makes a Rota"),
        pytest.param({"main.py": "print('rota')"}, [], "'main.py' holds no Rota", marks=pytest.mark.long),
        ({"main.py": "from rota import Rota\na = Rota()\nb = Rota()"}, [], "holds 2 Rotas. main holds a, b"),
        pytest.param(
            {"pyproject.toml": "[tool.rota]\napp = 'gone:app'"}, [], "There is no module 'gone'", marks=pytest.mark.long
        ),
        pytest.param({}, ["gone.py"], "There is no file 'gone.py'", marks=pytest.mark.long),
    ],
)
def test_no_app_is_told_at_once(
    rota: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    ended = rota("dev", *arguments)

    assert ended.code == 2
    assert said in ended.err


def test_app_is_named_by_pyproject_before_convention(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("from rota import Rota")
    (tmp_path / "tasks.py").write_text("import rota")
    (tmp_path / "jobs.py").write_text("print('nothing to do with it')")
    assert app_paths(tmp_path) == ["main.py", "tasks.py"]

    (tmp_path / "pyproject.toml").write_text("[tool.rota]\napp = 'shop.work:app'")
    assert app_paths(tmp_path) == ["shop.work:app"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[tool.rota]\napp = 3", ConfigurationError), ("[tool", ConfigurationError), ("[tool]\nrota = 3", AppNotFound)],
)
def test_a_pyproject_that_names_no_app_is_refused(tmp_path: Path, text: str, kind: type[RotaError]) -> None:
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(kind):
        app_paths(tmp_path)


def test_changes_are_seen_in_our_own_code_only(tmp_path: Path) -> None:
    watched = ["a.py", "package/b.py"]
    unwatched = [
        ".git/c.py",
        ".venv/d.py",
        "env/lib/e.py",
        "node_modules/f.py",
        "package/__pycache__/g.py",
        "notes.txt",
    ]
    for name in [*watched, *unwatched, "env/pyvenv.cfg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "package" / "loop").symlink_to(tmp_path)

    before = read_code(tmp_path)
    os.utime(tmp_path / "a.py", (1, 1))
    (tmp_path / "package" / "b.py").unlink()
    (tmp_path / "new.py").write_text("")
    after = read_code(tmp_path)

    assert sorted(before) == [str(tmp_path / name) for name in watched]
    assert changed(before, after) == [str(tmp_path / name) for name in ("a.py", "new.py", "package/b.py")]
    assert changed(after, after) == []
