"""`rota leaders`: who leads what; and running any program under a term."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence

import click

from rota.app import Rota
from rota.cli.changes import change_options
from rota.cli.output import as_json as plain
from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app
from rota.clock import seconds
from rota.errors import DatabaseUnavailable
from rota.integrations.logging import log_facts, set_up_logging
from rota.leases.inspect import LeaderView
from rota.runtime.led import run_led

__all__ = ["leaders"]


@click.group()
def leaders() -> None:
    """Look at who leads what, have a leader step down, run a program as leader."""


@leaders.command("list")
@json_option
@database_options
def list_(as_json: bool, dsn: str | None, schema: str | None) -> None:
    """Every name that was ever led, who leads it now, and who waits for it."""
    with open_app(dsn, schema) as app:
        found = app.leaders.list_sync()
    if as_json:
        print_json(found)
        return
    print_table(
        ["name", "leader", "since", "epoch", "waiting"],
        [[each.name, _leader(each), short_time(each.since), each.epoch, ", ".join(each.standbys)] for each in found],
        empty="nothing was ever led here",
    )


def _leader(leader: LeaderView) -> str:
    if leader.holder is None:
        return "nobody"
    return f"{leader.holder} (asked to step down)" if leader.asked_to_resign else leader.holder


@leaders.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@json_option
@database_options
def terms(name: str, limit: int, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """The terms of NAME, the last first."""
    with open_app(dsn, schema) as app:
        found = app.leaders.terms_sync(name, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ["epoch", "leader", "from", "to", "ended"],
        [
            [
                each.epoch,
                each.holder,
                short_time(each.acquired_at),
                short_time(each.ended_at),
                each.end_reason or "leads",
            ]
            for each in found
        ],
        empty=f"{name} was never led here",
    )


@leaders.command()
@click.argument("name", required=False)
@click.option("--every", default="0.5s", show_default=True, help="How often to look.")
@click.option("--json", "as_json", is_flag=True, help="JSON, a line for each change.")
@database_options
def watch(name: str | None, every: str, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """Print who leads what, and a line whenever that changes, until interrupted.

    It looks now and then, and shows what it finds; `rota leaders terms NAME` has every term.
    """
    pause, known = seconds(every, "--every"), dict[str, tuple[int, str | None]]()
    with open_app(dsn, schema) as app, contextlib.suppress(KeyboardInterrupt):
        app.leaders.list_sync()  # an address that was never right is an error, and not waited for
        while True:
            for each in _found(app):
                if name in (None, each.name) and known.get(each.name) != (each.epoch, each.holder):
                    known[each.name] = (each.epoch, each.holder)
                    click.echo(json.dumps(plain(each)) if as_json else _line(each))
            sys.stdout.flush()
            time.sleep(pause)


def _found(app: Rota) -> Sequence[LeaderView]:
    try:
        return app.leaders.list_sync()
    except DatabaseUnavailable as error:
        say(f"rota: {error}")  # a restart is what one wants to watch through
        return ()


def _line(leader: LeaderView) -> str:
    return f"{short_time(leader.since)}  {leader.name}  {_leader(leader)}  epoch {leader.epoch}"


@leaders.command()
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="End the term now, whatever the leader does. Only fenced work is safe then."
)
@change_options
@database_options
def resign(name: str, force: bool, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Have the leader of NAME step down."""
    with open_app(dsn, schema) as app:
        leader = app.leaders.resign_sync(name, force=force, by=by, dry_run=dry_run)
    if dry_run:
        say(
            f"{leader.holder} leads {name} (epoch {leader.epoch}) and would {'lose it' if force else 'be asked to step down'}"
        )
    else:
        say(
            f"{leader.holder} {'no longer leads' if force else 'was asked to step down from'} {name} (epoch {leader.epoch})"
        )


@leaders.command("exec")
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--wait", metavar="TIME", help="Wait so long for its turn; 'forever' is allowed. Default: not at all, exit 3."
)
@click.option(
    "--grace", default="10s", show_default=True, help="How long a stop waits for the program before it is killed."
)
@database_options
def exec_(
    name: str, command: tuple[str, ...], wait: str | None, grace: str, dsn: str | None, schema: str | None
) -> None:
    """Run COMMAND while this process leads NAME: `rota leaders exec nightly -- ./job.sh`.

    The epoch is in its environment as ROTA_EPOCH. Exit code 3 says that someone else leads, or that the term was lost and the
    program, with all it had started, ended for that; else the code is that of the program. SIGTERM and Ctrl-C are passed on.
    """
    set_up_logging()
    limit = 0.0 if wait is None else None if wait == "forever" else seconds(wait, "--wait")
    with open_app(dsn, schema) as app:
        log_facts(app.facts)
        sys.exit(run_led(app, name, command, limit=limit, grace=seconds(grace, "--grace")))
