"""`rota queues`: look at queues; pause, limit, weigh and relax them while workers run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import EllipsisType
from typing import Any, TypeVar

import click

from rota.cli.changes import change_options, for_each, moment
from rota.cli.output import json_option, print_fields, print_json, print_table, say, short_time
from rota.cli.target import app_option, database_options, open_app
from rota.clock import seconds
from rota.jobs.queue_view import QueueView

__all__ = ["queues"]

F = TypeVar("F", bound=Callable[..., Any])

declaring_app = app_option("Also the queues that tasks of this app declare.")


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them, limit, weigh and relax them."""


def name_arguments(command: F) -> F:
    """Which queues are meant: those named, or what holds for all of them together."""
    for option in (
        click.argument("names", nargs=-1, metavar="[NAME]..."),
        click.option("--all", "everything", is_flag=True, help="All queues together, also those that come later."),
    ):
        command = option(command)
    return command


def _chosen(names: tuple[str, ...], everything: bool) -> Sequence[str]:
    """The queues that were named; an empty name is all of them together."""
    if bool(names) == everything:
        raise click.UsageError("Name queues, or say --all for all of them together.")
    if "" in names:
        raise click.UsageError("A name of a queue cannot be empty.")
    return names or ("",)


@queues.command("list")
@json_option
@declaring_app
@database_options
def list_(as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """Every queue that has jobs, is named by a live worker, or was paused, limited or weighed."""
    with open_app(dsn, schema, app_path) as app:
        found = app.queues.list_sync()
    if as_json:
        print_json(found)
        return
    print_table(
        ["name", "state", "due", "queued", "blocked", "running", "oldest", "workers", "limits", "weight"],
        [
            [
                each.name or "(all)",
                _state(each),
                each.due,
                each.queued,
                each.blocked,
                each.running,
                _age(each.oldest_seconds),
                each.workers or "none",
                _limits(each),
                "" if each.name is None else f"{each.weight:g}",
            ]
            for each in found
        ],
        empty="no queue has jobs, is named by a worker, or was paused or limited",
    )
    if any(each.at_least for each in found):
        say("there may be more: counting ends at a bound, so that it is quick")
    _say_pause_of_all([each for each in found if each.name is None])


def _say_pause_of_all(every: Sequence[QueueView]) -> None:
    if every and every[0].paused_at is not None:
        say(f"all queues are {_state(every[0])}: rota queues resume --all")


def _state(queue: QueueView) -> str:
    if queue.paused_at is None:
        return "active"
    until = f" until {short_time(queue.paused_until)}" if queue.paused_until is not None else ""
    return f"paused by {queue.paused_by}{until}{f' ({queue.pause_reason})' if queue.pause_reason else ''}"


def _limits(queue: QueueView) -> str:
    running = "" if queue.running_limit is None else f"{queue.running_limit} running"
    return ", ".join(part for part in (running, queue.rate) if part)


def _age(age: float) -> str:
    if age < 1:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if age >= 2 * size:
            return f"{age // size:.0f}{unit}"
    return f"{age:.0f}s"


@queues.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All queues together.")
@json_option
@declaring_app
@database_options
def show(
    name: str | None, everything: bool, as_json: bool, app_path: str | None, dsn: str | None, schema: str | None
) -> None:
    """One queue: what waits and runs there, and what was said about it by whom."""
    (chosen,) = _chosen(() if name is None else (name,), everything)
    with open_app(dsn, schema, app_path) as app:
        queue = app.queues.get_sync(chosen or None)
        every = app.queues.get_sync(None)
    if as_json:
        print_json(queue)
        return
    more = "+" if queue.at_least else ""
    print_fields(
        {
            "name": queue.name or "(all)",
            "state": _state(queue),
            "paused": short_time(queue.paused_at),
            "due": f"{queue.due}{more}",
            "queued": f"{queue.queued}{more}",
            "blocked": f"{queue.blocked}{more}",
            "running": f"{queue.running}{more}",
            "oldest": _age(queue.oldest_seconds),
            "workers": queue.workers or "none",
            "limits": _limits(queue) or "none",
            "weight": None if queue.name is None else f"{queue.weight:g}",
            "on disk": "a moment later (relaxed)" if queue.relaxed else None,
            "changed": queue.changed_at and f"{short_time(queue.changed_at)} by {queue.changed_by}",
        }
    )
    _say_if_unknown(queue)
    if queue.name is not None:
        _say_pause_of_all([every])


def _named(name: str) -> str:
    return f"queue {name}" if name else "all queues"


def _say_if_unknown(queue: QueueView) -> None:
    if not queue.is_known:
        say(f"nobody has used queue {queue.name} so far: it has no jobs, and no worker names it")


@queues.command()
@name_arguments
@click.option("--reason", default="", help="Why: for whoever wonders.")
@click.option("--for", "for_", metavar="TIME", help="End by itself after so long, such as 30m.")
@click.option("--until", metavar="TIME", help="End by itself then, such as 2030-01-31T09:00:00Z.")
@change_options
@database_options
def pause(
    names: tuple[str, ...],
    everything: bool,
    reason: str,
    for_: str | None,
    until: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Have no more jobs of queues begin, until they are resumed or a time is over.

    What runs goes on to its end.
    """
    if for_ is not None and until is not None:
        raise click.UsageError("--for and --until both say when it ends: give one of them.")
    ends: datetime | None = moment(until)
    if for_ is not None:
        seconds(for_, "--for")
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            queue = app.queues.pause_sync(name or None, reason, until=ends, for_=for_, by=by, dry_run=dry_run)
            until = f" until {short_time(queue.paused_until)}" if queue.paused_until is not None else ""
            say(f"would pause {_named(name)}{until}" if dry_run else f"{_named(name)}: paused{until}")
            _say_if_unknown(queue)

        for_each(_chosen(names, everything), change)


@queues.command()
@name_arguments
@change_options
@database_options
def resume(
    names: tuple[str, ...], everything: bool, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """End the pause of queues; they go on at once."""
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            if app.queues.get_sync(name or None).paused_at is None:
                say(f"nothing to do: {_named(name)} {'is' if name else 'are'} not paused{'' if name else ' as such'}")
            else:
                app.queues.resume_sync(name or None, by=by, dry_run=dry_run)
                say(f"would resume {_named(name)}" if dry_run else f"{_named(name)}: active")

        for_each(_chosen(names, everything), change)
        if not everything:
            _say_pause_of_all([app.queues.get_sync(None)])
        elif paused := [each.name for each in app.queues.list_sync() if each.name and each.paused_at is not None]:
            say(f"paused by themselves: rota queues resume {' '.join(paused)}")


@queues.command()
@name_arguments
@click.option("--running", metavar="N", help="How many jobs run at once in all processes; 'none' removes it.")
@click.option("--rate", metavar="N/TIME", help="How many begin in a period, such as 100/1m; 'none' removes it.")
@change_options
@database_options
def limit(
    names: tuple[str, ...],
    everything: bool,
    running: str | None,
    rate: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Limit how many jobs of a queue run at once, and how many begin in a period.

    What is not given stays as it is. Jobs that run already go on, also if they are more.
    """
    if running is None and rate is None:
        raise click.UsageError("Say --running N, --rate N/TIME, or both; 'none' removes a limit.")
    most = _count(running)
    per: str | EllipsisType | None = ... if rate is None else None if rate == "none" else rate
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            queue = app.queues.limit_sync(name or None, running=most, rate=per, by=by, dry_run=dry_run)
            limits = _limits(queue) or "none"
            say(f"would limit {_named(name)}: {limits}" if dry_run else f"{_named(name)}: limits {limits}")
            _say_if_unknown(queue)

        for_each(_chosen(names, everything), change)


def _count(running: str | None) -> int | EllipsisType | None:
    if running is None or running == "none":
        return ... if running is None else None
    try:
        return int(running)
    except ValueError as error:
        raise click.BadParameter(f"{running!r} is neither a number nor 'none'.", param_hint="--running") from error


@queues.command()
@click.argument("name")
@click.argument("weight", type=float)
@change_options
@database_options
def weight(name: str, weight: float, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Give a queue so large a share beside others of the same priority; 1 is what each has unless said."""
    with open_app(dsn, schema) as app:
        queue = app.queues.weigh_sync(name, weight, by=by, dry_run=dry_run)
    say(f"would weigh queue {name}: {queue.weight:g}" if dry_run else f"queue {name}: weight {queue.weight:g}")
    _say_if_unknown(queue)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def relax(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Have successes in queues count a moment before they are on disk, for jobs that do no harm when they run again.

    When the database server crashes in that moment, its workers write them down anew.
    """
    _relax(names, True, by, dry_run, dsn, schema)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def tighten(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Have successes in queues be on disk before they count, as they are unless a queue was relaxed."""
    _relax(names, False, by, dry_run, dsn, schema)


def _relax(
    names: tuple[str, ...], relaxed: bool, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    verb, state = ("relax", "relaxed") if relaxed else ("tighten", "on disk before it counts")
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            said = app.queues.relax_sync if relaxed else app.queues.tighten_sync
            queue = said(name, by=by, dry_run=dry_run)
            say(f"would {verb} queue {name}" if dry_run else f"queue {name}: {state}")
            _say_if_unknown(queue)

        for_each(names, change)
