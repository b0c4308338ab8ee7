"""What can be done to many jobs at once, with what it needs to be told, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from rota.clock import Duration
from rota.errors import ConfigurationError
from rota.jobs.checks import check_at, check_delay, check_priority
from rota.postgres.names import check_name

__all__ = ["ACTIONS", "WORDS", "Action", "BulkAction", "BulkOptions", "read_action", "read_options"]

BulkAction = Literal["retry", "cancel", "discard", "acknowledge", "move", "prioritise", "put_off"]


class BulkOptions(TypedDict, total=False):
    """What some actions are told: `to`, the queue to move to; `priority`; `delay` or `at`, how long or until when to put off; and
    `reason`."""

    to: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """`takes` are the options it has, of which it needs one of `needs`."""

    name: str
    about: str
    #: what has become of a job that it was done to
    past: str
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    #: whether it ends jobs, so that one had better type its name than click
    ends: bool = False
    #: what putting things back means, and what cannot be put back
    undo: str = ""


_CHAINED = "Those of a chain or a group stay as they are then: what waited for them was told."
_ENDED = "Those of a chain, a group or a schedule stay as they are then: what waited for them was told."

ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "retry",
            "Have waiting jobs run now, and make new jobs of dead and settled ones.",
            "tried again",
            undo=f"New jobs that have not begun are cancelled, letters are open again, and due times are as they were. {_CHAINED}",
        ),
        Action(
            "cancel",
            "Have waiting jobs never run.",
            "cancelled",
            takes=("reason",),
            ends=True,
            undo=f"They wait again as they did, with the same ids. {_ENDED}",
        ),
        Action(
            "discard",
            "Cancel waiting jobs and dead letters.",
            "discarded",
            takes=("reason",),
            ends=True,
            undo=f"They wait again, or are open letters again, as they were. {_ENDED}",
        ),
        Action(
            "acknowledge",
            "Put dead letters away without another try.",
            "put away",
            takes=("reason",),
            undo=f"The letters are open again. {_CHAINED}",
        ),
        Action(
            "move",
            "Move waiting jobs to another queue.",
            "moved",
            takes=("to",),
            needs=("to",),
            undo="Those that still wait there go back to the queue they came from.",
        ),
        Action(
            "prioritise",
            "Give waiting jobs another priority.",
            "given another priority",
            takes=("priority",),
            needs=("priority",),
            undo="Those that still wait have the priority they had.",
        ),
        Action(
            "put_off",
            "Have waiting jobs wait longer.",
            "put off",
            takes=("delay", "at"),
            needs=("delay", "at"),
            undo="Those that still wait are due when they were.",
        ),
    )
}

#: Why a job is not changed, or not put back: a word for programs, and the words for people.
WORDS: Mapping[str, str] = {
    "running": "they run",
    "blocked": "they wait for other jobs, not for their time",
    "due": "they are due already",
    "there": "they are as it is asked for already",
    "live": "they are not dead",
    "dead": "they are dead: these are retried, discarded or put away",
    "settled": "they have ended",
    "repeated": "they have ended; such jobs are run again only where they are named, or the filter says state=succeeded or cancelled",
    "changed": "they no longer fit, or are gone",
    "again": "they are tried again already",
    "key": "another job has their unique key",
    "refused": "PostgreSQL refused it",
    "locked": "someone else has had them locked for long",
    "since": "they have begun, ended, been changed or been tried again since",
    "chained": "they are of a chain, a group or a schedule, and what waited for them was told",
}


def read_action(name: Any) -> Action:
    """Raises ConfigurationError for what there is none of."""
    if not isinstance(name, str) or name not in ACTIONS:
        raise ConfigurationError(
            f"Nothing is called {name!r} that could be done in bulk: there is {', '.join(ACTIONS)}."
        )
    return ACTIONS[name]


def read_options(action: Action, options: BulkOptions, *, whole: bool = True) -> dict[str, Any]:
    """What it is told, checked, as it is stored. Raises ConfigurationError for what does not fit the action; unless `whole`, what it
    needs may be missing, as one may look first.
    """
    if unknown := options.keys() - BulkOptions.__annotations__.keys():
        raise ConfigurationError(f"A bulk has no {', '.join(sorted(unknown))}.")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None and value != ""}
    if foreign := [name for name in given if name not in action.takes]:
        takes = f"it takes {', '.join(action.takes)}" if action.takes else "it takes nothing of the kind"
        raise ConfigurationError(f"{', '.join(foreign)} means nothing to {action.name}: {takes}.")
    told = sum(name in given for name in action.needs)
    if told > 1 or (whole and action.needs and not told):
        raise ConfigurationError(f"{action.name} needs {' or '.join(action.needs)}, and one of them only.")
    read: dict[str, Any] = {}
    if "to" in given:
        read["to"] = check_name("queue", given["to"], 200)
    if "priority" in given:
        read["priority"] = check_priority(given["priority"])
    if "delay" in given:
        read["delay"] = check_delay(given["delay"])
    if "at" in given:
        read["at"] = check_at(given["at"]).isoformat()
    if "reason" in given:
        read["reason"] = check_name("reason", given["reason"], 1000)
    return read
