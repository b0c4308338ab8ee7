"""A worker as a whole: how it is stopped, and what it does beside running jobs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rota.testing import TestRota, until, until_sync


@pytest.fixture
def release() -> threading.Event:
    return threading.Event()


def stubborn(started: threading.Event, release: threading.Event) -> Callable[[], Coroutine[Any, Any, None]]:
    """A body that ignores its cancellation."""

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    return stubborn


async def test_asked_twice_to_stop_it_waits_for_no_body(rota_app: TestRota, release: threading.Event) -> None:
    started = threading.Event()
    job = await rota_app.task(stubborn(started, release)).enqueue()
    working = asyncio.create_task(rota_app.work(grace=3600))
    await until(started.is_set, what="it runs")

    rota_app.stop()
    rota_app.stop()
    try:
        await asyncio.wait_for(asyncio.shield(working), 10)
    finally:
        release.set()

    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)


@pytest.mark.one_server
def test_work_sync_leaves_a_coroutine_behind_that_ignores_its_cancellation(
    rota_app: TestRota, release: threading.Event
) -> None:
    started = threading.Event()
    job = rota_app.task(stubborn(started, release)).enqueue_sync()
    working = threading.Thread(target=rota_app.work_sync, kwargs={"grace": 0.1}, daemon=True)
    working.start()
    until_sync(started.is_set, what="it runs")

    rota_app.stop()
    working.join(10)

    assert not working.is_alive()
    release.set()
    assert (rota_app.jobs.get_sync(job.id).state, rota_app.jobs.get_sync(job.id).attempt) == ("queued", 0)
