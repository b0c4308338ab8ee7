"""Tables to poll, a clock that stands still, and rounds that tell which rows they took."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg

from rota.facts import PollerHindered
from rota.pollers.poller import Poller, PollStats
from rota.testing import TestRota

Db = psycopg.Connection[Any]
NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)


def stop_clock(db: Db, at: datetime | str = NOON) -> None:
    """Have due times go by this moment, for every process on this database, until it is said again."""
    db.execute("create table if not exists public.stopped_clock (at timestamptz)")
    db.execute("delete from public.stopped_clock")
    db.execute("insert into public.stopped_clock values (%s)", [at])
    db.execute(
        "create or replace function rota.now() returns timestamptz language sql stable "
        "return (select at from public.stopped_clock)"
    )


def poller(app: TestRota, result: Any = None, **options: Any) -> tuple[Poller[..., Any], list[Any]]:
    """A poller of `rows`, unless told otherwise, whose handler notes the `id` of each row, or the row if it has none."""
    seen: list[Any] = []

    async def polled(row: dict[str, Any]) -> Any:
        seen.append(row.get("id", row))
        return result

    made = app.poller(**{"table": "rows", "name": f"poller {len(app.pollers)}", **options})(polled)
    return made, seen


async def round_of(app: TestRota, polling: Poller[..., Any], max_rows: int = 1000) -> PollStats:
    """A round in which PostgreSQL understood every look, and every row it found was polled well."""
    with app.facts.recorded(PollerHindered) as hindered:
        stats = await polling.run_once(max_rows)
    assert hindered == []
    assert stats.errors == []
    return stats


async def due_rows(app: TestRota, max_rows: int = 1000, **options: Any) -> list[Any]:
    """Which rows a new poller with these options polls, in their order, in one look of one handler at a time."""
    made, seen = poller(app, **{"concurrency": 1, "batch": 1000, **options})
    await round_of(app, made, max_rows)
    return seen


def column(db: Db, name: str, table: str = "rows") -> dict[Any, Any]:
    """The values in this column, by id."""
    return dict(db.execute(f'select id, "{name}" from {table} order by id').fetchall())  # type: ignore[arg-type]
