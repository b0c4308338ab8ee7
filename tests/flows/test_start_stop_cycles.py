"""A process in which workers come and go keeps nothing of them: no session, no thread, no descriptor, no task."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota import Rota
from rota.service.ending import ENDING
from rota.testing import until

SESSIONS = """
    select count(*), count(*) filter (where state like 'idle in transaction%')
    from pg_stat_activity
    where datname = current_database() and application_name like 'rota:%'
"""


class Held:
    """What this process holds, apart from what the test itself does."""

    def __init__(self, admin: psycopg.Connection[Any]) -> None:
        self._admin = admin

    def now(self) -> dict[str, Any]:
        gc.collect()
        sessions, in_transaction = self._admin.execute(SESSIONS).fetchone() or (None, None)
        return {
            "sessions": sessions,
            "idle in transaction": in_transaction,
            # those of the event loop are few, made when they are wanted, and kept
            "threads": Counter(each.name for each in threading.enumerate() if not each.name.startswith("asyncio_")),
            "descriptors": Counter(_kind(fd) for fd in Path("/proc/self/fd").iterdir()),
            "tasks": len(asyncio.all_tasks()),
            "told of the end": len(ENDING._on_begin) + len(ENDING._on_exit) + len(ENDING._on_hurry),
        }


def _kind(fd: Path) -> str:
    try:
        return os.readlink(fd).split(":")[0]
    except OSError:
        return "the listing itself"


@pytest.mark.one_server
@pytest.mark.direct("sessions are the pooler's there")
@pytest.mark.parametrize("cycles", [12, pytest.param(200, marks=pytest.mark.long)])
async def test_nothing_is_left_of_workers_that_came_and_went(rota_database: str, cycles: int) -> None:
    app = Rota(rota_database)
    done: list[int] = []

    @app.task(name="short")
    async def short(n: int) -> None:
        done.append(n)

    @app.task(name="in_a_thread")
    def in_a_thread(n: int) -> None:
        done.append(n)

    @app.singleton("lead")
    async def lead(term: Any) -> None:
        await asyncio.Event().wait()

    async def cycle(n: int) -> None:
        async with app:
            working = asyncio.create_task(app.work(grace=5))
            await short.enqueue(n)
            await in_a_thread.enqueue(n)
            await until(lambda: done.count(n) == 2, what="both have run")
            if n % 2:
                assert app.stop()
            else:
                working.cancel()
            await asyncio.wait([working])

    with psycopg.connect(rota_database, autocommit=True) as admin:
        held = Held(admin)
        for n in range(-3, 0):  # what is made once is there by then
            await cycle(n)
        await until(lambda: not held.now()["sessions"], what="the server saw the sessions end")
        before = held.now()

        for n in range(cycles):
            await cycle(n)

        with contextlib.suppress(AssertionError):  # the server takes a moment to see that a session has ended
            await until(lambda: held.now() == before)
        assert held.now() == before
        (left,) = admin.execute("select count(*) from rota.members where ended_at is null").fetchone() or (None,)
    assert (left, app.workings, len(done)) == (0, (), 2 * (cycles + 3))
