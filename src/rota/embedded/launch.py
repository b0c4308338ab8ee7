"""Launching a keeper and waiting for its server."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from rota import errors
from rota.embedded.binaries import Binaries, find_binaries
from rota.embedded.home import Home, Record, read_record
from rota.embedded.locks import POLL
from rota.embedded.plan import BOOTSTRAP, Plan
from rota.errors import DataDirectoryError, EmbeddedError, PostgresNotFound, PostgresStartFailed

PYTHON = (sys.executable, "-I", "-S", "-X", "utf8", "-c")  # no site-packages, no user's settings
LOG_LIMIT = 5 * 2**20  # bytes; with the log before it, enough to find out what happened


def binaries_for(home: Home, chosen: Binaries | None) -> Binaries:
    """The binaries to serve this home with: those that fit its data, else the best there are."""
    major = home.major
    if chosen is not None and major not in (None, chosen.major):
        raise other_version(home, f"the binaries given are PostgreSQL {chosen.version} ({chosen.directory})")
    if chosen is not None or major is None:
        return chosen or find_binaries()
    try:
        return find_binaries(major)
    except PostgresNotFound as error:
        raise other_version(home, str(error)) from error


def other_version(home: Home, found: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"The data in {home.data} were written by PostgreSQL {home.major} and can be opened by no other version; "
        f"{found}. Nothing was changed. Name the folder of PostgreSQL {home.major}'s programs in ROTA_POSTGRES_BIN, or "
        f"move the data with pg_dump or pg_upgrade, or name another folder to start afresh."
    )


def launch(plan: Plan, deadline: float) -> None:
    """Start a keeper and return when its server is ready. The caller holds `start.lock`, and no keeper is alive."""
    home = plan.to_home()
    rotate(home.log)
    hears, tells = os.pipe()
    try:
        with open(os.open(home.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
            package = str(Path(__file__).parent.parent)
            subprocess.run(
                [*PYTHON, BOOTSTRAP, "rota-postgres-keeper", package, str(tells), plan.to_json()],
                pass_fds=(tells,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=keeper_environment(),
                cwd="/",
                start_new_session=True,  # a Ctrl-C meant for us, or a kill of our process group, is not meant for it
                check=True,
            )
        os.close(tells)
        tells = -1
        answer = read_answer(home, hears, deadline)
    finally:
        os.close(hears)
        if tells >= 0:
            os.close(tells)
    if "error" in answer:
        raise getattr(errors, answer["error"], EmbeddedError)(answer["message"])


def rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))


def keeper_environment() -> dict[str, str]:
    """Ours, without what would change the server behind our back, and with one language for its messages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def read_answer(home: Home, fd: int, deadline: float) -> dict[str, str]:
    said = b""
    while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(fd, 65536)
        said += chunk
        if not chunk:
            break
    else:
        raise still_starting(home)
    if not said:
        end = home.log.read_text(errors="replace").strip().splitlines()[-8:]
        raise PostgresStartFailed("The keeper of the server died while starting it. It said:\n" + "\n".join(end))
    answer: dict[str, str] = json.loads(said)
    return answer


def still_starting(home: Home) -> PostgresStartFailed:
    return PostgresStartFailed(
        f"PostgreSQL is still starting in {home.path}; recovery after a crash can take long. "
        f"{home.log} tells how far it is; start again to go on waiting."
    )


def wait_for_server(home: Home, deadline: float) -> Record | None:
    """The record of a ready server, however long its keeper needs; None when there is no keeper, or it gave up."""
    while home.is_kept:
        record = read_record(home)
        if record is not None and record.state == "ready":
            return record
        if time.monotonic() > deadline:
            raise still_starting(home)
        time.sleep(POLL)
    return None
