"""`rota trends`: how much was done when, how long it took, what waited, and what happened meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from rota.cli.job_search import when
from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app

__all__ = ["trends"]

F = TypeVar("F", bound=Callable[..., Any])


def _since(default: str) -> Callable[[F], F]:
    return click.option(
        "--since",
        metavar="WHEN",
        default=default,
        show_default=True,
        callback=when,
        help="From this time on, or so long ago.",
    )


until_option = click.option(
    "--until", metavar="WHEN", callback=when, help="Before this time, or so long ago. [default: now]"
)


@click.group()
def trends() -> None:
    """How much was done when, how long it took, and what waited."""


@trends.command()
@_since("6h")
@until_option
@click.option("--width", metavar="DURATION", help="Of a bucket: whole minutes, or hours where the time is long.")
@click.option("--queue", help="Of this queue.")
@click.option("--task", help="Of the task of this name.")
@json_option
@database_options
def show(
    since: datetime | timedelta,
    until: datetime | timedelta | None,
    width: str | None,
    queue: str | None,
    task: str | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """What was done over time.

    Waits and runs are in seconds, and at most a fifth too high.
    """
    with open_app(dsn, schema) as app:
        told = app.trends.series_sync(since, until, width=width, queue=queue, task=task)
    if as_json:
        print_json(told)
        return
    print_table(
        ["from", "succeeded", "cancelled", "failed", "lost", "dead", "wait p50", "p95", "p99", "run p50", "p95", "p99"],
        [
            [
                short_time(each.at),
                *(each.succeeded, each.cancelled, each.failed, each.lost, each.dead),
                *map(_seconds, (each.wait_p50, each.wait_p95, each.wait_p99, each.run_p50, each.run_p95, each.run_p99)),
            ]
            for each in told.buckets
        ],
        empty="nothing is counted",
    )
    _say_until(told.complete_until)


@trends.command()
@_since("24h")
@until_option
@click.option("--most", type=click.IntRange(1, 1000), default=40, show_default=True, help="Of so many tasks.")
@json_option
@database_options
def heat(
    since: datetime | timedelta,
    until: datetime | timedelta | None,
    most: int,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """What each task did in each hour."""
    with open_app(dsn, schema) as app:
        cells = app.trends.heat_sync(since, until, most=most)
    if as_json:
        print_json(list(cells))
        return
    print_table(
        ["task", "from", "succeeded", "failed", "dead", "wait p95", "run p95"],
        [
            [c.task, short_time(c.at), c.succeeded, c.failed, c.dead, _seconds(c.wait_p95), _seconds(c.run_p95)]
            for c in cells
        ],
        empty="nothing is counted",
    )


@trends.command()
@_since("1h")
@until_option
@click.option("--queue", help="Of this queue.")
@json_option
@database_options
def depths(
    since: datetime | timedelta,
    until: datetime | timedelta | None,
    queue: str | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """What waited and ran in each queue, sampled once a minute."""
    with open_app(dsn, schema) as app:
        told = app.trends.depths_sync(since, until, queue=queue)
    if as_json:
        print_json(list(told))
        return
    print_table(
        ["at", "queue", "due", "later", "blocked", "running", ""],
        [
            [short_time(d.at), d.queue, d.due, d.later, d.blocked, d.running, "or more" if d.at_least else ""]
            for d in told
        ],
        empty="nothing was sampled",
    )


@trends.command()
@_since("24h")
@until_option
@json_option
@database_options
def marks(
    since: datetime | timedelta, until: datetime | timedelta | None, as_json: bool, dsn: str | None, schema: str | None
) -> None:
    """What happened meanwhile.

    Processes that started or died, failovers, and what operators did; the last first.
    """
    with open_app(dsn, schema) as app:
        told = app.trends.marks_sync(since, until)
    if as_json:
        print_json(list(told))
        return
    print_table(
        ["at", "kind", "what", "times"],
        [[short_time(mark.at), mark.kind, mark.what, mark.times] for mark in told],
        empty="nothing happened",
    )


def _seconds(given: float | None) -> str:
    return "" if given is None else f"{given:.3g}"


def _say_until(until: datetime | None) -> None:
    if until is None:
        say("nothing was counted yet: a worker does, once a minute")
    else:
        say(f"counted until {short_time(until)}")
