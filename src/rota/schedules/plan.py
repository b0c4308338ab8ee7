"""What is to become of a schedule that is due: which of its slots run, and when it is due again."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from rota.errors import RotaError
from rota.schedules.due import DueSchedule, Plan
from rota.schedules.misfire import decide
from rota.schedules.timing import Timing, jittered

__all__ = ["make_plan"]

# What was due longer ago is not even counted: a row may say that it was due in the year 1.
_FARTHEST = timedelta(days=730)


def make_plan(due: DueSchedule, check: Callable[[DueSchedule], None]) -> Plan:
    """The plan for a schedule. One that cannot go on, or that `check` refuses, has its reason for a plan: no other waits for it."""
    try:
        check(due)
        return _planned(due)
    except RotaError as error:
        problem = str(error)
    except Exception as error:  # someone wrote something else into the row
        problem = f"{type(error).__name__}: {error}"
    return Plan(due.name, due.revision, due.next_at, (), None, None, problem=problem[:2000])


def _planned(due: DueSchedule) -> Plan:
    timing = Timing.from_json(
        due.kind,
        {
            "cron": due.cron,
            "every": due.every,
            "at": due.at,
            "tz": due.tz,
            "anchor": due.anchor,
            "gap": due.dst_gap,
            "overlap": due.dst_overlap,
            "start_at": due.start_at,
            "end_at": due.end_at,
            "exclude": json.loads(due.exclude) if isinstance(due.exclude, str) else due.exclude,
            "skipped": due.skipped_slots,
        },
        due.name,
    )
    if due.kind == "delay" and timing.leaves_out(due.next_slot):
        # the database, which says when a pause is over, knows nothing of what is left out
        then = timing.next(due.now)
        return Plan(due.name, due.revision, due.next_at, (), then, then)
    first = due.next_slot
    if first < due.now - _FARTHEST:
        first = timing.next(due.now - _FARTHEST) or first
    decision = decide(
        timing,
        first,
        due.now,
        misfire=due.misfire,
        grace=due.misfire_grace,
        limit=due.misfire_limit,
        name=due.name,
        jitter=due.jitter,
    )
    slots, then = decision.fire, decision.next_slot
    if due.max_runs is not None:
        # whether they are the last, only whoever gives them out can tell: they may be left out
        slots = slots[: max(0, due.max_runs - due.runs)]
    at = None if then is None else jittered(due.name, then, due.jitter)
    made_up = min(decision.made_up, len(slots))
    return Plan(due.name, due.revision, due.next_at, slots, then, at, made_up=made_up, missed=decision.missed)
