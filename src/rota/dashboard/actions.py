"""Everything that can be changed here, each once: for the forms of pages and for the API.

An action names the right it needs and the fields it takes, and calls the function that a user would. That function puts it on record,
in its own transaction, under the name that it is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.app import Rota
from rota.dashboard.fields import Field, Fields
from rota.errors import ConfigurationError, NotPossible

__all__ = ["ACTIONS", "Action"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Action:
    """`name` is how it is asked for, and unless said otherwise the right that it needs."""

    name: str
    about: str
    fields: Fields
    do: Callable[[Rota, Values, str], Awaitable[Any]]
    #: what to tell whoever did it, from what came of it and what was asked
    said: Callable[[Any, Values], str]
    needs: str = ""

    @property
    def right(self) -> str:
        return self.needs or self.name


_ID = {"id": Field("id", "the job", required=True)}
_REASON = {"reason": Field("text", "why, for whoever looks at it later")}
_QUEUE = {"name": Field("queue", "the queue; null for all of them together", required=True, nullable=True)}
_NAME = {"name": Field("text", "its name", required=True)}
_VERSION = {"version": Field("number", "which version of it; by default that of this app, or the last")}
_POSITIONS = {"positions": Field("list", "positions of parked events, as strings; by default all")}
_GROUP = {"group": Field("text", "the id of the group", required=True)}
_LETTERS = {
    "queue": Field("text", "those of this queue"),
    "task": Field("text", "those of this task"),
    "tag": Field("text", "those with this tag"),
    "reason": Field("text", "failed or lost"),
    "error": Field("text", "those with this text in their last error"),
}


def _queue(values: Values) -> str:
    return "All queues" if values["name"] is None else f"Queue {values['name']}"


async def _limit(app: Rota, values: Values, by: str) -> Any:
    limits = {name: values.get(name, ...) for name in ("running", "rate")}
    return await app.queues.limit(values["name"], **limits, by=by)


async def _pause_queue(app: Rota, values: Values, by: str) -> Any:
    return await app.queues.pause(
        values["name"], values.get("reason", ""), until=values.get("until"), for_=values.get("for"), by=by
    )


async def _trigger(app: Rota, values: Values, by: str) -> Any:
    return await app.schedules.trigger(values["name"], values.get("args"), by=by)


async def _resign(app: Rota, values: Values, by: str) -> Any:
    epoch = values.get("epoch")
    return await app.leaders.resign(
        values["name"], force=values.get("force", False), epoch=None if epoch is None else int(epoch), by=by
    )


async def _skip_event(app: Rota, values: Values, by: str) -> Any:
    if values["name"] not in app.projections:
        raise NotPossible(
            f"The app of this dashboard has no projection {values['name']!r}, so it cannot tell which event comes next. Name the app: "
            f"`rota dashboard APP`, or `rota projections skip {values['name']} --app APP`."
        )
    return await app.projections.skip(values["name"], by=by)


def _positions(values: Values) -> Sequence[int] | None:
    given = values.get("positions")
    if given is None:
        return None
    if not all(isinstance(each, str) and each.lstrip("-").isdigit() and len(each) < 20 for each in given):
        raise ConfigurationError("positions cannot be that: it is a list of positions, each as a string of digits.")
    return [int(each) for each in given]


ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "jobs.retry",
            "Have a job tried now; of a dead or settled one a new job is made.",
            _ID,
            lambda app, values, by: app.jobs.retry(values["id"], by=by),
            lambda job, values: (
                f"Job {values['id']} is tried again" + ("." if job.id == values["id"] else f", as job {job.id}.")
            ),
        ),
        Action(
            "jobs.cancel",
            "Have a job never run, or stop running.",
            {**_ID, **_REASON},
            lambda app, values, by: app.jobs.cancel(values["id"], values.get("reason", ""), by=by),
            lambda job, values: (
                f"Job {job.id} is cancelled."
                if job.state == "cancelled"
                else f"Job {job.id} is {job.state}; it is told to end."
            ),
        ),
        Action(
            "jobs.discard",
            "Cancel a job without waiting for its body, which from then on can change nothing.",
            {**_ID, **_REASON},
            lambda app, values, by: app.jobs.discard(values["id"], values.get("reason", ""), by=by),
            lambda job, values: f"Job {job.id} is {job.state}.",
        ),
        Action(
            "dead.retry",
            "Make a new job of a dead letter; args replaces those arguments.",
            {**_ID, "args": Field("object", "arguments to replace, by name")},
            lambda app, values, by: app.dead.retry(values["id"], values.get("args"), by=by),
            lambda job, values: f"Letter {values['id']} is tried again, as job {job.id}.",
        ),
        Action(
            "dead.acknowledge",
            "Put a dead letter away without another try.",
            {**_ID, "note": Field("text", "what was found out, or done")},
            lambda app, values, by: app.dead.acknowledge(values["id"], values.get("note", ""), by=by),
            lambda letter, values: f"Letter {letter.id} is put away.",
        ),
        Action(
            "dead.retry_many",
            "Make new jobs of all open letters that fit; without a filter, of all.",
            _LETTERS,
            lambda app, values, by: app.dead.retry_many(by=by, **values),
            lambda count, values: f"{count} dead letter(s) are tried again.",
            needs="dead.retry",
        ),
        Action(
            "dead.acknowledge_many",
            "Put all open letters away that fit; without a filter, all.",
            {**_LETTERS, "note": Field("text", "what was found out, or done")},
            lambda app, values, by: app.dead.acknowledge_many(
                values.get("note", ""), by=by, **{name: each for name, each in values.items() if name != "note"}
            ),
            lambda count, values: f"{count} dead letter(s) are put away.",
            needs="dead.acknowledge",
        ),
        Action(
            "dead.retry_group",
            "Make new jobs of the open letters of a group, the newest first; with canary, of so many of them only.",
            {**_GROUP, "canary": Field("number", "how many to try first")},
            lambda app, values, by: app.dead.retry_group(values["group"], canary=values.get("canary"), by=by),
            lambda jobs, values: f"{len(jobs)} dead letter(s) are tried again.",
            needs="dead.retry",
        ),
        Action(
            "dead.acknowledge_group",
            "Put all open letters of a group away.",
            {**_GROUP, "note": Field("text", "what was found out, or done")},
            lambda app, values, by: app.dead.acknowledge_group(values["group"], values.get("note", ""), by=by),
            lambda count, values: f"{count} dead letter(s) are put away.",
            needs="dead.acknowledge",
        ),
        Action(
            "queues.pause",
            "Have no job of a queue begin, until it is resumed, until a time, or for so long; what runs goes on.",
            {
                **_QUEUE,
                **_REASON,
                "for": Field("text", "how long, such as 30m"),
                "until": Field("moment", "until when"),
            },
            _pause_queue,
            lambda view, values: f"{_queue(values)}: no job begins any more.",
        ),
        Action(
            "queues.resume",
            "End the pause of a queue.",
            _QUEUE,
            lambda app, values, by: app.queues.resume(values["name"], by=by),
            lambda view, values: f"{_queue(values)}: its jobs begin again.",
        ),
        Action(
            "queues.limit",
            "Let no more than so many jobs of a queue run at once, and begin in a period; null removes a limit.",
            {
                **_QUEUE,
                "running": Field("number", "how many at once", nullable=True),
                "rate": Field("text", "how many in a period, such as 100/1m", nullable=True),
            },
            _limit,
            lambda view, values: f"{_queue(values)}: its limits are changed.",
        ),
        Action(
            "queues.weigh",
            "Give a queue a share of so much among those of the same priority.",
            {**_NAME, "weight": Field("share", "1 is what every queue has", required=True)},
            lambda app, values, by: app.queues.weigh(values["name"], values["weight"], by=by),
            lambda view, values: f"{_queue(values)}: its weight is {view.weight:g}.",
        ),
        Action(
            "schedules.pause",
            "Give out no more runs of a schedule until it is resumed.",
            _NAME,
            lambda app, values, by: app.schedules.pause(values["name"], by=by),
            lambda schedule, values: f"Schedule {schedule.name} is paused.",
        ),
        Action(
            "schedules.resume",
            "End the pause of a schedule.",
            _NAME,
            lambda app, values, by: app.schedules.resume(values["name"], by=by),
            lambda schedule, values: f"Schedule {schedule.name} is {schedule.state}.",
        ),
        Action(
            "schedules.trigger",
            "Run a schedule by hand now, whatever its rules say; args replaces those arguments.",
            {**_NAME, "args": Field("object", "arguments to replace, by name")},
            _trigger,
            lambda job, values: f"Schedule {values['name']} runs, as job {job.id}.",
        ),
        Action(
            "schedules.skip",
            "Leave out the next slot of a schedule.",
            _NAME,
            lambda app, values, by: app.schedules.skip(values["name"], by=by),
            lambda slot, values: f"Schedule {values['name']} leaves out {slot:%Y-%m-%d %H:%M:%S %Z}.",
        ),
        Action(
            "schedules.backfill",
            "Run the slots from start to before end that have not run.",
            {
                **_NAME,
                "start": Field("moment", "from here", required=True),
                "end": Field("moment", "to before this", required=True),
            },
            lambda app, values, by: app.schedules.backfill(values["name"], values["start"], values["end"], by=by),
            lambda count, values: f"{count} run(s) of schedule {values['name']} are given out.",
        ),
        Action(
            "schedules.clear",
            "Forget the runs of a schedule that wait.",
            _NAME,
            lambda app, values, by: app.schedules.clear(values["name"], by=by),
            lambda count, values: f"{count} run(s) of schedule {values['name']} are forgotten.",
        ),
        Action(
            "schedules.delete",
            "Delete a schedule, and what waits of it; jobs of it go on.",
            _NAME,
            lambda app, values, by: app.schedules.delete(values["name"], by=by),
            lambda _, values: f"Schedule {values['name']} is deleted.",
        ),
        Action(
            "leaders.resign",
            "Ask a leader to step down; with force its term is over at once.",
            {
                **_NAME,
                "epoch": Field("id", "the term that is meant, as a string"),
                "force": Field("flag", "without waiting for it"),
            },
            _resign,
            lambda leader, values: f"{leader.holder} is asked to step down from {leader.name}.",
        ),
        Action(
            "pollers.pause",
            "Have nobody take rows for a poller.",
            _NAME,
            lambda app, values, by: app.pollers.pause(values["name"], by=by),
            lambda poller, values: f"Poller {poller.name} is paused.",
        ),
        Action(
            "pollers.resume",
            "End the pause of a poller.",
            _NAME,
            lambda app, values, by: app.pollers.resume(values["name"], by=by),
            lambda poller, values: f"Poller {poller.name} goes on.",
        ),
        Action(
            "pollers.release",
            "Let parked rows be polled again with all their attempts: those of these keys, or all.",
            {**_NAME, "keys": Field("list", "keys of rows; by default all that are parked")},
            lambda app, values, by: app.pollers.release(values["name"], values.get("keys"), by=by),
            lambda count, values: f"{count} row(s) of poller {values['name']} are released.",
        ),
        Action(
            "projections.pause",
            "Have nobody read for a projection, until it is resumed.",
            {**_NAME, **_VERSION},
            lambda app, values, by: app.projections.pause(values["name"], version=values.get("version"), by=by),
            lambda view, values: f"Projection {view.name} is paused.",
        ),
        Action(
            "projections.resume",
            "Have a projection go on, be it paused or stopped.",
            {**_NAME, **_VERSION},
            lambda app, values, by: app.projections.resume(values["name"], version=values.get("version"), by=by),
            lambda view, values: f"Projection {view.name} goes on.",
        ),
        Action(
            "projections.skip",
            "Pass over the event that comes next, such as the one that a projection stopped at.",
            _NAME,
            _skip_event,
            lambda row, values: f"Projection {values['name']} passes over the event at {row.position}.",
        ),
        Action(
            "projections.replay",
            "Have parked events taken in by whoever reads for the projection.",
            {**_NAME, **_VERSION, **_POSITIONS},
            lambda app, values, by: app.projections.replay(
                values["name"], _positions(values), version=values.get("version"), by=by
            ),
            lambda count, values: f"{count} event(s) are taken in again.",
        ),
        Action(
            "projections.drop",
            "Give parked events up.",
            {**_NAME, **_VERSION, **_POSITIONS},
            lambda app, values, by: app.projections.drop(
                values["name"], _positions(values), version=values.get("version"), by=by
            ),
            lambda count, values: f"{count} event(s) are given up.",
        ),
    )
}
