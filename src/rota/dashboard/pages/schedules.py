"""Schedules by name, and one of them with its past and its next runs on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from rota.dashboard.charts import Lane, Span, lanes, spark
from rota.dashboard.page import Look, Page, Region
from rota.errors import ConfigurationError, NotPossible
from rota.schedules.history import ScheduleRun
from rota.schedules.timeline import Timeline

__all__ = ["LIST", "ONE", "drawn", "timeline"]

_SIZE = 100
_RUNS = 50
_NEXT = 10
_AHEAD_MOST = 150  # as many as a picture of a day can show
_LANES = 25
_TIMELINE_SECONDS = 10.0
_BACK, _AHEAD = timedelta(hours=6), timedelta(hours=24)


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
        "runs": runs,
        "planned": planned[:_NEXT],
        "chart": timeline(runs, planned, _minute(datetime.now(UTC)), look),
    }


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
