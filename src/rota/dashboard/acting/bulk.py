"""What can be done to many jobs at once, each under the right that it needs for one."""

from __future__ import annotations

from typing import Any

from rota.app import Rota
from rota.dashboard.acting.action import Action, Values
from rota.dashboard.fields import Field
from rota.dashboard.filters import job_filters
from rota.dashboard.page import Look
from rota.errors import ConfigurationError
from rota.jobs.bulk.action import ACTIONS
from rota.jobs.bulk.view import Bulk

__all__ = ["BULK_ACTIONS", "BULK_RIGHTS", "read_ids"]

#: The right that each needs.
BULK_RIGHTS = {
    "retry": "jobs.retry",
    "cancel": "jobs.cancel",
    "discard": "jobs.discard",
    "acknowledge": "dead.acknowledge",
    "move": "jobs.move",
    "prioritise": "jobs.prioritise",
    "put_off": "jobs.put_off",
}

_FILTERS = {
    "state": Field("text", "those in this state"),
    "queue": Field("text", "those of this queue"),
    "task": Field("text", "those of this task"),
    "tag": Field("text", "those with this tag"),
    "member": Field("text", "those run by the process of this id"),
    "attempt": Field("text", "with so many attempts or more"),
    "arg": Field("text", "with this argument, such as user.id=1"),
    "error": Field("text", "a text in the error of any attempt"),
    "since": Field("text", "settled, or else enqueued, so long ago or at this time, or later"),
    "until": Field("text", "before that"),
}
_WHICH = {
    "ids": Field("texts", "the jobs themselves, by their ids"),
    **_FILTERS,
    "all": Field("flag", "all jobs, where neither ids nor a filter are given"),
}
_HOW = {
    "pace": Field("share", "no more than so many jobs a second"),
    "undo_for": Field("text", "for how long it can be undone, such as 2h; an hour unless said"),
}
_OPTIONS = {
    "to": Field("text", "the queue to move to"),
    "priority": Field("number", "the higher runs first"),
    "delay": Field("text", "by how long from now, such as 2h"),
    "at": Field("moment", "until when"),
    "reason": Field("text", "why, for whoever looks at it later"),
}


def read_ids(given: list[str] | None) -> list[int] | None:
    """Raises ConfigurationError for what are no ids."""
    if given is None:
        return None
    if not all(each.isascii() and each.isdigit() and 0 < len(each) < 19 for each in given):
        raise ConfigurationError("ids cannot be that: each is the id of a job, digits in a text.")
    return [int(each) for each in given]


def _check(look: Look, values: Values) -> None:
    """What may not be searched by may not be chosen by."""
    job_filters({name: values[name] for name in _FILTERS if name in values}, look.redaction)


def _action(name: str) -> Action:
    kind = ACTIONS[name]

    async def start(app: Rota, values: Values, by: str) -> Bulk:
        ids = read_ids(values.get("ids"))
        filters: Any = job_filters({each: values[each] for each in _FILTERS if each in values})
        if ids is None and not filters and not values.get("all"):
            raise ConfigurationError("Say which jobs: by ids, by a filter, or all of them by all=true.")
        options: Any = {each: values[each] for each in _OPTIONS if each in values}
        undo_for = values.get("undo_for", "1h")
        return await app.bulk.start(
            name, ids=ids, pace=values.get("pace"), undo_for=undo_for, by=by, **filters, **options
        )

    return Action(
        f"bulk.{name}",
        f"{kind.about} All that fit, or those named; workers do it.",
        {**_WHICH, **{each: _OPTIONS[each] for each in kind.takes}, **_HOW},
        start,
        lambda bulk, values: f"Bulk {bulk.id} has begun: {bulk.total} job(s) to {name.replace('_', ' ')}.",
        needs=BULK_RIGHTS[name],
        typed=(lambda values: name) if kind.ends else (lambda values: None),
        check=_check,
        lead=lambda bulk: f"bulk/{bulk.id}",
    )


_BULK = {"id": Field("id", "the bulk", required=True, fixed=True)}

BULK_ACTIONS = (
    *(_action(name) for name in ACTIONS),
    Action(
        "bulk.stop",
        "Have a bulk change no more jobs.",
        _BULK,
        lambda app, values, by: app.bulk.stop(values["id"], by=by),
        lambda bulk, values: f"Bulk {bulk.id} is stopped, after {bulk.done} of {bulk.total} job(s).",
    ),
    Action(
        "bulk.undo",
        "Have what a bulk changed put back, as far as it is still where the bulk put it.",
        _BULK,
        lambda app, values, by: app.bulk.undo(values["id"], by=by),
        lambda bulk, values: f"Bulk {bulk.id} is being undone.",
    ),
)
