"""Schedules by name, and one of them with its past and its next runs on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from markupsafe import Markup

from rota.dashboard.acting.schedules import option_text
from rota.dashboard.actions import ACTIONS
from rota.dashboard.charts import Lane, Span, condensed, lanes, spark
from rota.dashboard.page import Look, Page, Region
from rota.errors import ConfigurationError, NotPossible
from rota.schedules.history import ScheduleRun
from rota.schedules.timeline import Timeline

__all__ = ["EDIT", "LIST", "ONE", "drawn", "timeline"]

_SIZE = 100
_RUNS = 50
_NEXT = 10
_AHEAD_MOST = 150  # as many as a picture of a day can show
_LANES = 25
_TIMELINE_SECONDS = 10.0
_BACK, _AHEAD = timedelta(hours=6), timedelta(hours=24)
# Runs that are closer are drawn as one: a minute is a third of a point, and a schedule of every minute has thousands of them.
_APART = timedelta(minutes=20)


async def _list(look: Look) -> dict[str, Any]:
    prefix, state, after = look.param("prefix"), look.param("state"), look.param("after")
    known = await look.read(
        ("schedules", prefix, state, after),
        lambda: look.looking.schedules.list(prefix=prefix, state=state, after=after, limit=_SIZE + 1),
    )
    schedules = [look.redaction.schedule(each) for each in known.value[:_SIZE]]
    return {"known": known, "schedules": schedules, "more": len(known.value) > _SIZE}


async def _timeline(look: Look) -> dict[str, Any]:
    known = await look.read("timeline", lambda: look.looking.schedules.timeline(most=_LANES), fresh=_TIMELINE_SECONDS)
    told = known.value
    return {"known": known, "timeline": told, "chart": drawn(told, look) if told.lanes else None, "load": _load(told)}


def drawn(told: Timeline, look: Look) -> Markup:
    """A lane for each schedule that is due next: what became of its runs, and those to come as outlines."""
    data = [
        Lane(
            lane.name,
            condensed(
                [
                    *(
                        Span(
                            run.started_at or run.slot_at,
                            run.finished_at,
                            run.state,
                            f"{run.state}, slot {run.slot_at:%H:%M}",
                            None if run.job is None else look.to(f"jobs/{run.job}"),
                        )
                        for run in lane.past
                        if run.state != "forgotten"
                    ),
                    *(Span(slot, slot + timedelta(minutes=5), "planned", "planned") for slot in lane.future),
                ],
                _APART,
                look.to("schedule", name=lane.name),
            ),
            look.to("schedule", name=lane.name),
        )
        for lane in told.lanes
    ]
    return lanes("From six hours back to a day ahead", data, start=told.since, end=told.until, now=told.now)


def _load(told: Timeline) -> Markup:
    return spark("Runs that begin in each quarter of an hour", told.load, width=1000, stretches=True)


async def _one(look: Look) -> dict[str, Any]:
    name = look.param("name")
    if name is None:
        raise ConfigurationError("name is missing: which schedule?")

    async def read() -> tuple[Any, Sequence[ScheduleRun], Sequence[datetime]]:
        schedules = look.looking.schedules
        schedule = await schedules.get(name)
        try:
            planned = await schedules.preview(name, _AHEAD_MOST)
        except (ConfigurationError, NotPossible):  # what is broken has none
            planned = []
        return schedule, await schedules.history(name, limit=_RUNS), planned

    known = await look.read(("schedule", name), read, fresh=2.0)
    schedule, runs, planned = known.value
    return {
        "known": known,
        "schedule": look.redaction.schedule(schedule),
        "runs": [look.redaction.run(each) for each in runs],
        "planned": [(slot, _in_zone(slot, schedule.tz)) for slot in planned[:_NEXT]],
        "chart": timeline(runs, planned, _minute(datetime.now(UTC)), look),
    }


def _in_zone(slot: datetime, zone: str) -> str:
    try:
        return slot.astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OSError):  # someone wrote something else into the row, or this machine does not know it
        return ""


def timeline(
    runs: Sequence[ScheduleRun], planned: Sequence[datetime], now: datetime, look: Look | None = None
) -> Markup:
    """Past runs in the colours of what came of them, and those to come as outlines, around now."""
    past = [
        Span(
            run.started_at or run.slot_at,
            run.finished_at,
            run.state,
            f"{run.state} ({run.cause})",
            None if run.job is None or look is None else look.to(f"jobs/{run.job}"),
        )
        for run in runs
        if run.state != "forgotten"
    ]
    # a run to come has no length yet: as wide as is still seen
    ahead = [Span(slot, slot + timedelta(minutes=5), "planned", "planned") for slot in planned if slot <= now + _AHEAD]
    data = [Lane("runs", past), Lane("planned", ahead)]
    return lanes("From six hours back to a day ahead", data, start=now - _BACK, end=now + _AHEAD, now=now, names=70)


def _minute(at: datetime) -> datetime:
    """The picture moves once a minute: more often there would be nothing to see."""
    return at.replace(second=0, microsecond=0)


# What the form has, in this order; the rest is for programs.
_EDITED = (
    *("cron", "every", "at", "tz", "start_at", "end_at", "max_runs", "jitter", "overlap", "misfire", "misfire_grace"),
    *("queue", "priority", "tags", "note"),
)


async def _form(look: Look) -> dict[str, Any]:
    """What can be said of a schedule, with what is said of this one; of a new one nothing."""
    name = look.param("name")
    action = ACTIONS["schedules.put" if name is None else "schedules.change"]
    fields = {each: action.fields[each] for each in ("name", "task", "args", *_EDITED)}
    if name is None:
        blank: dict[str, Any] = {"schedule": None, "known": None, "texts": {}}
        return {**blank, "action": action, "fields": fields, "tasks": sorted(look.app.tasks)}
    known = await look.read(("schedule to change", name), lambda: look.looking.schedules.get(name))
    schedule = known.value
    texts = {each: option_text(schedule, each) for each in _EDITED} | {"name": name, "task": schedule.task}
    return {
        "known": known,
        "schedule": look.redaction.schedule(schedule),
        "action": action,
        "fields": fields,
        "texts": texts,
        "tasks": sorted(look.app.tasks),
    }


EDIT = Page(
    "schedule-edit",
    "/schedule/edit",
    "Schedule",
    "schedule_edit.html",
    (Region("form", "schedule_form.html", _form),),
    params=("name",),
    actions=("schedules.put", "schedules.change"),
    within="schedules",
    live=False,  # what one types stays as it is
)

LIST = Page(
    "schedules",
    "/schedules",
    "Schedules",
    "schedules.html",
    (Region("timeline", "schedules_timeline.html", _timeline), Region("list", "schedules_list.html", _list)),
    params=("prefix", "state", "after"),
)

ONE = Page(
    "schedule",
    "/schedule",
    "Schedule",
    "schedule.html",
    (Region("schedule", "schedule_facts.html", _one),),
    params=("name",),
    actions=(
        "schedules.pause",
        "schedules.resume",
        "schedules.trigger",
        "schedules.skip",
        "schedules.backfill",
        "schedules.clear",
        "schedules.delete",
    ),
    leave_to={"schedules.delete": "schedules"},
    within="schedules",
)
