"""`rota pollers`: look at pollers and their tables, poll by hand, have them rest, and release rows that are parked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each
from rota.cli.output import json_option, print_fields, print_json, print_table, say, short_time
from rota.cli.target import app_option, database_options, find_app, open_app
from rota.errors import ConfigurationError
from rota.pollers.check import PollerCheck
from rota.pollers.inspect import Backlog, DueRow, PollerView
from rota.pollers.keys import read_keys_sync
from rota.pollers.poller import Poller, PollStats
from rota.pollers.running import key_text
from rota.runtime.process import bodies_in_threads, leave

__all__ = ["pollers"]

T = TypeVar("T")

needed_app = click.option(
    "--app",
    "app_path",
    metavar="APP",
    required=True,
    help="The app that has the poller: module:attribute or a .py file.",
)


@click.group()
def pollers() -> None:
    """Look at pollers, check their tables, poll by hand, pause them and release rows."""


@pollers.command("list")
@json_option
@app_option("Count what is due, for the pollers of this app.")
@database_options
def list_(as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """All pollers that a process has declared: what they hold, and what waits or is parked.

    One without workers is polled by hand, waits for its workers to start, or is gone from the code: see `rota pollers forget`.
    """
    with open_app(dsn, schema, app_path) as app:
        found = app.pollers.list_sync()
        # asked after the list: an app's own poller may never have run, and is not on it
        backlogs = {name: _unless_misfit(poller.backlog_sync) for name, poller in app.pollers.items()}
    if as_json:
        print_json([{**_fields(view), "backlog": backlogs.get(view.name)} for view in found])
        return
    due = ["due", "oldest"] if app_path is not None else []
    print_table(
        ["name", "table", "state", "workers", "held", "waiting", "parked", *due],
        [
            [
                view.name,
                _table(view),
                _state(view),
                view.workers or "none",
                view.held,
                view.waiting,
                view.parked,
                *(_backlog(backlogs.get(view.name)) if due else []),
            ]
            for view in found
        ],
        empty="no process has declared a poller",
    )
    if unknown := sorted(backlogs.keys() - {view.name for view in found}):
        say(f"of this app, and run by no process yet: {', '.join(unknown)}")


def _fields(view: PollerView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__dataclass_fields__}


def _table(view: PollerView) -> str:
    table = view.definition.get("table", "")
    return ".".join(table) if isinstance(table, list) else str(table)


def _state(view: PollerView) -> str:
    return "active" if view.paused_at is None else f"paused {short_time(view.paused_at)} by {view.paused_by}"


def _backlog(backlog: Backlog | None) -> list[Any]:
    return ["", ""] if backlog is None else [backlog.rows, short_time(backlog.oldest_due_at)]


@pollers.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@needed_app
@database_options
def check(names: tuple[str, ...], as_json: bool, app_path: str, dsn: str | None, schema: str | None) -> None:
    """How PostgreSQL finds the due rows of pollers, of all of the app if none is named.

    Exits with 1 when an index is missing, or rights are, and with 2 when one does not fit its table at all.
    """
    with find_app(app_path, dsn, schema) as app:
        chosen = [_poller(app, name) for name in names or app.pollers]
        found = {poller.name: _unless_misfit(poller.check_sync) for poller in chosen}
    checks = [each for each in found.values() if each is not None]
    if as_json:
        print_json(checks)
    else:
        for each in checks:
            _print_check(each)
    sys.exit(2 if len(checks) < len(found) else 0 if all(each.is_fit for each in checks) else 1)


def _unless_misfit(look: Callable[[], T]) -> T | None:
    """What does not fit its table is told, and does not keep the others from being looked at."""
    try:
        return look()
    except ConfigurationError as error:
        say(f"rota: {error}")
        return None


def _print_check(check: PollerCheck) -> None:
    print_fields(
        {
            "poller": check.poller,
            "table": check.table,
            "rows": "not counted yet" if check.rows is None else f"about {check.rows:,}",
            "index": check.index or ("missing" if check.missing else "none"),
            "reads": _reading(check),
        }
    )
    if check.plan:
        click.echo(f"\n{check.plan}\n")
    for warning in check.warnings:
        say(f"note: {warning}")
    if check.missing is not None:
        say(f"no index leads to the due rows of {check.poller}. This makes one:")
        click.echo(f"{check.missing.statement};\n")


def _reading(check: PollerCheck) -> str:
    if not check.plan:
        return "nothing: this role may not"
    if not check.scans:
        return "what is due" if check.index else "what an index leads to"
    return "the whole table, which is small" if check.index else "the whole table"


@pollers.command()
@click.argument("name")
@click.option("--max-rows", type=click.IntRange(min=1), help="Until so many are polled well. [default: 10]")
@click.option("--key", help="Poll this row, due or not: a value, or a JSON array for a key of several columns.")
@click.option("--dry-run", is_flag=True, help="Take nothing; show the rows that would be.")
@json_option
@needed_app
@database_options
def run(
    name: str,
    max_rows: int | None,
    key: str | None,
    dry_run: bool,
    as_json: bool,
    app_path: str,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Take rows that are due and poll them in this process; exits with 1 when there were errors.

    The first Ctrl-C gives back what was not begun, and waits for handlers that run in threads; the second does not.
    """
    if key is not None and (max_rows is not None or dry_run):
        raise click.UsageError("--key names the one row to poll, so --max-rows and --dry-run cannot be given with it.")
    known = threading.enumerate()
    try:
        with find_app(app_path, dsn, schema) as app:
            poller = _poller(app, name)
            if dry_run:
                _print_due(poller.preview_sync(max_rows or 10), as_json)
                return
            if key is None:
                stats = poller.run_once_sync(max_rows or 10)
            else:
                stats = poller.poll_sync(*read_keys_sync(app.database, name, [key], poller.definition)[0])
            paused = [view for view in app.pollers.list_sync() if view.name == name and view.paused_at is not None]
    except KeyboardInterrupt:
        _leave_stuck_threads(1, known)
        raise
    _print_stats(stats, key, as_json)
    if paused and not stats.claimed:
        say(f"poller {name} is paused by {paused[0].paused_by}: nothing is taken until `rota pollers resume {name}`")
    code = 1 if stats.errors or stats.held_by is not None else 0
    _leave_stuck_threads(code, known)  # of handlers that took longer than their timeout
    sys.exit(code)


def _leave_stuck_threads(code: int, known: Sequence[threading.Thread]) -> None:
    """Handlers in threads cannot be stopped, and their rows were given back: do not wait for them at exit."""
    if stuck := bodies_in_threads(known):
        leave("; ".join(stuck), code)


def _print_due(due: Sequence[DueRow], as_json: bool) -> None:
    if as_json:
        print_json(due)
        return
    print_table(
        ["key", "due since"], [[key_text(row.key), short_time(row.due_at)] for row in due], empty="nothing is due"
    )


def _print_stats(stats: PollStats, key: str | None, as_json: bool) -> None:
    if as_json:
        print_json(stats)
        return
    print_fields({"claimed": stats.claimed, "completed": stats.completed, "errors": len(stats.errors)})
    for error in stats.errors:
        say(f"error: {error}")
    if stats.held_by is not None:
        say(f"row {key} is being polled by {stats.held_by}: nothing was done")


@pollers.command()
@click.argument("name")
@click.option("--notify", is_flag=True, help="Also a trigger that wakes idle workers when rows are written.")
@needed_app
@database_options
def ddl(name: str, notify: bool, app_path: str, dsn: str | None, schema: str | None) -> None:
    """Print the SQL that a table lacks for a poller: the index that is missing. Runs none of it."""
    with find_app(app_path, dsn, schema) as app:
        click.echo(_poller(app, name).ddl_sync(notify=notify), nl=False)


def _poller(app: Rota, name: str) -> Poller[..., Any]:
    if name not in app.pollers:
        known = ", ".join(sorted(app.pollers)) or "none"
        raise click.UsageError(f"The app has no poller {name!r}; it has {known}.")
    return app.pollers[name]


@pollers.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def pause(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Take no more rows for pollers, until they are resumed.

    What is being polled goes on to its end.
    """
    with open_app(dsn, schema) as app:
        before = {view.name: view for view in app.pollers.list_sync()}

        def change(name: str) -> None:
            if name in before and before[name].paused_at is not None:
                say(f"nothing to do: poller {name} is {_state(before[name])}")
                return
            app.pollers.pause_sync(name, by=by, dry_run=dry_run)
            say(f"would pause poller {name}" if dry_run else f"poller {name} is paused")

        for_each(names, change)


@pollers.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def resume(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """End the pause of pollers; they go on at once."""
    with open_app(dsn, schema) as app:
        before = {view.name: view for view in app.pollers.list_sync()}

        def change(name: str) -> None:
            if name in before and before[name].paused_at is None:
                say(f"nothing to do: poller {name} is not paused")
                return
            app.pollers.resume_sync(name, by=by, dry_run=dry_run)
            say(f"would resume poller {name}" if dry_run else f"poller {name} is active")

        for_each(names, change)


@pollers.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="KEY", help="Continue after this key: the last of the page before.")
@json_option
@database_options
def parked(name: str, limit: int, after: str | None, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """Rows of a poller whose attempts are used up, by key, with the error of the last."""
    with open_app(dsn, schema) as app:
        begin = None if after is None else read_keys_sync(app.database, name, [after])[0]
        found = app.pollers.parked_sync(name, limit=limit, after=begin)
    if as_json:
        print_json(found)
        return
    print_table(
        ["key", "parked", "attempts", "losses", "error"],
        [
            [
                key_text(row.key),
                short_time(row.parked_at),
                row.attempts,
                row.losses,
                _error(row.error_type, row.error_message),
            ]
            for row in found
        ],
        empty=f"no rows of {name} are parked",
    )
    if len(found) == limit:
        say(f"there may be more: --after {key_text(found[-1].key)}")


def _error(type_: str | None, message: str | None) -> str:
    return " ".join(f"{type_}: {message}".split())[:80] if type_ else ""


@pollers.command()
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "everything", is_flag=True, help="All rows that are parked.")
@click.option("--held", is_flag=True, help="Also rows that are being polled at this moment: those polls are then void.")
@change_options
@database_options
def release(
    name: str,
    keys: tuple[str, ...],
    everything: bool,
    held: bool,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Let rows that are parked, or wait for their next attempt, be polled at once with all their attempts.

    A key is a value, or a JSON array where it has several columns.
    """
    if bool(keys) == everything:
        raise click.UsageError("Name the keys of the rows, or say --all for all that are parked.")
    with open_app(dsn, schema) as app:
        given = read_keys_sync(app.database, name, keys) if keys else None
        count = app.pollers.release_sync(name, given, held=held, by=by, dry_run=dry_run)
    say(f"{'would release' if dry_run else 'released'}: {count} row(s) of poller {name}")
    if keys and count < len(set(keys)):
        say("the others are neither parked nor waiting" + ("" if held else ", or are being polled: see --held"))


@pollers.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def forget(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Forget pollers that are no longer in any code, with what is remembered of their rows.

    The tables that they polled are not touched. Refused while a live process polls for them.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            forgotten = app.pollers.forget_sync(name, by=by, dry_run=dry_run)
            say(
                f"{'would forget' if dry_run else 'forgotten'}: poller {name}, with {forgotten.waiting} row(s) that waited, "
                f"{forgotten.parked} parked, {forgotten.paces} pace(s)"
            )

        for_each(names, change)
