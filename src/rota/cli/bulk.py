"""`rota bulk`: many jobs changed at once."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each, moment
from rota.cli.job_search import search_options
from rota.cli.output import json_option, json_text, print_fields, print_json, print_table, say, say_more, short_time
from rota.cli.target import database_options, open_app, reading_app_option
from rota.jobs.bulk.action import ACTIONS, WORDS
from rota.jobs.bulk.start import BulkPreview
from rota.jobs.bulk.view import Bulk

__all__ = ["bulk"]

_LOOK_SECONDS = 0.5


@click.group()
def bulk() -> None:
    """Change many jobs at once, see how far that is, stop it, undo it."""


@bulk.command()
@click.argument("action", type=click.Choice(list(ACTIONS)))
@click.argument("ids", type=int, nargs=-1, metavar="[ID...]")
@click.option("--all", "everything", is_flag=True, help="All jobs, where no filter is given.")
@search_options
@click.option("--error", metavar="TEXT", help="In the type or the message of any failed attempt.")
@click.option("--to", metavar="QUEUE", help="move: the queue to move to.")
@click.option("--priority", type=int, help="prioritise: the higher runs first.")
@click.option("--delay", metavar="DURATION", help="put_off: by so long from now, such as 2h.")
@click.option("--at", metavar="WHEN", help="put_off: until this time.")
@click.option("--reason", help="Why: kept with jobs that are cancelled or discarded, and as the note of letters.")
@click.option("--pace", type=click.FloatRange(min=0.01), metavar="N", help="No more than so many jobs a second.")
@click.option("--undo-for", default="1h", show_default=True, metavar="DURATION", help="How long it can be undone.")
@click.option("--yes", is_flag=True, help="Do it without asking: needed where nobody can be asked.")
@click.option("--wait", is_flag=True, help="Show how far it is until it has ended.")
@change_options
@json_option
@reading_app_option
@database_options
def start(
    action: str,
    ids: tuple[int, ...],
    everything: bool,
    reach: int,
    at: str | None,
    pace: float | None,
    undo_for: str,
    yes: bool,
    wait: bool,
    by: str | None,
    dry_run: bool,
    as_json: bool,
    app_path: str | None,
    dsn: str | None,
    schema: str | None,
    **choice: Any,
) -> None:
    """Change all jobs that fit, or those named.

    First it is shown what that would be: how many, some of them, and what is left out and why. With --dry-run that is all, and with
    --yes it is not asked. Jobs that run are left alone. Workers do it; it can be watched, stopped and undone.
    """
    options = ("to", "priority", "delay", "reason")
    filtered = any(value not in (None, {}) for name, value in choice.items() if name not in options)
    if ids and (filtered or everything):
        raise click.UsageError("Name jobs, or choose them by filters: not both.")
    if not ids and not filtered and not everything:
        raise click.UsageError("Name jobs, choose them by filters, or say --all.")
    # `args` is empty where no argument is asked for
    choice = {name: value for name, value in choice.items() if value not in (None, {})} | {"at": moment(at)}
    with open_app(dsn, schema, app_path) as app:
        if dry_run or not yes:
            preview = app.bulk.preview_sync(action, ids=list(ids) or None, reach=reach, **choice)
            if dry_run and as_json:
                print_json(preview)
                return
            _print_preview(preview)
            if dry_run:
                return
            _ask(action, preview)
        begun = app.bulk.start_sync(action, ids=list(ids) or None, pace=pace, undo_for=undo_for, by=by, **choice)
        if wait:
            begun = _watch(app, begun)
        if as_json:
            print_json(begun)
            return
        click.echo(begun.id)
        _say(begun)


def _ask(action: str, preview: BulkPreview) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody is there to be asked whether this is meant: say --yes.")
    if ACTIONS[action].ends:
        if click.prompt(f"Type {action} to do it", err=True, default="", show_default=False) != action:
            raise click.Abort()
    else:
        click.confirm(f"{action} {_count(preview)} job(s)?", err=True, abort=True)


def _print_preview(preview: BulkPreview) -> None:
    name = preview.action.replace("_", " ")
    since = "" if preview.exact else f", counted among those enqueued since {short_time(preview.searched_to)}"
    say(f"would {name} {_count(preview)} job(s){since}{', such as:' if preview.samples else ''}")
    if preview.samples:
        print_table(
            ["id", "state", "queue", "task", "attempt", "enqueued"],
            [[j.id, j.state, j.queue, j.task, j.attempt, short_time(j.created_at)] for j in preview.samples],
            empty="",
        )
    for why, jobs in preview.excluded.items():
        say(f"{jobs} more fit and are left out: {WORDS.get(why, why)}")
    if preview.for_good:
        say(f"{preview.for_good} of them for good: {WORDS['chained']}")
    _say_workers(preview.workers)


def _count(preview: BulkPreview) -> str:
    return f"{preview.count}{'' if preview.exact else ' or more'}"


def _say_workers(workers: int) -> None:
    if not workers:
        say("no worker is running that would do it: it begins when one does (rota worker APP)")


@bulk.command("list")
@click.option("--open", "is_open", is_flag=True, help="Only those that go on.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=int, help="Continue after this id: the last of the page before.")
@json_option
@database_options
def list_(is_open: bool, limit: int, after: int | None, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """Bulks, the last first."""
    with open_app(dsn, schema) as app:
        found = app.bulk.list_sync(open=True if is_open else None, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "action", "state", "done", "skipped", "failed", "of", "by", "started"],
        [
            [b.id, b.action, b.state, b.done, b.skipped, b.failed, b.total, b.actor, short_time(b.created_at)]
            for b in found
        ],
        empty="no bulks fit",
    )
    say_more(found, limit)


@bulk.command()
@click.argument("id", type=int)
@click.option("--wait", is_flag=True, help="Show how far it is until it has ended.")
@json_option
@database_options
def show(id: int, wait: bool, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """One bulk: what it does, how far it is, and what it passed over."""
    with open_app(dsn, schema) as app:
        found = app.bulk.get_sync(id)
        if wait:
            found = _watch(app, found)
    if as_json:
        print_json(found)
        return
    print_fields(
        {
            "id": found.id,
            "action": found.action,
            "filter": "jobs that were named" if found.filter is None else json_text(found.filter),
            "options": json_text(found.options) if found.options else None,
            "by": found.actor,
            "state": found.state,
            "progress": f"{found.progress:.0%}",
            "left": _long(found.eta),
            "jobs": found.total,
            "done": found.done,
            "skipped": found.skipped,
            "failed": found.failed,
            "undone": found.undone or None,
            "kept": found.kept or None,
            "pace": None if found.pace is None else f"{found.pace:g} a second",
            "started": short_time(found.created_at),
            "ended": short_time(found.ended_at),
            "undo until": short_time(found.undo_until),
            "trouble": found.trouble,
        }
    )
    for why, jobs in found.excluded.items():
        click.echo(f"left out   {jobs}: {WORDS.get(why, why)}")
    for why, jobs in found.reasons.items():
        click.echo(f"passed     {jobs}: {WORDS.get(why, why)}")
    if found.open:
        _say_workers(found.workers)


@bulk.command()
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@change_options
@database_options
def stop(ids: tuple[int, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Change no more jobs. What was changed stays so, unless it is undone."""
    with open_app(dsn, schema) as app:

        def change(id: int) -> None:
            stopped = app.bulk.stop_sync(id, by=by, dry_run=dry_run)
            say(f"{'would stop' if dry_run else 'stopped'} bulk {id} after {stopped.done} of {stopped.total} job(s)")

        for_each(ids, change)


@bulk.command()
@click.argument("id", type=int)
@click.option("--wait", is_flag=True, help="Show how far it is until it has ended.")
@change_options
@database_options
def undo(id: int, wait: bool, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Put back what a bulk changed, as far as it is still where the bulk put it."""
    with open_app(dsn, schema) as app:
        found = app.bulk.undo_sync(id, by=by, dry_run=dry_run)
        if dry_run:
            say(f"would put back up to {found.done} job(s). {ACTIONS[found.action].undo}")
            return
        if wait:
            found = _watch(app, found)
        _say(found)


def _watch(app: Rota, bulk: Bulk) -> Bulk:
    """Say how far it is whenever that has changed, until it has ended."""
    told = None
    while True:
        bulk = app.bulk.get_sync(bulk.id)
        line = f"{bulk.progress:4.0%} {bulk.done} done, {bulk.skipped} skipped, {bulk.failed} failed of {bulk.total}"
        if line != told:
            told = line
            say(line + (f", {_long(bulk.eta)} left" if bulk.eta else ""))
        if not bulk.open:
            return bulk
        time.sleep(_LOOK_SECONDS)


def _say(bulk: Bulk) -> None:
    if bulk.open:
        say(
            f"bulk {bulk.id} is {bulk.state}; rota bulk show {bulk.id} tells how far it is, rota bulk stop {bulk.id} stops it"
        )
        _say_workers(bulk.workers)
        return
    back = f", {bulk.undone} put back, {bulk.kept} kept" if bulk.state == "undone" else ""
    say(f"bulk {bulk.id} is {bulk.state}: {bulk.done} done, {bulk.skipped} skipped, {bulk.failed} failed{back}")
    if bulk.undoable:
        say(f"until {short_time(bulk.undo_until)} it can be undone: rota bulk undo {bulk.id}")


def _long(time: timedelta | None) -> str | None:
    return None if time is None else f"{max(1, round(time.total_seconds()))} s"
