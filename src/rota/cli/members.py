"""`rota members`: the processes that hold work, and having one of them rest or end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from rota.app import Rota
from rota.cli.changes import change_options
from rota.cli.output import as_json as plain
from rota.cli.output import json_option, print_fields, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app
from rota.clock import Deadline, seconds
from rota.errors import NotPossible
from rota.jobs.at_work import at_work
from rota.jobs.inspect import held_by_member
from rota.leases.member_view import MemberView

__all__ = ["members"]

_LOOK_SECONDS = 0.1
_DIED = {"suspected": "its session ended", "expired": "silent for a whole lease"}


@click.group()
def members() -> None:
    """Look at the processes that hold work, and have one of them rest or end."""


@members.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@json_option
@database_options
def list_(ended: bool, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """The live members, newest first, how many jobs each runs, and how it is."""
    with open_app(dsn, schema) as app:
        found = app.members_sync(ended=ended)
        held = app.database.run_sync(held_by_member())
    if as_json:
        print_json([{**plain(member), "running": held.get(str(member.id), 0)} for member in found])
        return
    print_table(
        ["name", "state", "running", "memory", "lag", "connections", "since", "release", "id"],
        [
            [
                member.name,
                _state(member),
                _running(member, held.get(str(member.id), 0)),
                _memory(member),
                _lag(member),
                _connections(member),
                short_time(member.started_at),
                _release(member),
                member.id,
            ]
            for member in found
        ],
        empty="no live members: no worker is running",
    )


@members.command("show")
@click.argument("member")
@json_option
@database_options
def show(member: str, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """All about one process, by its name or id."""
    with open_app(dsn, schema) as app:
        found = [each for each in app.members_sync(ended=True) if member in (each.name, str(each.id))]
        if not found:
            raise NotPossible(
                f"No process is called {member!r}. `rota members list --all` tells which there are and were."
            )
        view = found[0]
        runs = app.database.run_sync(at_work([view.id], each=20)).get(view.id, ())
        leads = [leader.name for leader in app.leaders.list_sync() if leader.member == view.id]
    if as_json:
        print_json({**plain(view), "runs": plain(list(runs)), "leads": leads})
        return
    queues = view.work.get("queues")
    print_fields(
        {
            "name": view.name,
            "id": view.id,
            "state": _state(view),
            "release": _release(view),
            "host": f"{view.host}, pid {view.pid}",
            "since": short_time(view.started_at),
            "queues": ("all" if queues is None else ", ".join(queues)) if "tasks" in view.work else None,
            "tasks": ", ".join(view.work.get("tasks", ())),
            "slots": _running(view, len(runs)),
            "runs": ", ".join(f"{job.task} {job.id}" for job in runs),
            "leads": ", ".join(leads),
            "memory": _memory(view),
            "loop": _lag(view),
            "drain": _DRAINS.get(view.work.get("drains", "")),
        }
    )
    for name, pool in ((view.condition or {}).get("pools") or {}).items():
        click.echo(
            f"pool {name:5} {pool['used']} in use, {pool['size'] - pool['used']} idle, of {pool['most']}; "
            f"{pool['waiting']} wait for one, {pool['wait_ms']} ms each lately"
        )


_DRAINS = {
    "exits": "it would exit with 0, and whoever keeps it running would start the next",
    "returns": "its app.work() would return",
    "quiet": "it would serve requests on, and be quiet",
}


def _change(verb: str, does: Callable[[Rota], Callable[..., MemberView]], help: str) -> click.Command:
    @click.argument("member")
    @change_options
    @database_options
    def command(member: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
        with open_app(dsn, schema) as app:
            view = does(app)(member, by=by, dry_run=dry_run)
        say(f"{view.name} {'would be ' if dry_run else 'is '}asked to {_ASKED[verb]}")

    return members.command(verb, help=help)(command)


_ASKED = {"quiet": "take on nothing new", "resume": "work again"}

_change(
    "quiet",
    lambda app: app.members.quiet_sync,
    "Have MEMBER, by its name or id, take on nothing new: no job, no row of a poller, no leadership. What runs goes on, and what it "
    "leads is led by others. `rota members resume` ends it, and so does a new start of the process. A `rota worker --drain` ends "
    "instead.",
)
_change("resume", lambda app: app.members.resume_sync, "Have MEMBER, which is quiet, work again.")


@members.command("drain")
@click.argument("member")
@click.option("--wait", metavar="TIME", help="Wait so long for it to be done; exit code 1 if it is not.")
@change_options
@database_options
def drain(member: str, wait: str | None, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Have MEMBER, by its name or id, end as after SIGTERM.

    What it runs may finish within its grace, and is handed back after that. A `rota worker` exits with 0: under systemd, Kubernetes or
    --processes the next is started in its place; elsewhere it stays away. A web process serves on, and is quiet until
    `rota members resume`.
    """
    limit = None if wait is None else seconds(wait, "--wait")
    with open_app(dsn, schema) as app:
        view = app.members.drain_sync(member, by=by, dry_run=dry_run)
        serves = view.work["drains"] == "quiet"
        what = "take on nothing new, and serve requests on" if serves else "end when what it runs has finished"
        say(f"{view.name} {'would be ' if dry_run else 'is '}asked to {what}")
        if limit is not None and not dry_run:
            _wait_for(app, view, "quiet" if serves else "ended", Deadline.after(limit))


def _wait_for(app: Rota, member: MemberView, state: str, deadline: Deadline) -> None:
    while True:
        now = next((each for each in app.members_sync(ended=True) if each.id == member.id), None)
        if now is None or now.state in (state, "ended"):
            say(f"{member.name}: {'ended' if now is None else _state(now)}")
            return
        if deadline.left <= 0:
            say(f"{member.name} is not done: {_state(now)}. It goes on with it; a job may have its time to finish.")
            sys.exit(1)
        time.sleep(min(_LOOK_SECONDS, max(0.0, deadline.left)))


def _state(member: MemberView) -> str:
    """In words, with the time since when it is so."""
    match member.state:
        case "ended" if member.end_reason == "left":
            return "stopped cleanly"
        case "ended":
            return f"died ({_DIED.get(member.end_reason or '', member.end_reason)})"
        case "draining":
            return f"draining since {short_time(member.draining_at)}"
        case "quiet":
            return f"quiet since {short_time(member.quiet_at)}"
        case "live" if member.wish is not None:
            return f"live, asked to {'drain' if member.wish == 'drain' else 'be quiet'}"
        case state:
            return state


def _release(member: MemberView) -> str:
    return member.app_release or f"Rota {member.release}"


def _number(member: MemberView, name: str) -> Any:
    return None if member.ended_at is not None else (member.condition or {}).get(name)


def _running(member: MemberView, held: int) -> str | int:
    slots = None if member.ended_at is not None else member.work.get("concurrency")
    return held if slots is None else f"{held} of {slots}"


def _memory(member: MemberView) -> str:
    used = _number(member, "rss")
    return "" if used is None else f"{used / 1e6:.0f} MB"


def _lag(member: MemberView) -> str:
    lag = _number(member, "lag")
    return "" if lag is None else f"{lag * 1000:.0f} ms"


def _connections(member: MemberView) -> str:
    """Of the pools that people's code uses, all together."""
    pools = _number(member, "pools") or {}
    used, most = (sum(pool[what] for pool in pools.values()) for what in ("used", "most"))
    waiting = sum(pool["waiting"] for pool in pools.values())
    return "" if not pools else f"{used} of {most}" + (f", {waiting} wait" if waiting else "")
