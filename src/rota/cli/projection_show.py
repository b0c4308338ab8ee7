"""`rota projections list` and `show`: where projections are, who reads for them, and what waits."""

from __future__ import annotations

from typing import Any

import click

from rota.cli.output import json_option, print_fields, print_json, print_table, say, short_time
from rota.cli.target import app_option, database_options, open_app
from rota.projections.definition import lease_name
from rota.projections.inspect import PartitionView, ProjectionStatus, ProjectionView

__all__ = ["build_option", "list_", "show", "state_of", "version_option"]

version_option = click.option("--version", type=click.IntRange(min=1), help="Which version of it. [default: the last]")
build_option = click.option(
    "--build", type=click.IntRange(min=1), help="Which build of that. [default: the one that readers use]"
)


@click.command("list")
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
                state_of(view),
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


@click.command()
@click.argument("name")
@version_option
@build_option
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
            "state": state_of(view),
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
            f"build {of.build} is to take its place and is {state_of(of)}: {_share(status.rebuild)}, {status.rebuild.lag.events} "
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
                state_of(each),
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


def state_of(view: ProjectionView | PartitionView) -> str:
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
