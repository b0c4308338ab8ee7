"""How late delayed and retried jobs start, on an otherwise idle worker: seconds between due and start.

python bench/punctual.py          embedded server, thrown away afterwards
python bench/punctual.py DSN
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from uuid import uuid4

from rota import Retry, Rota, current_job
from rota.embedded import EmbeddedServer

JOBS = 60


async def measure(dsn: str) -> None:
    app = Rota(dsn, schema=f"punctual_{uuid4().hex[:8]}")
    await app.migrate()
    rng = random.Random(7)

    @app.task
    async def delayed() -> None: ...

    @app.task(retry=Retry(attempts=2, backoff=lambda n, error: rng.uniform(0.3, 8), jitter=False))
    async def retried() -> None:
        if current_job().attempt == 1:
            raise ConnectionError

    working = asyncio.create_task(app.work())
    for task in (delayed, retried):
        jobs = []
        for _ in range(JOBS):
            jobs.append(await task.using(delay=rng.uniform(0.3, 8)).enqueue())
        await asyncio.gather(*(job.wait() for job in jobs))
        late = []
        for job in jobs:
            settled = await job.refresh()
            assert settled.started_at is not None
            late.append((settled.started_at - settled.due_at).total_seconds() * 1000)
        late.sort()
        print(
            f"{task.name:10} {JOBS} jobs: p50 {statistics.median(late):5.1f} ms late, "
            f"p95 {late[int(JOBS * 0.95)]:5.1f} ms, worst {late[-1]:5.1f} ms, earliest {late[0]:5.1f} ms"
        )
    app.stop()
    await working
    async with app.database.transaction() as connection:
        await connection.execute(f'drop schema "{app.settings.schema}" cascade')
    await app.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(measure(sys.argv[1]))
    else:
        with EmbeddedServer(ephemeral=True) as server:
            asyncio.run(measure(server.start()))
