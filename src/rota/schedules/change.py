"""Changing a schedule: what is said of it becomes other, and all the rest stays as its row has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rota.conversion.plain import dumps, read_json
from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.codec import Codec, decoded
from rota.jobs.definition import Task
from rota.postgres.names import check_name
from rota.postgres.query import Steps
from rota.schedules.arguments import written_arguments
from rota.schedules.definition import (
    KINDS,
    MEANINGFUL,
    ScheduleDefinition,
    ScheduleOptions,
    describe,
    task_words,
)
from rota.schedules.operate import find_schedule
from rota.schedules.put import put_schedules
from rota.schedules.store import StoredSchedule, lock_definitions

__all__ = ["change_schedule"]

_DEFAULTS = {each.name: each.default for each in fields(ScheduleDefinition)}


def change_schedule(
    name: str,
    task: Task[..., Any] | str | None,
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    reset: Sequence[str],
    *,
    tasks: Mapping[str, Task[..., Any]],
    schema: str,
    codec: Codec | None,
    actor: str,
) -> Steps[None]:
    """Have it say this as well from now on; what is `reset` is as if it had never been said. Raises ScheduleNotFound."""
    given = {option: value for option, value in options.items() if value is not None}
    yield lock_definitions(schema)
    row = yield from find_schedule(name)
    try:
        said = _options(row, given, _checked(reset, given))
        # what an event or a parent's run brings along is not here yet
        whole = "on" not in said and not said.get("dormant")
        words = _words(row, task, args, tasks, codec, whole=whole)
        definition = describe(name, words, said)
    except ConfigurationError as error:
        raise type(error)(f"Schedule {name!r} was not changed: {error}") from error.__cause__
    yield from put_schedules([definition], schema=schema, codec=codec, actor=actor, action="schedule.change")


def _checked(reset: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
    if isinstance(reset, str) or not set(reset) <= ScheduleOptions.__annotations__.keys():
        raise ConfigurationError(
            f"reset cannot be {reset!r}: it is a list of options, of {', '.join(ScheduleOptions.__annotations__)}."
        )
    if both := sorted(given.keys() & set(reset)):
        raise ConfigurationError(f"{', '.join(both)} cannot be given and reset: do one of the two.")
    return reset


def _options(row: StoredSchedule, given: Mapping[str, Any], reset: Sequence[str]) -> dict[str, Any]:
    """The options by which it would be put: its own, and these over them."""
    kinds = [word for word in KINDS if word in given]
    own = {option: value for option, value in _own_options(row).items() if option not in reset}
    if kinds:
        own = {option: value for option, value in own.items() if option not in KINDS}
    kind = next((KINDS[word] for word in KINDS if word in own or word in given), "manual")
    # a rule that means nothing to the new kind goes, as one cannot put it there
    return {
        **{option: value for option, value in own.items() if kind in MEANINGFUL.get(option, (kind,))},
        **given,
    }


def _own_options(row: StoredSchedule) -> dict[str, Any]:
    when = {"cron": row.cron, "every": row.every, "at": row.at, "after": row.parents or None, "on": row.event}
    if row.kind == "delay":
        when["counted_from"] = "end"
    usual = {**_DEFAULTS, "overlap": "queue" if row.kind in ("after", "event") else "skip"}
    del usual["queue"], usual["priority"]  # which are the task's unless someone says otherwise
    rules = {
        name: value
        for name in ScheduleOptions.__annotations__
        if name in _DEFAULTS and name not in when and (value := getattr(row, name)) != usual.get(name)
    }
    return {**{word: value for word, value in when.items() if value is not None}, **rules}


def _words(
    row: StoredSchedule,
    task: Task[..., Any] | str | None,
    args: Mapping[str, Any] | None,
    tasks: Mapping[str, Task[..., Any]],
    codec: Codec | None,
    *,
    whole: bool,
) -> dict[str, Any]:
    """What it says of its task and its arguments. Raises InvalidArguments where they do not fit a task that is known here."""
    refused = f"Schedule {row.name!r} was not changed"
    name = row.task if task is None else task.name if isinstance(task, Task) else check_name("task", task, 500)
    known = task if isinstance(task, Task) else tasks.get(name)
    words = {each: getattr(row, each) for each in ("version", "redact", "retention", "lost_limit")}
    labels = {} if known is None else {"queue": known.options.queue, "priority": known.options.priority}
    if name != row.task:
        words = {each: _DEFAULTS[each] for each in words} if known is None else task_words(known)
    elif args is not None and known is not None:
        words["redact"] = known.options.redact  # there may be more to hide than when it was put
    if known is not None and known.version != words["version"]:
        known = None  # what was written for another version is for whoever runs it to judge
    arguments = _arguments(row, name, args, known, codec, refused, whole=whole)
    as_before = args is None and name == row.task
    # what was taken when it was put is not judged again, and neither is what has just been
    checked = row.is_checked if as_before else known is not None
    return {"name": row.name, "task": name, "args": arguments, "checked": checked, **labels, **words}


def _arguments(
    row: StoredSchedule,
    task: str,
    args: Mapping[str, Any] | None,
    known: Task[..., Any] | None,
    codec: Codec | None,
    refused: str,
    *,
    whole: bool,
) -> str:
    was_whole = row.kind != "event" and not row.dormant
    if args is None and task == row.task and (was_whole or not whole):
        # what a codec wrote that is not at hand is written back as it is
        return row.args if codec is None else dumps(decoded(codec, row.args))
    given = read_json(written_arguments(known, args, refused, whole=False))
    merged = {**decoded(codec, row.args), **given}
    try:
        return written_arguments(known, merged, refused, whole=whole)
    except InvalidArguments:
        if not row.redact and (known is None or not known.options.redact):
            raise
        # whoever changes it need not know them
        raise InvalidArguments(f"{refused}: its arguments, which are redacted, do not fit task {task!r}.") from None
