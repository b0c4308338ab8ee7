"""Everything that can be changed here, each once: for the forms of pages and for the API.

An action names the right it needs and the fields it takes, and calls the function that a user would. That function puts it on record,
in its own transaction, under the name that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.app import Rota
from rota.dashboard.acting.action import ID, NAME, REASON, Action, Values
from rota.dashboard.acting.bulk import BULK_ACTIONS
from rota.dashboard.acting.members import MEMBER_ACTIONS
from rota.dashboard.acting.pollers import POLLER_ACTIONS
from rota.dashboard.acting.projections import PROJECTION_ACTIONS
from rota.dashboard.acting.schedules import SCHEDULE_ACTIONS
from rota.dashboard.fields import Field
from rota.dashboard.page import Look

__all__ = ["ACTIONS", "Action"]

_QUEUE = {"name": Field("queue", "the queue; null for all of them together", required=True, nullable=True, fixed=True)}
_GROUP = {"group": Field("text", "the id of the group", required=True, fixed=True)}
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


async def _resign(app: Rota, values: Values, by: str) -> Any:
    epoch = values.get("epoch")
    return await app.leaders.resign(
        values["name"], force=values.get("force", False), epoch=None if epoch is None else int(epoch), by=by
    )


def _check_search(look: Look, values: Values) -> None:
    """What may not be searched by may not be chosen by."""
    look.redaction.check_search(error=values.get("error"))


ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "jobs.retry",
            "Have a job tried now; of a dead or settled one a new job is made.",
            ID,
            lambda app, values, by: app.jobs.retry(values["id"], by=by),
            lambda job, values: (
                f"Job {values['id']} is tried again" + ("." if job.id == values["id"] else f", as job {job.id}.")
            ),
        ),
        Action(
            "jobs.cancel",
            "Have a job never run, or stop running.",
            {**ID, **REASON},
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
            {**ID, **REASON},
            lambda app, values, by: app.jobs.discard(values["id"], values.get("reason", ""), by=by),
            lambda job, values: f"Job {job.id} is {job.state}.",
        ),
        Action(
            "dead.retry",
            "Make a new job of a dead letter; args replaces those arguments.",
            {**ID, "args": Field("object", "arguments to replace, by name")},
            lambda app, values, by: app.dead.retry(values["id"], values.get("args"), by=by),
            lambda job, values: f"Letter {values['id']} is tried again, as job {job.id}.",
        ),
        Action(
            "dead.acknowledge",
            "Put a dead letter away without another try.",
            {**ID, "note": Field("text", "what was found out, or done")},
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
            check=_check_search,
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
            check=_check_search,
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
                **REASON,
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
            {**NAME, "weight": Field("share", "1 is what every queue has", required=True)},
            lambda app, values, by: app.queues.weigh(values["name"], values["weight"], by=by),
            lambda view, values: f"{_queue(values)}: its weight is {view.weight:g}.",
        ),
        Action(
            "queues.relax",
            "Have successes in a queue count a moment before they are on disk.",
            _QUEUE,
            lambda app, values, by: app.queues.relax(values["name"], by=by),
            lambda view, values: f"{_queue(values)}: its successes are on disk a moment after they count.",
        ),
        Action(
            "queues.tighten",
            "Have successes in a queue be on disk before they count.",
            _QUEUE,
            lambda app, values, by: app.queues.tighten(values["name"], by=by),
            lambda view, values: f"{_queue(values)}: its successes are on disk before they count.",
        ),
        Action(
            "leaders.resign",
            "Ask a leader to step down; with force its term is over at once.",
            {
                **NAME,
                "epoch": Field("id", "the term that is meant, as a string", fixed=True),
                "force": Field("flag", "without waiting for it", fixed=True),
            },
            _resign,
            lambda leader, values: (
                f"{leader.holder} leads {leader.name} no more."
                if values.get("force")
                else f"{leader.holder} is asked to step down from {leader.name}."
            ),
            typed=lambda values: values.get("name") if values.get("force") else None,
        ),
        *BULK_ACTIONS,
        *MEMBER_ACTIONS,
        *SCHEDULE_ACTIONS,
        *POLLER_ACTIONS,
        *PROJECTION_ACTIONS,
    )
}
