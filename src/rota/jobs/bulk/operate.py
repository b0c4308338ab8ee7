"""Stopping a bulk, and having it undone."""

from __future__ import annotations

from datetime import UTC

from rota.errors import NotPossible
from rota.jobs.bulk.view import Bulk, get_bulk
from rota.postgres.audit import record
from rota.postgres.notify import BULK, notify
from rota.postgres.query import Steps, scalar, statement

__all__ = ["stop_bulk", "undo_bulk"]

# Whoever has a turn holds the row: this comes after that turn, and no other follows.
STOP = statement(
    "stop_bulk",
    """
    update {schema}.bulks
    set state = 'stopped',
        ended_at = {schema}.now(),
        filter = filter - '{values,hiding}'::text[]
    where id = %(id)s
      and state in ('running', 'undoing')
    returning true
    """,
)


def stop_bulk(id: int, by: str) -> Steps[Bulk]:
    """Let no further turn be taken. Raises NotPossible if it has ended, BulkNotFound."""
    before: Bulk = yield from get_bulk(id)
    if not (yield STOP.query({"id": id}, read=scalar)):
        raise NotPossible(f"Bulk {id} is {before.state} already, so there is nothing to stop.")
    stopped: Bulk = yield from get_bulk(id)
    yield record(by, "bulk.stop", {"bulk": id, "action": stopped.action, "done": stopped.done, "of": stopped.total})
    return stopped


UNDO = statement(
    "undo_bulk",
    """
    update {schema}.bulks
    set state = 'undoing',
        after = 0,
        begun_at = {schema}.now(),
        ended_at = null,
        not_before = statement_timestamp()
    where id = %(id)s
      and state in ('finished', 'stopped')
      and undo_until > {schema}.now()
      and done > undone + kept
    returning true
    """,
)


def undo_bulk(id: int, by: str, channel: str) -> Steps[Bulk]:
    """Have what it changed put back. Raises NotPossible if that cannot be any more, BulkNotFound."""
    before: Bulk = yield from get_bulk(id)
    if not (yield UNDO.query({"id": id}, read=scalar)):
        raise NotPossible(_why_not(before))
    yield record(
        by, "bulk.undo", {"bulk": id, "action": before.action, "jobs": before.done - before.undone - before.kept}
    )
    yield notify(channel, BULK)
    return (yield from get_bulk(id))


def _why_not(bulk: Bulk) -> str:
    if bulk.open:
        return f"Bulk {bulk.id} is {bulk.state}. Stop it first: rota bulk stop {bulk.id}."
    if bulk.done <= bulk.undone + bulk.kept:
        return f"Bulk {bulk.id} has changed nothing that could be put back{' any more' if bulk.done else ''}."
    until = bulk.undo_until.astimezone(UTC)
    return (
        f"Bulk {bulk.id} could be undone until {until:%Y-%m-%d %H:%M:%S} UTC; what its jobs were before it is forgotten. Change "
        "them back by another bulk."
    )
