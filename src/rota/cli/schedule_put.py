"""`rota schedules put` and `change`: a schedule from its words on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, tzinfo
from typing import Any, TypeVar, cast

import click

from rota.app import Rota
from rota.cli.changes import change_options, json_object, moment
from rota.cli.output import json_text, say, short_time
from rota.cli.schedule_check import exclude_option, gap_option, overlap_option, pace
from rota.cli.target import app_option, database_options, open_app
from rota.errors import ScheduleNotFound
from rota.schedules.definition import ScheduleDefinition, ScheduleOptions
from rota.schedules.view import Schedule
from rota.schedules.zones import zone_of

__all__ = ["change", "put"]

F = TypeVar("F", bound=Callable[..., Any])

_WORDS = (
    click.option("--cron", help="When: a cron expression of 5 fields, or 6 with the seconds first."),
    click.option("--every", help="When: every so often, such as 30s, '1h 30m' or '1 month'."),
    click.option(
        "--counted-from", type=click.Choice(["start", "end"]), help="Count --every from when a run began, or ended."
    ),
    click.option("--at", metavar="TIME", help="When: once, at this time."),
    click.option(
        "--after", metavar="NAME", multiple=True, help="When: a run of this schedule has succeeded; may be repeated."
    ),
    click.option("--on", metavar="EVENT", help="When: this event is emitted."),
    click.option("--tz", help="Its time zone, such as Europe/Berlin. [default: UTC]"),
    gap_option,
    overlap_option,
    click.option("--start-at", metavar="TIME", help="Not before this time."),
    click.option("--end-at", metavar="TIME", help="Before this time."),
    click.option("--max-runs", type=int, help="So many times at most."),
    click.option("--jitter", metavar="TIME", help="Up to this much later, the same for the same slot."),
    exclude_option,
    click.option(
        "--misfire", type=click.Choice(["once", "skip", "all"]), help="What of slots that nobody gave out in time runs."
    ),
    click.option("--misfire-grace", metavar="TIME", help="So late is still in time. [default: 1m]"),
    click.option("--misfire-limit", type=int, help="So many at once at most. [default: 100]"),
    click.option("--overlap", type=click.Choice(["skip", "queue", "allow"]), help="What if a run is still under way."),
    click.option("--dormant", is_flag=True, help="Only when a run of its parent activates it."),
    click.option("--queue", help="Into this queue. [default: the task's with --app, else default]"),
    click.option("--priority", type=int, help="The higher runs first."),
    click.option("--key", help="What its jobs are ordered and limited by."),
    click.option("--tag", "tags", multiple=True, help="With this tag; may be given several times."),
    click.option("--note", help="A word to whoever looks at it."),
)


def _words(command: F) -> F:
    """The options that say when it runs, and by which rules."""
    for option in reversed(_WORDS):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.option("--task", required=True, help="The name of the task that it runs.")
@click.option("--args", callback=json_object, help="The task's arguments by name, as JSON.")
@_words
@app_option("Check the arguments against this app's task, and use its options and codec.")
@change_options
@database_options
def put(
    name: str,
    task: str,
    args: dict[str, Any] | None,
    app_path: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
    **said: Any,
) -> None:
    """Add a schedule, or have the one of this name say this, and nothing else, from now on.

    What is not given is as by default, whatever it was before: to leave it as it is, use change. With none of --cron, --every,
    --at, --after and --on it runs when it is triggered. Times without an offset are those of --tz, else this machine's. Without
    --app the arguments are stored as they are, and nothing is checked until a worker runs it.
    """
    options = _options(said, None if said["tz"] is None else zone_of(said["tz"]))
    with open_app(dsn, schema, app_path) as app:
        known = task if app_path is None else app.tasks.find(task)
        before = _found(app, name)
        schedule = app.schedules.put_sync(name, task=known, args=args, by=by, dry_run=dry_run, **options)
    _say_put(before, schedule, dry_run=dry_run)
    if app_path is None:
        # on stderr, and no error: a task that only another program knows is put this way
        say("The arguments were not checked, and no options of the task count: name the app with --app for that.")


@click.command()
@click.argument("name")
@click.option("--task", help="The name of the task that it runs.")
@click.option("--args", callback=json_object, help="Arguments that go over those it has, by name, as JSON.")
@_words
@click.option(
    "--reset",
    multiple=True,
    metavar="OPTION",
    type=click.Choice([each.replace("_", "-") for each in ScheduleOptions.__annotations__]),
    help="Have this option, such as max-runs, be as if it had never been given; may be repeated.",
)
@app_option("Check the arguments against this app's task, with its codec.")
@change_options
@database_options
def change(
    name: str,
    task: str | None,
    args: dict[str, Any] | None,
    reset: tuple[str, ...],
    app_path: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
    **said: Any,
) -> None:
    """Have a schedule say this, and all else as before.

    Another word for when takes the place of the one there is. Times without an offset are those of the schedule's time zone.
    Without --app nothing is checked until a worker runs it.
    """
    with open_app(dsn, schema, app_path) as app:
        before = app.schedules.get_sync(name)
        options = _options(said, zone_of(said["tz"] or before.tz))
        known = task if task is None or app_path is None else app.tasks.find(task)
        unsaid = [option.replace("-", "_") for option in reset]
        schedule = app.schedules.change_sync(
            name, task=known, args=args, reset=unsaid, by=by, dry_run=dry_run, **options
        )
    _say_put(before, schedule, dry_run=dry_run)


def _options(said: dict[str, Any], zone: tzinfo | None) -> ScheduleOptions:
    for option in ("at", "start_at", "end_at"):
        said[option] = moment(said[option], zone)
    for option in ("every", "jitter", "misfire_grace"):
        said[option] = None if said[option] is None else pace(said[option])
    # a flag that is not set and an option that is not given say nothing; a zero does
    given = {
        option: value for option, value in said.items() if value is not None and value is not False and value != ()
    }
    return cast("ScheduleOptions", given)


def _found(app: Rota, name: str) -> Schedule | None:
    try:
        return app.schedules.get_sync(name)
    except ScheduleNotFound:
        return None


def _say_put(before: Schedule | None, schedule: Schedule, *, dry_run: bool) -> None:
    name = schedule.name
    if before is None:
        say(f"schedule {name} {'would be added' if dry_run else 'is added'}")
    elif before.revision == schedule.revision:
        say(f"schedule {name} says this already: nothing is changed")
    else:
        say(f"schedule {name} {'would be changed' if dry_run else 'is changed'}")
        for field in fields(ScheduleDefinition):
            old, new = (getattr(each, field.name, None) for each in (before, schedule))
            if old != new and field.name != "kind":  # which follows from the others
                say(f"  {field.name}: {_shown(old)} -> {_shown(new)}")
    say(f"{schedule.when}" + (f"; next at {short_time(schedule.next_at)}" if schedule.next_at else ""))
    if schedule.why_idle and schedule.state != "waiting":
        say(f"it is {schedule.state}: {schedule.why_idle}")


def _shown(value: Any) -> str:
    if value in (None, ()):
        return "nothing"
    if isinstance(value, datetime):
        return short_time(value)
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(json_text(value)) if isinstance(value, dict) else str(value)
