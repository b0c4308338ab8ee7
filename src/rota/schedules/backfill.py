"""Slots of the past that are to run, and runs that wait which are not to.

A range may have very many slots. They are worked out with no transaction open and no row locked, and put if the schedule still
says then what they were worked out from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rota.errors import ConfigurationError, NotPossible
from rota.postgres.query import Query, Steps, scalar, statement
from rota.schedules.definition import timing_of
from rota.schedules.operate import find_schedule, tell
from rota.schedules.store import StoredSchedule
from rota.schedules.zones import INSTANT, aware

__all__ = ["Range", "clear_slots", "find_gaps", "put_backfill"]


@dataclass(frozen=True, slots=True)
class Range:
    """The slots from `start` to before `end`, if they are not more than `limit`. Raises ConfigurationError where there are none."""

    start: datetime
    end: datetime
    limit: int

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, aware(getattr(self, name), name))
        if self.start >= self.end:
            raise ConfigurationError(
                f"There is nothing from {self.start.isoformat()} to before {self.end.isoformat()}: the start is the earlier one."
            )
        if not isinstance(self.limit, int) or isinstance(self.limit, bool) or not 1 <= self.limit <= 100_000:
            raise ConfigurationError(f"limit cannot be {self.limit!r}: it is a number from 1 to 100000.")

    def slots(self, row: StoredSchedule) -> list[datetime]:
        """Those of this schedule, and none that is still to come. Takes seconds for very many."""
        if row.kind not in ("cron", "every"):
            raise NotPossible(f"Schedule {row.name!r} has no slots to fill: only those with cron= or every= have.")
        slots = timing_of(row, row.anchor).between(self.start, min(self.end, row.now + INSTANT), self.limit + 1)
        if len(slots) > self.limit:
            raise ConfigurationError(
                f"Schedule {row.name!r} has more than {self.limit} slots from {self.start.isoformat()} to "
                f"{self.end.isoformat()}. Give a shorter range, or a higher limit."
            )
        return slots


PUT_SLOTS = statement(
    "put_backfill",
    """
    with put as (
        insert into {schema}.slots (schedule, slot_at, cause)
        select %(name)s, slot.at, 'backfill'
        from unnest(%(slots)s::timestamptz[]) as slot(at)
        -- what has run, or is to, does not run again
        on conflict (schedule, slot_at) where cause in ('due', 'backfill') do nothing
        returning schedule
    ), told as (
        insert into {schema}.schedule_ends (schedule, outcome) select distinct put.schedule, 'none' from put
    )
    select count(*) from put
    """,
)


def _put_slots(name: str, slots: Sequence[datetime]) -> Query[int]:
    return PUT_SLOTS.query({"name": name, "slots": list(slots)}, read=scalar)


def put_backfill(
    row: StoredSchedule, asked: Range, slots: Sequence[datetime], *, schema: str, actor: str
) -> Steps[int | None]:
    """Have these slots of it run that have not; returns how many. None if it says something else by now."""
    now = yield from find_schedule(row.name)
    if (now.revision, now.anchor) != (row.revision, row.anchor):
        return None
    put: int = (yield _put_slots(row.name, slots)) if slots else 0
    if put:
        told = {"slots": put, "start": asked.start.isoformat(), "end": asked.end.isoformat()}
        yield from tell(schema, actor, "backfill", row.name, **told)
    return put


# As `put_backfill` would leave out what has run.
GAPS = statement(
    "find_gaps",
    """
    select slot.at
    from unnest(%(slots)s::timestamptz[]) as slot(at)
    where not exists (
        select
        from {schema}.slots as known
        where known.schedule = %(name)s
          and known.slot_at = slot.at
          and known.cause in ('due', 'backfill')
    )
    order by slot.at
    """,
)


def find_gaps(name: str, slots: Sequence[datetime]) -> Query[list[datetime]]:
    """Those of these slots that have not run, and are not to."""
    return GAPS.query({"name": name, "slots": list(slots)}, read=lambda rows: [at.astimezone(UTC) for (at,) in rows])


CLEAR = statement(
    "clear_slots",
    """
    with gone as (
        delete from {schema}.slots
        where schedule = %(name)s
          and job_id is null
        returning id
    )
    select count(*) from gone
    """,
)


def clear_slots(name: str, schema: str, actor: str) -> Steps[int]:
    """Forget its runs that wait for another to end, or for the end of a pause; returns how many."""
    yield from find_schedule(name)
    cleared: int = yield CLEAR.query({"name": name}, read=scalar)
    if cleared:
        yield from tell(schema, actor, "clear", name, runs=cleared)
    return cleared
