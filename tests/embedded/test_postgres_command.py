"""`rota postgres start|stop|status|url|psql`, each as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rota.embedded import status

CODE = """
import sys
from rota.cli.postgres import postgres
from rota.errors import RotaError
try:
    postgres(prog_name="rota postgres")
except RotaError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def rota_postgres(home: Path, tools: Any) -> Run:
    def run(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CODE, verb, "--data", str(home), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(tools.source)},
        )

    return run


def test_a_started_server_stays_until_it_is_stopped(home: Path, rota_postgres: Run, programs: Any, tools: Any) -> None:
    started = rota_postgres("start")
    tools.write_row(started.stdout.strip())
    user = programs(home)
    user.answer()
    user.leave()
    seen = json.loads(rota_postgres("status", "--json").stdout)
    url = rota_postgres("url")
    again = rota_postgres("start")

    stopped = rota_postgres("stop")

    assert started.returncode == again.returncode == stopped.returncode == 0
    assert started.stdout == url.stdout == again.stdout
    assert "is running, with its data in" in started.stderr
    assert (seen["running"], seen["pinned"], seen["users"]) == (True, True, [])
    assert stopped.stdout == ""
    assert stopped.stderr == "Stopped.\n"
    assert tools.processes_of(home) == []


def test_stop_refuses_while_others_use_the_server_unless_forced(
    home: Path, rota_postgres: Run, programs: Any, tools: Any
) -> None:
    user = programs(home)
    user.answer()

    refused = rota_postgres("stop")
    assert refused.returncode == 1
    assert f"is in use (process {user.pid})" in refused.stderr
    assert status(home).running
    forced = rota_postgres("stop", "--force")

    assert forced.returncode == 0
    assert status(home).state == "stopped"


@pytest.mark.long
def test_a_pinned_server_that_is_stopped_and_used_again_is_no_longer_pinned(
    home: Path, rota_postgres: Run, programs: Any, tools: Any
) -> None:
    rota_postgres("start")
    rota_postgres("stop")
    user = programs(home)
    assert not user.answer()["pinned"]

    user.kill()

    tools.nothing_runs(home)


def test_without_a_server_the_commands_say_so(rota_postgres: Run) -> None:
    assert rota_postgres("stop").stderr == "No server was running.\n"
    assert rota_postgres("status").returncode == 6
    assert rota_postgres("status").stdout.startswith("stopped")
    assert "Start one with `rota postgres start`" in rota_postgres("url").stderr
    assert rota_postgres("url").returncode == 1


def test_psql_has_a_server_for_as_long_as_it_runs(home: Path, rota_postgres: Run, tools: Any) -> None:
    asked = rota_postgres("psql", "-Atc", "select 6 * 7", "-c", r"\! sleep 0.3", "-c", "select 'still here'")

    assert asked.stdout == "42\nstill here\n"
    tools.nothing_runs(home)
