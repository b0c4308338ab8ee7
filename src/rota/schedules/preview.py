"""The slots that a schedule has before it, as far as they can be known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rota.errors import ConfigurationError
from rota.jobs.inspect import database_time
from rota.postgres.query import Steps
from rota.schedules.definition import ScheduleDefinition, check_schedule_name, timing_of
from rota.schedules.operate import find_schedule
from rota.schedules.put import next_slot
from rota.schedules.store import StoredSchedule
from rota.schedules.view import Schedule

__all__ = ["SchedulePreview", "preview_slots"]


@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """A schedule as it would be, and its next slots, or as many as there are."""

    schedule: Schedule
    slots: tuple[datetime, ...]


def preview_slots(schedule: str | ScheduleDefinition, n: int) -> Steps[list[datetime]]:
    """The next n slots: those that a pause or a run under way would take are among them. Raises ScheduleNotFound."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 1000:
        raise ConfigurationError(f"n cannot be {n!r}: it is a number from 1 to 1000.")
    said: ScheduleDefinition | StoredSchedule
    if isinstance(schedule, ScheduleDefinition):
        now: datetime = yield database_time()
        said, anchor, runs, skipped = schedule, schedule.start_at or now.replace(microsecond=0), 0, []
        first = next_slot(said, None, anchor, now)
    else:
        said = row = yield from find_schedule(check_schedule_name(schedule), lock=False)
        anchor, runs, skipped, first = row.anchor, row.runs, row.skipped_slots, row.next_slot
        if row.paused_at is not None and first is not None and first <= row.now:
            first = next_slot(row, row, anchor, row.now)  # as resuming it would have it
    if first is None:
        return []
    if said.kind == "delay":
        return [first]  # what comes then hangs on the end of that run
    left = n if said.max_runs is None else min(n, said.max_runs - runs)
    return [first, *timing_of(said, anchor, skipped).preview(first, max(0, left - 1))][:left]
