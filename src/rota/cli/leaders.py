"""`rota leaders`: who leads what; and running any program under a term."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import click

from rota.app import Rota
from rota.cli.changes import change_options
from rota.cli.output import as_json as plain
from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app
from rota.clock import Deadline, seconds
from rota.errors import DatabaseUnavailable, LeadershipHeld
from rota.integrations.logging import log_facts, set_up_logging
from rota.leases.inspect import LeaderView, TermView
from rota.runtime.led import run_led

__all__ = ["leaders"]

_LOOK_SECONDS = 0.1


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
        ["name", "leader", "since", "epoch", "progress", "waiting"],
        [
            [each.name, _leader(each), short_time(each.since), each.epoch, _progress(each), ", ".join(each.standbys)]
            for each in found
        ],
        empty="nothing was ever led here",
    )


def _leader(leader: LeaderView) -> str:
    if leader.holder is None:
        return "nobody"
    return f"{leader.holder} (asked to step down)" if leader.asked_to_resign else leader.holder


def _progress(leader: LeaderView) -> str:
    if leader.progress_age is None:
        return ""
    age = f"{max(0, round(leader.progress_age.total_seconds()))} s ago"
    return age if leader.progress_note is None else f"{age}: {leader.progress_note}"


@leaders.command()
@click.option("--back", default="24h", show_default=True, metavar="DURATION", help="Since so long ago.")
@json_option
@database_options
def lanes(back: str, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """Who led what when, and when nobody did."""
    with open_app(dsn, schema) as app:
        found = app.leaders.lanes_sync(back)
    if as_json:
        print_json(list(found))
        return
    rows = []
    for lane in found:
        spans: list[tuple[datetime, datetime | None, str, str]] = [
            *((term.acquired_at, term.ended_at, term.holder, str(term.epoch)) for term in lane.terms),
            *((begin, end, "nobody", "") for begin, end in lane.gaps),
        ]
        rows += [
            [lane.name, short_time(begin), short_time(end), holder, epoch]
            for begin, end, holder, epoch in sorted(spans, key=lambda span: span[0])
        ]
    print_table(["name", "from", "to", "leader", "epoch"], rows, empty="nothing was led")


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
                _ending(each),
            ]
            for each in found
        ],
        empty=f"{name} was never led here",
    )


_LOSSES = {
    "expired": "its lease ran out",
    "suspected": "its session ended, and it did not come back",
    "left": "its process left",
}


def _ending(term: TermView) -> str:
    if term.lost_because is None:
        return term.end_reason or "leads"
    return f"lost: {_LOSSES.get(term.lost_because, term.lost_because)}"


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
    with open_app(dsn, schema) as app, _interrupts() as interrupted:
        # an address that was never right is an error, and not waited for
        names = {each.name for each in app.leaders.list_sync()}
        if name is not None and name not in names:
            say(f"nobody has led {name} here so far; `rota leaders list` has the names there are")
        while not interrupted():
            for each in _found(app):
                if name in (None, each.name) and known.get(each.name) != (each.epoch, each.holder):
                    known[each.name] = (each.epoch, each.holder)
                    click.echo(json.dumps(plain(each)) if as_json else _line(each))
            sys.stdout.flush()
            time.sleep(pause)


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, for whoever asks between two steps; pressed again it raises.

    Raised in the middle of a step it might leave a lock of the connection pool taken, which closing that would wait for.
    """
    pressed: list[int] = []

    def press(number: int, frame: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


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
@click.option("--epoch", type=int, help="Only if its term is this one, as shown by `rota leaders list`.")
@click.option("--wait", metavar="TIME", help="Return when it has stepped down; exit 1 if it has not in so long.")
@change_options
@database_options
def resign(
    name: str,
    force: bool,
    epoch: int | None,
    wait: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Have the leader of NAME step down."""
    limit = 0.0 if wait is None else seconds(wait, "--wait")
    with open_app(dsn, schema) as app:
        leader = app.leaders.resign_sync(name, force=force, epoch=epoch, by=by, dry_run=dry_run)
        term = f"{name} (epoch {leader.epoch})"
        if dry_run:
            say(f"{leader.holder} leads {term} and would {'lose it' if force else 'be asked to step down'}")
            return
        say(f"{leader.holder} {'no longer leads' if force else 'was asked to step down from'} {term}")
        if wait is not None and not force:
            _wait_for_end(app, leader, Deadline.after(limit))


def _wait_for_end(app: Rota, leader: LeaderView, deadline: Deadline) -> None:
    term = (leader.name, leader.epoch, leader.member)
    while any((each.name, each.epoch, each.member) == term for each in app.leaders.list_sync()):
        if deadline.left <= 0:
            say(f"{leader.holder} still leads {leader.name}: its body has not ended. --force takes the term away.")
            sys.exit(1)
        time.sleep(min(_LOOK_SECONDS, deadline.left))
    say(f"{leader.holder} has stepped down from {leader.name}")


@leaders.command("exec")
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--wait", metavar="TIME", help="Wait so long for its turn; 'forever' is allowed. Default: not at all.")
@click.option(
    "--grace", default="10s", show_default=True, help="How long a stop waits for the program before it is killed."
)
@click.option(
    "--held-code",
    type=click.IntRange(0, 255),
    default=LeadershipHeld.exit_code,
    show_default=True,
    help="Exit code when someone else leads and the program was not started.",
)
@click.option("--quiet", "-q", is_flag=True, help="Say only what is wrong; that someone else leads is not.")
@database_options
def exec_(
    name: str,
    command: tuple[str, ...],
    wait: str | None,
    grace: str,
    held_code: int,
    quiet: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run COMMAND while this process leads NAME: `rota leaders exec nightly -- ./job.sh`.

    The epoch is in its environment as ROTA_EPOCH. Exit code 3 says that someone else leads, or that the term was lost and the
    program, with all it had started, ended for that; 4 that the database is away; else the code is that of the program. SIGTERM,
    SIGHUP, SIGQUIT and Ctrl-C are passed on.
    """
    set_up_logging(logging.WARNING if quiet else logging.INFO)
    limit = 0.0 if wait is None else None if wait == "forever" else seconds(wait, "--wait")
    with open_app(dsn, schema) as app:
        log_facts(app.facts)
        try:
            code = run_led(app, name, command, limit=limit, grace=seconds(grace, "--grace"))
        except LeadershipHeld as held:
            if not quiet:
                leader = f"{held.holder} leads {name} since {short_time(held.since)} (epoch {held.epoch})"
                say(f"rota: {leader}, so {command[0]} was not started. --wait TIME waits for its turn.")
            code = held_code
        sys.exit(code)
