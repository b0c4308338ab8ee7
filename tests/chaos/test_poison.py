"""A job that kills its process is told from its neighbours, buried after its losses, and stops nobody else's work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

APP = """
import asyncio, os, time
from rota import Rota

app = Rota()

@app.task(name="poison")
async def poison(after: float):
    await asyncio.sleep(after)
    os._exit(9)

@app.task(name="healthy")
async def healthy(n: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return n
"""


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        pytest.param(0.05, 0.5, id="at once"),
        pytest.param(1.5, 2.0, id="after its probation", marks=pytest.mark.long),
    ],
)
def test_a_poison_is_buried_and_none_of_its_neighbours_is(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], app_file: Path, after: float, seconds: float
) -> None:
    poison = rota_app.task(name="poison")(lambda after: None)
    healthy = rota_app.task(name="healthy")(lambda n, seconds: None)
    neighbours = rota_app.enqueue_many_sync([healthy.bind(n, seconds) for n in range(3)])
    doomed = poison.enqueue_sync(after)
    later = rota_app.enqueue_many_sync([healthy.bind(n, seconds) for n in range(3, 10)])

    def is_dead() -> bool:
        return rota_app.jobs.get_sync(doomed.id).state == "dead"

    def ended(worker: WorkerProcess) -> Callable[[], bool]:
        return lambda: worker.returncode is not None or is_dead()

    deaths = 0
    while not is_dead():
        worker = rota_worker(app_file, concurrency=8)
        until_sync(ended(worker), timeout=30)
        deaths += worker.returncode is not None
    jobs = [*neighbours, *later]
    until_sync(lambda: all(rota_app.jobs.get_sync(job.id).state == "succeeded" for job in jobs), timeout=60)

    letter = rota_app.jobs.get_sync(doomed.id)
    assert deaths == 3
    assert (letter.losses, [error.kind for error in letter.errors]) == (3, ["lost"] * 3)
    assert max(rota_app.jobs.get_sync(job.id).losses for job in jobs) <= 2
