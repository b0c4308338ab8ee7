"""What a schedule says: which call to make, when, and by which rules. Checked whole before any of it is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from rota.clock import Duration, duration
from rota.conversion.plain import read_json
from rota.errors import ConfigurationError
from rota.jobs.by import check_key
from rota.jobs.checks import LATEST_YEAR, check_priority, check_tags
from rota.jobs.definition import Task
from rota.postgres.names import check_name
from rota.schedules.arguments import written_arguments
from rota.schedules.every import interval_of
from rota.schedules.exclude import Exclude
from rota.schedules.timing import Timing
from rota.schedules.zones import aware

__all__ = [
    "KINDS",
    "MEANINGFUL",
    "ScheduleDefinition",
    "ScheduleOptions",
    "check_schedule_name",
    "define",
    "describe",
    "plain",
    "task_words",
    "timing_of",
]

_SOME_ANCHOR = datetime(2000, 1, 1, tzinfo=UTC)
LONGEST = timedelta(days=365 * 100)


class ScheduleOptions(TypedDict, total=False):
    """When a schedule runs its task, and by which rules: at most one of cron, every, at, after and on."""

    cron: str
    every: Duration
    counted_from: Literal["start", "end"]
    at: datetime
    after: str | Sequence[str]
    on: str
    tz: str
    dst_gap: Literal["run", "skip"]
    dst_overlap: Literal["once", "twice"]
    start_at: datetime
    end_at: datetime
    max_runs: int
    jitter: Duration
    exclude: Exclude | Mapping[str, Any]
    misfire: Literal["once", "skip", "all"]
    misfire_grace: Duration
    misfire_limit: int
    overlap: Literal["skip", "queue", "allow"]
    dormant: bool
    queue: str
    priority: int
    key: str | int
    tags: Sequence[str]
    note: str


# What each rule can apply to; where it could not, it is refused rather than kept and ignored.
_TIMED = ("cron", "every", "once")
MEANINGFUL: dict[str, tuple[str, ...]] = {
    "counted_from": ("every", "delay"),
    "tz": (*_TIMED, "delay"),
    "dst_gap": ("cron",),
    "dst_overlap": ("cron",),
    "start_at": ("cron", "every", "delay", "after", "event"),
    "end_at": ("cron", "every", "delay", "after", "event"),
    "max_runs": ("cron", "every", "delay", "after"),
    "jitter": _TIMED,
    "exclude": ("cron", "every", "delay"),
    "misfire": _TIMED,
    "misfire_grace": _TIMED,
    "misfire_limit": _TIMED,
    "dormant": ("after",),
}

KINDS = {"cron": "cron", "every": "every", "at": "once", "after": "after", "on": "event"}
_CHOICES = {
    "counted_from": ("start", "end"),
    "dst_gap": ("run", "skip"),
    "dst_overlap": ("once", "twice"),
    "misfire": ("once", "skip", "all"),
    "overlap": ("skip", "queue", "allow"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """A schedule as someone wrote it. `args` is the call as JSON text, `parents` whom it follows, sorted.

    `checked`: its task was at hand, and takes the arguments.
    """

    name: str
    task: str
    args: str = "{}"
    version: int = 1
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    tags: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    retention: str | None = None
    lost_limit: int | None = None
    kind: str = "manual"
    cron: str | None = None
    every: str | None = None
    at: datetime | None = None
    event: str | None = None
    parents: tuple[str, ...] = ()
    tz: str = "UTC"
    dst_gap: str = "run"
    dst_overlap: str = "once"
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    jitter: timedelta = timedelta(0)
    exclude: Any = None
    misfire: str = "once"
    misfire_grace: timedelta = timedelta(minutes=1)
    misfire_limit: int = 100
    overlap: str = "skip"
    dormant: bool = False
    note: str | None = None
    checked: bool = False

    def digest(self) -> UUID:
        """What stands for all of it. Rules that are as they are by default have no part in it: new ones do not change it."""
        said = {
            each.name: plain(value)
            for each in fields(self)
            if (value := getattr(self, each.name)) != each.default and each.name not in ("args", "checked")
        }
        # the order of names means nothing, and code does not always keep it
        text = json.dumps({**said, "args": read_json(self.args)}, sort_keys=True)
        return UUID(bytes=hashlib.sha256(text.encode()).digest()[:16])


def timing_of(said: Any, anchor: datetime, skipped: Sequence[datetime] = ()) -> Timing:
    """When a definition, or a row, comes by itself, but for these slots. Raises ConfigurationError where its words make no sense."""
    words = {
        "cron": said.cron,
        "every": said.every,
        "anchor": anchor,
        "at": said.at,
        "tz": said.tz,
        "gap": said.dst_gap,
        "overlap": said.dst_overlap,
        "start_at": said.start_at,
        "end_at": said.end_at,
        "exclude": said.exclude,
        "skipped": skipped,
    }
    return Timing.from_json(said.kind, words, said.name)


def plain(value: Any) -> Any:
    """The value of a field as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def check_schedule_name(name: Any) -> str:
    return check_name("a schedule's name", name, 200)


def define(
    name: str,
    task: Task[..., Any] | str,
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    tasks: Mapping[str, Task[..., Any]],
) -> ScheduleDefinition:
    """The schedule that these words describe. Raises ConfigurationError or InvalidArguments, with the field and the reason."""
    check_schedule_name(name)
    try:
        return _defined(name, task, args, options, tasks)
    except ConfigurationError as error:
        raise type(error)(f"Schedule {name!r} was not put: {error}") from error.__cause__


def _defined(
    name: str,
    task: Task[..., Any] | str,
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    tasks: Mapping[str, Task[..., Any]],
) -> ScheduleDefinition:
    said = {option: value for option, value in options.items() if value is not None}
    _check_options(said)
    known = task if isinstance(task, Task) else tasks.get(task) if isinstance(task, str) else None
    if known is None and not isinstance(task, str):
        raise ConfigurationError(f"task cannot be {task!r}: it is a task, or the name of one.")
    words: dict[str, Any] = {"name": name, "task": known.name if known else check_name("task", task, 500)}
    # what an event or a parent's run brings along is not here yet
    whole = "on" not in said and not said.get("dormant")
    words["args"] = written_arguments(known, args, f"Schedule {name!r} was not put", whole=whole)
    if known is not None:
        _check_key(known, said)
        words |= {
            "checked": True,
            "queue": known.options.queue,
            "priority": known.options.priority,
            **task_words(known),
        }
    return describe(name, words, said)


def _check_key(task: Task[..., Any], said: Mapping[str, Any]) -> None:
    limit = task.options.limit
    if limit is not None and callable(limit.by) and "key" not in said:
        raise ConfigurationError(
            f"key is missing: Limit(by=...) of task {task.name!r} is a function, which the database cannot call when it gives out a "
            "run, so its runs would share one line. Give key=..., or let by be the name of an argument."
        )


def _check_options(said: Iterable[str]) -> None:
    if unknown := set(said) - ScheduleOptions.__annotations__.keys():
        raise ConfigurationError(
            f"{', '.join(sorted(unknown))} is no option of a schedule: they are {', '.join(ScheduleOptions.__annotations__)}."
        )


def task_words(task: Task[..., Any]) -> dict[str, Any]:
    """What a schedule has of its task, and no option says otherwise."""
    return {
        "version": task.version,
        "redact": task.options.redact,
        "retention": task.options.retention,
        "lost_limit": task.options.retry.losses,
    }


def describe(name: str, words: Mapping[str, Any], said: Mapping[str, Any]) -> ScheduleDefinition:
    """The schedule of these words about its task, with these options over them. Raises ConfigurationError."""
    _check_options(said)
    definition = ScheduleDefinition(**{**words, **_labels(said), **_when(name, said), **_rules(said)})
    timing_of(definition, _SOME_ANCHOR)  # which tells what is wrong with it
    return definition


def _labels(said: Mapping[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if "queue" in said:
        words["queue"] = check_name("queue", said["queue"], 200)
    if "priority" in said:
        words["priority"] = check_priority(said["priority"])
    if "key" in said:
        words["key"] = check_key(said["key"])
    if "tags" in said:
        words["tags"] = check_tags(said["tags"])
    if "note" in said:
        words["note"] = check_name("note", said["note"], 1000)
    return words


def _when(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Which kind it is, and what belongs to that."""
    given = [word for word in KINDS if word in said]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(f'{word}=' for word in given)} cannot go together: give one of them.")
    kind = KINDS[given[0]] if given else "manual"
    for option, allowed in _CHOICES.items():
        if option in said and said[option] not in allowed:
            raise ConfigurationError(f"{option} cannot be {said[option]!r}: it is {' or '.join(map(repr, allowed))}.")
    for option, kinds in MEANINGFUL.items():
        if option in said and kind not in kinds:
            raise ConfigurationError(
                f"{option}= means nothing {f'with {given[0]}=' if given else 'where nothing says when to run'}: leave it out."
            )
    words: dict[str, Any] = {"kind": kind}
    if kind == "cron":
        words["cron"] = said["cron"]
    elif kind == "every" and said.get("counted_from") == "end":
        words |= {"kind": "delay", "every": _interval(said["every"])}
    elif kind == "every":
        words["every"] = _interval(said["every"])
    elif kind == "once":
        words["at"] = _moment(said["at"], "at")
    elif kind == "event":
        words["event"] = check_name("on", said["on"], 200)
    elif kind == "after":
        words |= {"parents": _parents(name, said["after"]), "dormant": bool(said.get("dormant", False))}
    return words


def _interval(every: Any) -> str:
    """As text, which is how it is kept: months stay months."""
    interval_of(every)
    if isinstance(every, str):
        return every.strip()
    length = every if isinstance(every, timedelta) else timedelta(seconds=every)
    return (
        f"{length / timedelta(milliseconds=1):.3f}ms" if length.microseconds else f"{length // timedelta(seconds=1)}s"
    )


def _parents(name: str, after: Any) -> tuple[str, ...]:
    names = [after] if isinstance(after, str) else after
    if not isinstance(names, Sequence | set | frozenset) or not names:
        raise ConfigurationError(f"after cannot be {after!r}: it is the name of a schedule, or a list of such names.")
    parents = tuple(sorted({check_name("after", parent, 200) for parent in names}))
    if name in parents:
        raise ConfigurationError(f"after={name!r} would have it wait for itself: {name} -> {name}.")
    return parents


def _rules(said: Mapping[str, Any]) -> dict[str, Any]:
    # what follows something must not lose what it is told while it runs
    words: dict[str, Any] = {"overlap": "queue"} if "after" in said or "on" in said else {}
    for option in ("tz", "dst_gap", "dst_overlap", "misfire", "overlap"):
        if option in said:
            words[option] = said[option]
    for option in ("start_at", "end_at"):
        if option in said:
            words[option] = _moment(said[option], option)
    for option in ("jitter", "misfire_grace"):
        if option in said:
            words[option] = _duration(said[option], option)
    for option, most in (("max_runs", 2**63 - 1), ("misfire_limit", 10_000)):
        if option in said:
            words[option] = _count(option, said[option], most)
    if "exclude" in said:
        exclude = said["exclude"]
        words["exclude"] = (exclude if isinstance(exclude, Exclude) else Exclude.from_json(exclude)).as_json() or None
    return words


def _duration(value: Any, what: str) -> timedelta:
    length = duration(value, what)
    if not timedelta(0) <= length <= LONGEST:
        raise ConfigurationError(f"{what} cannot be {value!r}: it is at least 0, and no longer than a hundred years.")
    return length


def _moment(value: Any, what: str) -> datetime:
    moment = aware(value, what)
    if not 1 < moment.year < LATEST_YEAR:
        raise ConfigurationError(f"{what}={value!r}: nothing is scheduled in such a year; stay below {LATEST_YEAR}.")
    return moment


def _count(what: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigurationError(f"{what} cannot be {value!r}: it is a whole number from 1 to {most}.")
    return value
