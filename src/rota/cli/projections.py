"""`rota projections`: where projections are, who reads for them, and what to do when one cannot go on."""

from __future__ import annotations

import sys
from typing import Any

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each
from rota.cli.output import json_option, print_fields, print_json, print_table, say, short_time
from rota.cli.target import app_option, database_options, find_app, open_app
from rota.events.table import find_ddl
from rota.projections.inspect import ProjectionStatus, ProjectionView
from rota.projections.parked import ParkedEvent

__all__ = ["projections"]

_version = click.option("--version", type=click.IntRange(min=1), help="Which version of it. [default: the last]")
needed_app = click.option(
    "--app",
    "app_path",
    metavar="APP",
    required=True,
    help="The app that has the projection: module:attribute or a .py file.",
)


@click.group()
def projections() -> None:
    """Look at projections, pause and resume them, move their checkpoints and replay what is parked."""


@projections.command("list")
@json_option
@app_option("Count what waits, for the projections of this app.")
@database_options
def list_(as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """All projections that a process has declared: where they are, and who reads for them."""
    with open_app(dsn, schema, app_path) as app:
        statuses = {(each.name, each.version): each.status_sync() for each in app.projections.values()}
        found = app.projections.list_sync()
    if as_json:
        print_json([_told(view, statuses.get((view.name, view.version))) for view in found])
        return
    lag = ["lag", "seconds"] if app_path is not None else []
    print_table(
        ["name", "version", "source", "state", "owner", "position", "moved", "parked", *lag],
        [
            [
                view.name,
                view.version,
                view.definition.get("source", ""),
                _state(view),
                view.owner or "none",
                _position(view),
                short_time(view.progress_at),
                view.parked,
                *(_lag(statuses.get((view.name, view.version))) if lag else []),
            ]
            for view in found
        ],
        empty="no process has declared a projection",
    )


@projections.command()
@click.argument("name")
@_version
@json_option
@app_option("The app that has it, to count what waits and see who holds it up.")
@database_options
def show(
    name: str, version: int | None, as_json: bool, app_path: str | None, dsn: str | None, schema: str | None
) -> None:
    """One projection: its place, its owner, its last error, and with --app what waits and why."""
    with open_app(dsn, schema, app_path) as app:
        known = app.projections.get(name)
        status = known.status_sync() if known is not None and version in (None, known.version) else None
        view = status.view if status is not None else app.projections.show_sync(name, version=version)
    if as_json:
        print_json(_told(view, status))
        return
    print_fields(
        {
            "projection": view.name,
            "version": view.version,
            "source": view.definition.get("source", ""),
            "on error": view.definition.get("on_error", ""),
            "state": _state(view),
            "owner": view.owner or "none",
            "since": short_time(view.owner_since),
            "epoch": view.epoch,
            "position": _position(view),
            "order_xid": view.order_xid if view.order_xid is not None else "",
            "moved": short_time(view.progress_at),
            "parked": view.parked,
            "workers": view.workers or "none",
            "live": short_time(view.live_at),
        }
        | ({} if status is None else {"lag": str(status.lag), "lag in seconds": _seconds(status.lag.seconds)})
        | ({} if status is None or status.caught_up else {"behind it": _share(status)})
    )
    if view.error_type is not None:
        say(f"last error, {short_time(view.failed_at)}: {view.error_type}: {view.error_message}")
    if status is not None and status.held_by is not None:
        say(f"what waits cannot be read before an older transaction has ended: {status.held_by}")
    if status is not None and status.stalled:
        say(
            f"it has not come further for {_seconds(view.progress_seconds)} s although events wait: its handler hangs, or waits for a "
            f"lock. To have another process go on: rota leaders resign rota.projection/{view.name}/{view.version} --force"
        )


def _told(view: ProjectionView, status: ProjectionStatus | None) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(view, name) for name in view.__dataclass_fields__}
    if status is not None:
        told |= {"lag": status.lag, "held_by": status.held_by, "stalled": status.stalled}
        told |= {"progress": status.progress, "eta_seconds": status.eta_seconds}
    return told


def _state(view: ProjectionView) -> str:
    if view.state == "paused":
        return f"paused {short_time(view.state_at)} by {view.state_by}"
    return view.state if view.state == "running" else f"{view.state} {short_time(view.state_at)}"


def _position(view: ProjectionView) -> Any:
    return "start" if view.position is None else view.position


def _lag(status: ProjectionStatus | None) -> list[Any]:
    return ["", ""] if status is None else [str(status.lag), _seconds(status.lag.seconds)]


def _share(status: ProjectionStatus) -> str:
    left = "" if status.eta_seconds is None else f", {status.eta_seconds:.0f} s to go at its pace"
    return f"{status.progress:.0%} of the log{left}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f}"


@projections.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_version
@change_options
@database_options
def pause(
    names: tuple[str, ...], version: int | None, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Read no more for projections, until they are resumed.

    A batch in hand is undone, and read again when it is resumed.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            before = app.projections.show_sync(name, version=version)
            if before.state == "paused":
                say(f"nothing to do: projection {name} is {_state(before)}")
                return
            app.projections.pause_sync(name, version=version, by=by, dry_run=dry_run)
            say(f"would pause projection {name}" if dry_run else f"projection {name} is paused")

        for_each(names, change)


@projections.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_version
@change_options
@database_options
def resume(
    names: tuple[str, ...], version: int | None, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Have projections that are paused or stopped go on, at once and where they are."""
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            before = app.projections.show_sync(name, version=version)
            if before.state == "running":
                say(f"nothing to do: projection {name} is running")
                return
            app.projections.resume_sync(name, version=version, by=by, dry_run=dry_run)
            say(f"would resume projection {name}" if dry_run else f"projection {name} is running")

        for_each(names, change)


@projections.command()
@click.argument("name")
@click.option("--to", "position", type=int, metavar="POSITION", help="The event to begin with. [default: the first]")
@_version
@app_option("The app that has it; needed with --to.")
@change_options
@database_options
def rewind(
    name: str,
    position: int | None,
    version: int | None,
    app_path: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Have a projection read again from an event that it has taken in, or from the first.

    What its handler has written stays: pause it, empty its tables, rewind it, resume it.
    """
    with open_app(dsn, schema, app_path) as app:
        app.projections.rewind_sync(name, position, version=version, by=by, dry_run=dry_run)
    to = "the first event" if position is None else f"the event at position {position}"
    say(f"{'would go on' if dry_run else 'goes on'} with {to}: projection {name}")


@projections.command()
@click.argument("name")
@needed_app
@change_options
@database_options
def rebuild(name: str, app_path: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Begin anew with the version that the app has, beside the one that readers use.

    Its prepare= makes its tables again, and its switch= gives them to readers when it has caught up: `rota projections show`
    tells how far it is. Refused for the version that readers use.
    """
    with find_app(app_path, dsn, schema) as app:
        _check(app, name)
        view = app.projections.rebuild_sync(name, by=by, dry_run=dry_run)
    say(f"{'would begin' if dry_run else 'begins'} with the first event: projection {name}, version {view.version}")


@projections.command()
@click.argument("name")
@needed_app
@change_options
@database_options
def skip(name: str, app_path: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Pass over the event that comes next, such as the one at which a projection has stopped. It is not taken in.

    One that is stopped is then to be resumed.
    """
    with find_app(app_path, dsn, schema) as app:
        _check(app, name)
        row = app.projections.skip_sync(name, by=by, dry_run=dry_run)
    say(
        f"{'would skip' if dry_run else 'skipped'}: position {row.position} of projection {name}, {row.type or 'an event'}"
    )


def _check(app: Rota, name: str) -> None:
    if name not in app.projections:
        known = ", ".join(sorted(app.projections)) or "none"
        raise click.UsageError(f"The app has no projection {name!r}; it has {known}.")


@projections.command()
@click.argument("name")
@click.argument("positions", nargs=-1, type=int, metavar="[POSITION]...")
@click.option("--replay", is_flag=True, help="Have these tried again, or all of them.")
@click.option("--drop", is_flag=True, help="Give these up, or all of them.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show at most so many.")
@_version
@json_option
@change_options
@database_options
def parked(
    name: str,
    positions: tuple[int, ...],
    replay: bool,
    drop: bool,
    limit: int,
    version: int | None,
    as_json: bool,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Events that a projection could not take in, in the order of the log; with --replay they are tried again.

    That is done by the process that reads for it; what fails again stays.
    """
    if replay and drop:
        raise click.UsageError("Say --replay or --drop, not both.")
    with open_app(dsn, schema) as app:
        if not replay and not drop:
            found = app.projections.parked_sync(name, version=version, limit=limit)
            chosen = [each for each in found if not positions or each.position in positions]
            _print_parked(name, chosen, as_json)
            return
        act = app.projections.replay_sync if replay else app.projections.drop_sync
        count = act(name, positions or None, version=version, by=by, dry_run=dry_run)
    done = (
        ("would be tried again" if dry_run else "to be tried again")
        if replay
        else ("would drop" if dry_run else "dropped")
    )
    say(f"{done}: {count} event(s) of projection {name}")
    if positions and count < len(set(positions)):
        say("the others are not parked")
        sys.exit(1)


def _print_parked(name: str, found: list[ParkedEvent], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ["position", "stream", "type", "parked", "attempts", "error"],
        [
            [
                each.position,
                each.stream or "",
                each.type or "",
                short_time(each.parked_at),
                each.attempts,
                " ".join(f"{each.error_type}: {each.error_message}".split())[:80],
            ]
            for each in found
        ],
        empty=f"no events of {name} are parked",
    )


@projections.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_version
@change_options
@database_options
def forget(
    names: tuple[str, ...], version: int | None, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Forget projections, or a version of them, that are no longer in any code, with checkpoint and parked events.

    The tables that they wrote are not touched. Refused while a live process has them.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            view = app.projections.forget_sync(name, version=version, by=by, dry_run=dry_run)
            say(f"{'would forget' if dry_run else 'forgotten'}: projection {name}, version {view.version}")

        for_each(names, change)


@projections.command()
@click.argument("table")
@click.option("--position", metavar="COLUMN", help="What its events are numbered by. [default: the primary key]")
@click.option("--xid", metavar="COLUMN", default="xid", show_default=True, help="What the new column is called.")
@database_options
def ddl(table: str, position: str | None, xid: str, dsn: str | None, schema: str | None) -> None:
    """Print the SQL that lets a TABLE of yours be read as events: a column for the transaction's id, and its index.

    It rewrites no row: those that are there are history, and are read first. Runs none of it.
    """
    with open_app(dsn, schema) as app:
        statements = app.database.run_steps_sync(find_ddl(table, position=position, xid=xid))
    click.echo("\n".join(statements))


@projections.command()
@click.option(
    "--restored-to",
    type=int,
    metavar="POSITION",
    help="The last event that was restored, where events were appended since and that cannot be told.",
)
@change_options
@database_options
def rebase(restored_to: int | None, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Number the events of all logs anew, after a dump was restored into another cluster.

    Stop the workers first, and whoever appends. The order stays as it is, and checkpoints are moved along. What was appended
    since the restore comes behind what was restored.
    """
    with open_app(dsn, schema) as app:
        done = app.projections.rebase_sync(restored_to=restored_to, by=by, dry_run=dry_run)
    since = f", {done.appended} of them appended since the restore" if done.appended else ""
    say(f"{'would rebase' if dry_run else 'rebased'}: {done.events} event(s){since}, {done.projections} checkpoint(s)")
