"""Turns with bulks, without a worker that would also run the jobs."""

from __future__ import annotations

from typing import Any

import psycopg

from rota import Bulk
from rota.jobs.bulk.turns import BulkTurns
from rota.testing import TestRota


async def turned(app: TestRota, bulk: Bulk) -> Bulk:
    """The bulk after all turns that are due."""
    await BulkTurns(app.database, app.facts).take(patient=False)
    return await app.bulk.get(bulk.id)


async def done(app: TestRota, action: str, **choice: Any) -> Bulk:
    return await turned(app, await app.bulk.start(action, **choice))


async def undone(app: TestRota, bulk: Bulk) -> Bulk:
    return await turned(app, await app.bulk.undo(bulk.id))


def begin(dsn: str, *ids: int) -> None:
    """Have these jobs run, as far as the database knows."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            "update rota.jobs set state = 'running', token = id, member = gen_random_uuid(), attempt = 1 where id = any (%s)",
            [list(ids)],
        )


def counts(bulk: Bulk) -> tuple[str, int, int, int]:
    return bulk.state, bulk.done, bulk.skipped, bulk.failed
