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
from rota.projections.definition import lease_name
from rota.projections.inspect import PartitionView, ProjectionStatus, ProjectionView
from rota.projections.parked import ParkedEvent

__all__ = ["projections"]

_version = click.option("--version", type=click.IntRange(min=1), help="Which version of it. [default: the last]")
_build = click.option(
    "--build", type=click.IntRange(min=1), help="Which build of that. [default: the one that readers use]"
)
_partition = click.option("--partition", type=click.IntRange(min=0), help="Which partition of it. [default: all]")
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
        known = [each.status_sync() for each in app.projections.values()]
        statuses = {
            (each.view.name, each.view.version, each.view.build): each
            for status in known
            for each in (status, status.rebuild)
            if each is not None
        }
        found = app.projections.list_sync()
    if as_json:
        print_json([_told(view, statuses.get((view.name, view.version, view.build))) for view in found])
        return
    lag = ["lag", "seconds"] if app_path is not None else []
    parts = ["partitions"] if any(len(view.partitions) > 1 for view in found) else []
    print_table(
        ["name", "version", *parts, "source", "state", "owner", "position", "moved", "parked", *lag],
        [
            [
                view.name,
                view.version if view.build == 1 else f"{view.version}, build {view.build}",
                *([len(view.partitions)] if parts else []),
                view.definition.get("source", ""),
                _state(view),
                view.owner or "none",
                _position(view),
                short_time(view.progress_at),
                view.parked,
                *(_lag(statuses.get((view.name, view.version, view.build))) if lag else []),
            ]
            for view in found
        ],
        empty="no process has declared a projection",
    )


@projections.command()
@click.argument("name")
@_version
@_build
@json_option
@app_option("The app that has it, to count what waits and see who holds it up.")
@database_options
def show(
    name: str,
    version: int | None,
    build: int | None,
    as_json: bool,
    app_path: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """One projection: its place, its owner, its last error, and with --app what waits and why."""
    with open_app(dsn, schema, app_path) as app:
        known = app.projections.get(name)
        status = known.status_sync() if known is not None and version in (None, known.version) else None
        if status is not None and status.rebuild is not None and status.rebuild.view.build == build:
            status = status.rebuild
        if status is not None and build not in (None, status.view.build):
            status = None
        view = status.view if status is not None else app.projections.show_sync(name, version=version, build=build)
    if as_json:
        print_json(_told(view, status))
        return
    print_fields(
        {
            "projection": view.name,
            "version": view.version,
            "build": view.build,
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
    if len(view.partitions) > 1:
        _print_partitions(view)
    if status is not None and status.rebuild is not None:
        of = status.rebuild.view
        say(
            f"build {of.build} is to take its place and is {_state(of)}: {_share(status.rebuild)}, {status.rebuild.lag.events} "
            f"event(s) left. To give it up: rota projections rebuild {view.name} --cancel"
        )
    if view.error_type is not None:
        say(f"last error, {short_time(view.failed_at)}: {view.error_type}: {view.error_message}")
    if status is not None and status.held_by is not None:
        say(f"what waits cannot be read before an older transaction has ended: {status.held_by}")
    if status is not None and status.stalled:
        worst = max(view.partitions, key=lambda each: each.progress_seconds or 0.0)
        lease = lease_name(view.name, view.version, worst.partition if len(view.partitions) > 1 else None)
        say(
            f"it has not come further for {_seconds(worst.progress_seconds)} s although events wait: its handler hangs, or waits for "
            f"a lock. To have another process go on: rota leaders resign {lease} --force"
        )


def _print_partitions(view: ProjectionView) -> None:
    print_table(
        ["partition", "state", "owner", "position", "moved", "failures", "parked"],
        [
            [
                each.partition,
                _state(each),
                each.owner or "none",
                _position(each),
                short_time(each.progress_at),
                each.failures,
                each.parked,
            ]
            for each in view.partitions
        ],
        empty="",
    )


def _told(view: ProjectionView, status: ProjectionStatus | None) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(view, name) for name in view.__dataclass_fields__}
    if status is not None:
        told |= {"lag": status.lag, "held_by": status.held_by, "stalled": status.stalled}
        told |= {"progress": status.progress, "eta_seconds": status.eta_seconds}
        told |= {"rebuild": None if status.rebuild is None else _told(status.rebuild.view, status.rebuild)}
    return told


def _state(view: ProjectionView | PartitionView) -> str:
    if view.state == "paused":
        return f"paused {short_time(view.state_at)} by {view.state_by}"
    return view.state if view.state == "running" else f"{view.state} {short_time(view.state_at)}"


def _position(view: ProjectionView | PartitionView) -> Any:
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
@_build
@_partition
@change_options
@database_options
def pause(
    names: tuple[str, ...],
    version: int | None,
    build: int | None,
    partition: int | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Read no more for projections, until they are resumed.

    A batch in hand is undone, and read again when it is resumed. A rebuild that is under way rests too, unless --build names one.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            before = _states(app, name, version, build, partition)
            if all(each.state == "paused" for each in before):
                say(f"nothing to do: projection {name} is {_state(before[0])}")
                return
            app.projections.pause_sync(name, version=version, build=build, partition=partition, by=by, dry_run=dry_run)
            what = name if partition is None else f"{name}, partition {partition}"
            say(f"would pause projection {what}" if dry_run else f"projection {what} is paused")

        for_each(names, change)


@projections.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_version
@_build
@_partition
@change_options
@database_options
def resume(
    names: tuple[str, ...],
    version: int | None,
    build: int | None,
    partition: int | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Have projections that are paused or stopped go on, at once and where they are."""
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            before = _states(app, name, version, build, partition)
            if all(each.state == "running" for each in before):
                say(f"nothing to do: projection {name} is running")
                return
            app.projections.resume_sync(name, version=version, build=build, partition=partition, by=by, dry_run=dry_run)
            what = name if partition is None else f"{name}, partition {partition}"
            say(f"would resume projection {what}" if dry_run else f"projection {what} is running")

        for_each(names, change)


def _states(app: Rota, name: str, version: int | None, build: int | None, partition: int | None) -> list[PartitionView]:
    """How all that is asked for stands."""
    found = app.projections.show_sync(name, version=version, build=build)
    builds = [found] if build is not None else app.projections.builds_sync(name, version=found.version)
    return [each for view in builds for each in view.partitions if partition in (None, each.partition)]


@projections.command()
@click.argument("name")
@click.option("--to", "position", type=int, metavar="POSITION", help="The event to begin with. [default: the first]")
@_version
@_build
@_partition
@app_option("The app that has it; needed with --to.")
@change_options
@database_options
def rewind(
    name: str,
    position: int | None,
    version: int | None,
    build: int | None,
    partition: int | None,
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
        app.projections.rewind_sync(
            name, position, version=version, build=build, partition=partition, by=by, dry_run=dry_run
        )
    to = "the first event" if position is None else f"the event at position {position}"
    say(f"{'would go on' if dry_run else 'goes on'} with {to}: projection {name}")


@projections.command()
@click.argument("name")
@needed_app
@click.option("--cancel", is_flag=True, help="Give up the rebuild that is under way.")
@change_options
@database_options
def rebuild(
    name: str, app_path: str, cancel: bool, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Replay all events beside what readers use, and give readers the result when it has caught up.

    For a projection whose function, prepare= and switch= take `build`: workers make its tables with the next number, fill them, and
    switch over with no gap. `rota projections show NAME --app APP` tells how far it is. Another begins anew with a version that
    readers do not use yet; for one that they do, this says what to change.
    """
    with find_app(app_path, dsn, schema) as app:
        _check(app, name)
        view = app.projections.rebuild_sync(name, cancel=cancel, by=by, dry_run=dry_run)
        takes_build = app.projections[name].definition.takes_build
    if cancel:
        say(f"{'would give up' if dry_run else 'given up'}: the rebuild of projection {name}; build {view.build} stays")
        return
    what = f"version {view.version}" + (f", build {view.build}" if takes_build else "")
    say(f"{'would begin' if dry_run else 'begins'} with the first event: projection {name}, {what}")


@projections.command()
@click.argument("name")
@needed_app
@_build
@_partition
@change_options
@database_options
def skip(
    name: str,
    app_path: str,
    build: int | None,
    partition: int | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Pass over the event that comes next, such as the one at which a projection has stopped. It is not taken in.

    One that is stopped is then to be resumed. Of several partitions it is the one that has stopped, unless you name another.
    """
    with find_app(app_path, dsn, schema) as app:
        _check(app, name)
        row = app.projections.skip_sync(name, build=build, partition=partition, by=by, dry_run=dry_run)
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
@_build
@_partition
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
    build: int | None,
    partition: int | None,
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
            found = app.projections.parked_sync(name, version=version, build=build, partition=partition, limit=limit)
            chosen = [each for each in found if not positions or each.position in positions]
            _print_parked(name, chosen, as_json)
            return
        act = app.projections.replay_sync if replay else app.projections.drop_sync
        count = act(name, positions or None, version=version, build=build, partition=partition, by=by, dry_run=dry_run)
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
