"""What can be done with schedules."""

from __future__ import annotations

from typing import Any

from rota.app import Rota
from rota.dashboard.acting.action import NAME, Action, Values
from rota.dashboard.fields import Field

__all__ = ["SCHEDULE_ACTIONS"]


async def _trigger(app: Rota, values: Values, by: str) -> Any:
    return await app.schedules.trigger(values["name"], values.get("args"), by=by)


SCHEDULE_ACTIONS = (
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
        {**NAME, "args": Field("object", "arguments to replace, by name")},
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
