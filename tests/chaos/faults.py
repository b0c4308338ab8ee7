"""What the tests of faults share: an app whose bodies wait at a gate, and looks at the database that no fault disturbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from rota import Rota
from rota.testing import WorkerProcess

StartWorker = Callable[..., WorkerProcess]
Admin = psycopg.Connection[Any]

APP = """
import asyncio, secrets
from pathlib import Path
from rota import Retry, Rota

app = Rota(lease="3s")

@app.task(name="double")
async def double(n: int) -> int:
    return 2 * n

@app.task(name="hold")
async def hold(gate: str, result: int = 0) -> str:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return secrets.token_hex(result)

@app.task(name="stumble", retry=Retry(attempts=2, base=0))
async def stumble(gate: str) -> str:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    raise ValueError("stumbled")
"""
SHORT = APP.replace("3s", "1.5s")  # the shortest lease there is


def known_tasks(app: Rota) -> Rota:
    for name, body in {
        "double": lambda n: 0,
        "hold": lambda gate, result=0: "",
        "stumble": lambda gate: "",
    }.items():
        app.task(name=name)(body)
    return app


def sessions(admin: Admin, role: str = "%") -> set[int]:
    """The backends of connections that Rota opened for a purpose."""
    return {
        pid
        for (pid,) in admin.execute(
            "select pid from pg_stat_activity where datname = current_database() and application_name like %s",
            [f"rota:{role}@%"],
        ).fetchall()
    }


def end_sessions(admin: Admin, role: str = "%") -> set[int]:
    pids = sessions(admin, role)
    admin.execute("select pg_terminate_backend(pid) from unnest(%s::int[]) as pid", [list(pids)])
    return pids


def count(admin: Admin, table: str) -> int:
    return int(admin.execute(SQL("select count(*) from rota.{}").format(Identifier(table))).fetchone()[0])  # type: ignore[index]


def now(admin: Admin) -> Any:
    return admin.execute("select statement_timestamp()").fetchone()[0]  # type: ignore[index]


def outlived(admin: Admin, member: Any, since: Any) -> bool:
    """Whether a process has renewed its lease when the one it had then was over."""
    renewed = (
        "select from rota.members where id = %s and ended_at is null and renewed_at > %s + (expires_at - renewed_at)"
    )
    return bool(admin.execute(renewed, [member, since]).rowcount)


def identities(admin: Admin) -> list[Any]:
    return [reason for (reason,) in admin.execute("select end_reason from rota.members order by started_at").fetchall()]
