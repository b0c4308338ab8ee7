"""What can be done with schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from rota.app import Rota
from rota.clock import duration
from rota.dashboard.acting.action import NAME, Action, Preview, Values
from rota.dashboard.fields import Field, Fields
from rota.dashboard.page import Look
from rota.schedules.preview import SchedulePreview
from rota.schedules.view import Schedule

__all__ = ["SCHEDULE_ACTIONS", "option_text"]

_SAMPLES = 20  # slots of a backfill that are shown

# What `app.schedules.put` takes; null means as if it had never been said.
_OPTIONS: Fields = {
    "cron": Field("text", "when, as cron has it, such as 0 9 * * mon-fri", nullable=True),
    "every": Field("text", "or how often, such as 30m", nullable=True),
    "at": Field("moment", "or once, such as 2030-01-31T09:00Z", nullable=True),
    "after": Field("texts", "or after these schedules, by name", nullable=True),
    "on": Field("text", "or on this event", nullable=True),
    "tz": Field("text", "the time zone, such as Europe/Berlin", nullable=True),
    "counted_from": Field("text", "of every: from where it is counted", nullable=True, choices=("start", "end")),
    "start_at": Field("moment", "no run before this", nullable=True),
    "end_at": Field("moment", "no run at this or later", nullable=True),
    "max_runs": Field("number", "no more runs than these", nullable=True),
    "jitter": Field("text", "each is as much later as chance has it, up to this, such as 5m", nullable=True),
    "overlap": Field("text", "when one is under way", nullable=True, choices=("skip", "queue", "allow")),
    "misfire": Field("text", "when nobody was there", nullable=True, choices=("once", "skip", "all")),
    "misfire_grace": Field("text", "how late is still in time, such as 1m", nullable=True),
    "misfire_limit": Field("number", "how many are made up for at most", nullable=True),
    "dst_gap": Field("text", "when clocks go forward over it", nullable=True, choices=("run", "skip")),
    "dst_overlap": Field("text", "when clocks go back over it", nullable=True, choices=("once", "twice")),
    "exclude": Field("object", 'what is left out, such as {"weekdays": ["sat", "sun"]}', nullable=True),
    "dormant": Field("flag", "of after: only when a run of these says so", nullable=True),
    "queue": Field("text", "the queue of its jobs; by default that of the task", nullable=True),
    "priority": Field("number", "their priority; by default that of the task", nullable=True),
    "key": Field("text", "their key", nullable=True),
    "tags": Field("texts", "their tags", nullable=True),
    "note": Field("text", "what it is for", nullable=True),
}


def _given(values: Values) -> Mapping[str, Any]:
    """What is said, but for what is as if it had not been."""
    return {name: values[name] for name in _OPTIONS if values.get(name) is not None}


async def _put(app: Rota, values: Values, by: str) -> Schedule:
    return await app.schedules.put(
        values["name"], task=values["task"], args=values.get("args"), by=by, **_given(values)
    )


async def _preview_put(look: Look, values: Values) -> Preview:
    # the arguments are checked by the task, which the app has
    found = await look.app.schedules.preview_put(
        values["name"], task=values["task"], args=values.get("args"), **_given(values)
    )
    return _foretold(found)


def _changes(now: Schedule, values: Values) -> dict[str, Any]:
    """What `change` takes, of a form in which all is said again: what is as it was is left out."""
    said = {name: value for name, value in _given(values).items() if not _is_same(now, name, value)}
    told = {name: values[name] for name in ("task", "args") if values.get(name) is not None}
    if told.get("task") == now.task:
        del told["task"]
    return {**told, **said, "reset": [name for name in _OPTIONS if name in values and values[name] is None]}


def option_text(schedule: Schedule, name: str) -> str:
    """An option as one would type it; what is as by default is not."""
    value = _option(schedule, name)
    if value is None or value in ((), ""):
        return ""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s" if value else ""
    if isinstance(value, datetime):
        return value.isoformat()
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _option(schedule: Schedule, name: str) -> Any:
    if name == "counted_from":
        return {"every": "start", "delay": "end"}.get(schedule.kind)
    return getattr(schedule, {"after": "parents", "on": "event"}.get(name, name))


def _is_same(now: Schedule, name: str, value: Any) -> bool:
    kept = _option(now, name)
    if isinstance(kept, timedelta):
        return duration(value, name) == kept
    return tuple(value) == kept if isinstance(kept, tuple) else bool(value == kept)


async def _change(app: Rota, values: Values, by: str) -> Schedule:
    changes = _changes(await app.schedules.get(values["name"]), values)
    return await app.schedules.change(values["name"], by=by, **changes)


async def _preview_change(look: Look, values: Values) -> Preview:
    changes = _changes(await look.app.schedules.get(values["name"]), values)
    return _foretold(await look.app.schedules.preview_change(values["name"], **changes))


def _foretold(found: SchedulePreview) -> Preview:
    schedule = found.schedule
    why = f" But {schedule.why_idle}." if schedule.why_idle else ""
    until = "" if found.slots else " No slot of it is known before it is there."
    return Preview(f"{schedule.when}.{why}{until}", *_slots(schedule.tz, found.slots))


def _slots(zone: str, slots: Sequence[datetime]) -> tuple[list[str], list[list[str]]]:
    """Slots in the zone of the schedule, and in UTC."""
    local = ZoneInfo(zone)
    rows = [
        [slot.astimezone(local).strftime("%a %Y-%m-%d %H:%M:%S %Z"), slot.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")]
        for slot in slots
    ]
    return [zone, "UTC"], rows


async def _preview_backfill(look: Look, values: Values) -> Preview:
    schedule = await look.looking.schedules.get(values["name"])
    gaps = await look.looking.schedules.gaps(values["name"], values["start"], values["end"])
    shown = "" if len(gaps) <= _SAMPLES else f" These are the first {_SAMPLES}."
    said = f"{len(gaps)} slot(s) of this time have not run, and would.{shown}" if gaps else "All slots of it have run."
    return Preview(said, *_slots(schedule.tz, gaps[:_SAMPLES]))


async def _trigger(app: Rota, values: Values, by: str) -> Any:
    return await app.schedules.trigger(
        values["name"], values.get("args"), at=values.get("at"), delay=values.get("delay"), by=by
    )


SCHEDULE_ACTIONS = (
    Action(
        "schedules.put",
        "Put a schedule, or have the one of this name say this and nothing else from now on.",
        {
            "name": Field("text", "its name", required=True),
            "task": Field("text", "the task that it runs", required=True),
            "args": Field("object", "the arguments, by name, as JSON"),
            **_OPTIONS,
        },
        _put,
        lambda schedule, values: f"Schedule {schedule.name} is put. {schedule.when}.",
        preview=_preview_put,
        then=lambda look, values: look.to("schedule", name=values["name"]),
    ),
    Action(
        "schedules.change",
        "Have a schedule say this, and all else as before; null takes back what was said.",
        {
            **NAME,
            "task": Field("text", "the task that it runs"),
            "args": Field("object", "arguments to replace, by name, as JSON"),
            **_OPTIONS,
        },
        _change,
        lambda schedule, values: f"Schedule {schedule.name} is changed. {schedule.when}.",
        needs="schedules.put",
        preview=_preview_change,
        then=lambda look, values: look.to("schedule", name=values["name"]),
    ),
    Action(
        "schedules.pause",
        "Give out no more runs of a schedule until it is resumed.",
        NAME,
        lambda app, values, by: app.schedules.pause(values["name"], by=by),
        lambda schedule, values: f"Schedule {schedule.name} is paused.",
    ),
    Action(
        "schedules.resume",
        "End the pause of a schedule.",
        NAME,
        lambda app, values, by: app.schedules.resume(values["name"], by=by),
        lambda schedule, values: f"Schedule {schedule.name} is {schedule.state}.",
    ),
    Action(
        "schedules.trigger",
        "Run a schedule by hand now, whatever its rules say; args replaces those arguments.",
        {
            **NAME,
            "args": Field("object", "arguments to replace, by name, as JSON"),
            "at": Field("moment", "not now but at this time"),
            "delay": Field("text", "or in so long, such as 30m"),
        },
        _trigger,
        lambda job, values: f"Schedule {values['name']} runs, as job {job.id}.",
    ),
    Action(
        "schedules.skip",
        "Leave out the next slot of a schedule.",
        NAME,
        lambda app, values, by: app.schedules.skip(values["name"], by=by),
        lambda slot, values: f"Schedule {values['name']} leaves out {slot:%Y-%m-%d %H:%M:%S %Z}.",
    ),
    Action(
        "schedules.backfill",
        "Run the slots from start to before end that have not run.",
        {
            **NAME,
            "start": Field("moment", "from here", required=True),
            "end": Field("moment", "to before this", required=True),
        },
        lambda app, values, by: app.schedules.backfill(values["name"], values["start"], values["end"], by=by),
        lambda count, values: f"{count} run(s) of schedule {values['name']} are given out.",
        preview=_preview_backfill,
    ),
    Action(
        "schedules.clear",
        "Forget the runs of a schedule that wait.",
        NAME,
        lambda app, values, by: app.schedules.clear(values["name"], by=by),
        lambda count, values: f"{count} run(s) of schedule {values['name']} are forgotten.",
    ),
    Action(
        "schedules.delete",
        "Delete a schedule, and what waits of it; jobs of it go on.",
        NAME,
        lambda app, values, by: app.schedules.delete(values["name"], by=by),
        lambda _, values: f"Schedule {values['name']} is deleted.",
        typed=lambda values: values.get("name"),
    ),
)
