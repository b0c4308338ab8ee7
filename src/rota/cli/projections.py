"""`rota projections`: where projections are, who reads for them, and what to do when one cannot go on."""

from __future__ import annotations

import sys
from typing import Any

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each, moment
from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.projection_show import build_option, list_, show, state_of, version_option
from rota.cli.target import app_option, database_options, find_app, open_app
from rota.events.table import find_ddl
from rota.projections.inspect import PartitionView
from rota.projections.parked import ParkedEvent

__all__ = ["projections"]

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


projections.add_command(list_)
projections.add_command(show)


@projections.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@version_option
@build_option
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
                say(f"nothing to do: projection {name} is {state_of(before[0])}")
                return
            app.projections.pause_sync(name, version=version, build=build, partition=partition, by=by, dry_run=dry_run)
            what = name if partition is None else f"{name}, partition {partition}"
            say(f"would pause projection {what}" if dry_run else f"projection {what} is paused")

        for_each(names, change)


@projections.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@version_option
@build_option
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
@click.option(
    "--since", metavar="TIME", help="A time instead, such as 2030-01-31T09:00Z: the first event stored then or later."
)
@version_option
@build_option
@_partition
@app_option("The app that has it; needed with --to and --since.")
@change_options
@database_options
def rewind(
    name: str,
    position: int | None,
    since: str | None,
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
    which: dict[str, Any] = {"since": moment(since), "version": version, "build": build}
    with open_app(dsn, schema, app_path) as app:
        again = app.projections.preview_rewind_sync(name, position, partition=partition, **which)
        app.projections.rewind_sync(name, position, partition=partition, by=by, dry_run=dry_run, **which)
    to = "the first event" if again.position is None else f"the event at position {again.position}"
    say(f"{'would go on' if dry_run else 'goes on'} with {to}: projection {name}")
    if dry_run and again.events is not None:
        say(f"{again.events:,}{' or more' if again.more else ''} event(s) would be read again")


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
@build_option
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
@version_option
@build_option
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
@version_option
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
