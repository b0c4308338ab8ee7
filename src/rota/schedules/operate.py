"""What people do to schedules by hand, from any process. Each is on record, and told to whoever leads the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from rota.errors import NotPossible, RotaError, ScheduleNotFound
from rota.postgres.audit import record
from rota.postgres.notify import notify, schedule_channel
from rota.postgres.query import Steps, nothing, statement
from rota.schedules.definition import timing_of
from rota.schedules.parents import find_children
from rota.schedules.put import next_slot
from rota.schedules.store import StoredSchedule, delete_rows, lock_definitions, lock_rows, read_rows
from rota.schedules.timing import jittered

__all__ = [
    "delete_schedule",
    "find_schedule",
    "pause_schedule",
    "resume_schedule",
    "skip_slot",
    "tell",
]


def find_schedule(name: str, *, lock: bool = True) -> Steps[StoredSchedule]:
    """Its row, which then stays as it is until the transaction ends. Raises ScheduleNotFound."""
    if lock:
        yield lock_rows([name])
    rows: dict[str, StoredSchedule] = yield read_rows([name])
    if name not in rows:
        raise ScheduleNotFound(f"There is no schedule {name!r}: it was never put here, or it was deleted.")
    return rows[name]


def tell(schema: str, actor: str, action: str, name: str, **details: Any) -> Steps[None]:
    """Put on record who did this to it, and wake whoever leads the scheduler."""
    yield record(actor, f"schedule.{action}", {"schedule": name, **details})
    yield notify(schedule_channel(schema), "")


PAUSE = statement(
    "pause_schedule",
    """
    update {schema}.schedules
    set paused_at = {schema}.now(),
        paused_by = %(by)s
    where name = %(name)s
    """,
)


def pause_schedule(name: str, schema: str, actor: str) -> Steps[None]:
    """Have it run no more, until it is resumed. One that is paused stays so, by whom it was."""
    row = yield from find_schedule(name)
    if row.paused_at is None:
        yield PAUSE.query({"name": name, "by": actor}, read=nothing)
        yield from tell(schema, actor, "pause", name)


RESUME = statement(
    "resume_schedule",
    """
    update {schema}.schedules
    set paused_at = null,
        paused_by = null,
        next_slot = %(next_slot)s,
        next_at = %(next_at)s,
        problem = %(problem)s
    where name = %(name)s
    """,
)


def resume_schedule(name: str, schema: str, actor: str, check: Callable[[StoredSchedule], None]) -> Steps[None]:
    """Have it run again, from the first slot that is still to come: those of the pause are not made up for.

    One that is broken is tried anew; if its words are still wrong, or `check` refuses them, it is broken for that reason.
    """
    row = yield from find_schedule(name)
    if row.paused_at is None and row.problem is None:
        return
    slot: datetime | None = None
    at: datetime | None = None
    problem: str | None = None
    try:
        check(row)
        slot = _resumed_slot(row)
        # one that only its jitter keeps back keeps its moment
        at = row.next_at if slot == row.next_slot else jittered(name, slot, row.jitter) if slot else None
    except RotaError as error:
        problem = str(error)[:2000]
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:  # someone wrote something else into the row
        problem = f"{type(error).__name__}: {error}"[:2000]
    yield RESUME.query({"name": name, "next_slot": slot, "next_at": at, "problem": problem}, read=nothing)
    yield from tell(schema, actor, "resume", name, **({"problem": problem} if problem else {}))


def _resumed_slot(row: StoredSchedule) -> datetime | None:
    if row.problem is not None:
        return next_slot(row, row, row.anchor, row.now) if row.kind in _TIMED else None
    if row.next_slot is None or row.next_slot > row.now or row.kind not in ("cron", "every", "once"):
        return row.next_slot
    return None if row.kind == "once" else next_slot(row, row, row.anchor, row.now)


SKIP = statement(
    "skip_slot",
    """
    update {schema}.schedules
    set skipped_slots = %(skipped_slots)s::timestamptz[],
        next_slot = %(next_slot)s,
        next_at = %(next_at)s,
        skipped = skipped + 1
    where name = %(name)s
    """,
)


def skip_slot(name: str, schema: str, actor: str) -> Steps[datetime]:
    """Leave out the next slot, and return it. Raises NotPossible where no slot is to come."""
    row = yield from find_schedule(name)
    # what passes during a pause is left out anyhow
    slot = row.next_slot if row.paused_at is None else _resumed_slot(row)
    if slot is None:
        why = "it has ended, or waits for a run to end." if row.kind in _TIMED else f"it is of kind {row.kind!r}."
        if row.problem is not None:
            why = f"it is broken until it is put anew or resumed: {row.problem}"
        raise NotPossible(f"Schedule {name!r} has no next slot to leave out: {why}")
    skipped = [*(each for each in row.skipped_slots if each > min(slot, row.now)), slot]
    then = None if row.kind == "once" else timing_of(row, row.anchor, skipped).next(slot)
    at = None if then is None else jittered(name, then, row.jitter)
    yield SKIP.query({"name": name, "skipped_slots": skipped, "next_slot": then, "next_at": at}, read=nothing)
    yield from tell(schema, actor, "skip", name, slot=slot.isoformat())
    return slot


_TIMED = ("cron", "every", "delay", "once")


def delete_schedule(name: str, schema: str, actor: str) -> Steps[list[str]]:
    """Delete it with what waits of it; jobs that are queued or running go on, and its history stays. Returns who follows it."""
    yield lock_definitions(schema)
    yield from find_schedule(name)
    children: list[str] = yield find_children(name)
    yield delete_rows([name])
    yield from tell(schema, actor, "delete", name, **({"followed_by": children[:100]} if children else {}))
    return children
