"""Bulks as people see them: how far each is, and what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rota.errors import BulkNotFound, ConfigurationError
from rota.postgres.query import Query, Row, Steps, scalar, statement

__all__ = ["STATES", "Bulk", "count_workers", "found_bulk", "get_bulk", "list_bulks"]

STATES = ("running", "finished", "stopped", "undoing", "undone")


@dataclass(frozen=True, slots=True)
class Bulk:
    """A change of many jobs. `state` is running, finished, stopped, undoing or undone.

    Of `total` jobs, `done` were changed, `skipped` had changed by their turn, and `failed` could not be changed; once it is undone,
    `undone` of the changed ones are as they were, and `kept` stayed. `excluded` says how many that fit were left out from the start,
    and `reasons` how many were passed over since, by why (see WORDS).
    """

    id: int
    action: str
    state: str
    #: what jobs were chosen by: paths of arguments without their values. None where they were named.
    filter: dict[str, Any] | None
    options: dict[str, Any]
    actor: str
    total: int
    done: int
    skipped: int
    failed: int
    undone: int
    kept: int
    excluded: dict[str, int]
    reasons: dict[str, int]
    pace: float | None
    created_at: datetime
    begun_at: datetime | None
    ended_at: datetime | None
    undo_until: datetime
    trouble: str | None
    #: whether it can be undone now
    undoable: bool
    #: whether there is more to do, and how far it is, from 0 to 1; once it is being undone, how far that is
    open: bool
    progress: float
    #: how long it will take to its end if it goes on as it did; None where that cannot be told
    eta: timedelta | None
    #: how many processes there are that would go on with it
    workers: int = 0


_BULKS = """
    select
        bulk.id, bulk.action, bulk.state, bulk.filter, bulk.options, bulk.actor, bulk.total, bulk.done, bulk.skipped, bulk.failed,
        bulk.undone, bulk.kept, bulk.excluded, bulk.reasons, bulk.pace, bulk.created_at, bulk.begun_at, bulk.ended_at,
        bulk.undo_until, bulk.trouble,
        bulk.state in ('finished', 'stopped') and bulk.done > bulk.undone + bulk.kept and bulk.undo_until > {schema}.now(),
        coalesce(bulk.ended_at, {schema}.now()) - bulk.begun_at
    from {schema}.bulks as bulk
"""

GET = statement("get_bulk", _BULKS + "where bulk.id = %(id)s")


def get_bulk(id: int) -> Steps[Bulk]:
    """Raises BulkNotFound."""
    if not isinstance(id, int) or isinstance(id, bool) or not 0 < id < 2**63:
        raise ConfigurationError(f"No bulk is called {id!r}: it is a whole number.")
    return _get(id)


def _get(id: int) -> Steps[Bulk]:
    bulk = found_bulk(id, (yield GET.query({"id": id}, read=_read)))
    return replace(bulk, workers=(yield count_workers()))


def found_bulk(id: int, found: Sequence[Bulk]) -> Bulk:
    if not found:
        raise BulkNotFound(
            f"There is no bulk {id}, or it is so long ago that it is forgotten. `rota bulk list` tells which there are."
        )
    return found[0]


LIST = statement(
    "list_bulks",
    _BULKS
    + """
    where (%(after)s::bigint is null or bulk.id < %(after)s)
      and (%(open)s::boolean is null or %(open)s = (bulk.state in ('running', 'undoing')))
    order by bulk.id desc
    limit %(limit)s
    """,
)


def list_bulks(*, open: bool | None, limit: int, after: int | None) -> Steps[list[Bulk]]:
    """The last first; `after` is the last id of the page before."""
    for name, number, most in (("limit", limit, 1000), ("after", after or 1, 2**63 - 1)):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
            raise ConfigurationError(f"{name} cannot be {number!r}: it is a number from 1 to {most}.")
    return _list({"open": open, "limit": limit, "after": after})


def _list(params: Mapping[str, Any]) -> Steps[list[Bulk]]:
    bulks = yield LIST.query(params, read=_read)
    workers = (yield count_workers()) if any(bulk.open for bulk in bulks) else 0
    return [replace(bulk, workers=workers) for bulk in bulks]


def _read(rows: Sequence[Row]) -> list[Bulk]:
    return [_bulk(row) for row in rows]


def _bulk(row: Row) -> Bulk:
    number, action, state, stored, *rest, going_on = row
    told: tuple[Any, ...] = (number, action, state, _shown(stored), *rest, state in ("running", "undoing"), 0.0, None)
    bulk = Bulk(*told)
    of, had = (
        (bulk.done, bulk.undone + bulk.kept)
        if state in ("undoing", "undone")
        else (bulk.total, bulk.done + bulk.skipped + bulk.failed)
    )
    progress = had / of if of else 1.0
    eta = going_on * ((1 - progress) / progress) if bulk.open and going_on is not None and 0 < progress < 1 else None
    return replace(bulk, progress=progress, eta=eta)


def _shown(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """The filter without values of arguments: who reads what was done need not read whom it was done to."""
    if stored is None:
        return None
    shown = {name: value for name, value in stored.items() if name not in ("values", "hiding", "paths")}
    paths = [path.replace("\x1f", ".") for path in stored.get("paths", ())]
    return {**shown, **({"args": paths} if paths else {})}


WORKERS = statement(
    "count_bulk_workers",
    """
    select count(*)::integer
    from {schema}.members as member
    where member.ended_at is null
      and member.draining_at is null
      and member.quiet_at is null
      and member.work ? 'bulk'
    """,
)


def count_workers() -> Query[int]:
    """How many processes would take a turn with a bulk."""
    return WORKERS.query(read=scalar)
