"""`rota jobs search` and `rota jobs count`: finding jobs among many."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from rota.cli.changes import moment
from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app, reading_app_option
from rota.clock import duration
from rota.errors import ConfigurationError
from rota.jobs.inspect import STATES
from rota.jobs.search import REACH

__all__ = ["count", "search", "search_options", "when"]

F = TypeVar("F", bound=Callable[..., Any])


def search_options(command: F) -> F:
    """The filters: jobs that fit all of them."""
    for option in (
        click.option(
            "--reach", type=click.IntRange(1, 10_000_000), default=REACH, show_default=True, help="Look at so many."
        ),
        click.option(
            "--until",
            metavar="WHEN",
            callback=when,
            help="Settled, or else enqueued, before this time or so long ago.",
        ),
        click.option(
            "--since",
            metavar="WHEN",
            callback=when,
            help="Settled, or else enqueued, at this time, or 2h ago, or later.",
        ),
        click.option(
            "--arg", "args", metavar="PATH=VALUE", multiple=True, callback=_paths, help="With this argument: user.id=1."
        ),
        click.option("--attempt", type=click.IntRange(0), help="With so many attempts, or more."),
        click.option("--member", type=click.UUID, help="Run by the process of this id."),
        click.option("--tag", help="With this tag."),
        click.option("--task", help="Of the task of this name."),
        click.option("--queue", help="In this queue."),
        click.option("--state", type=click.Choice(STATES), help="In this state."),
    ):
        command = option(command)
    return command


def when(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | timedelta | None:
    """A point in time, or how long ago."""
    try:
        return None if value is None else duration(value)
    except ConfigurationError:
        return moment(value)


def _paths(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    pairs = [given.partition("=") for given in value]
    for path, equals, _ in pairs:
        if not path or not equals:
            raise click.BadParameter(f"{path!r} says no value. Write a path and what is there, such as user.id=1.")
    return {path: wanted for path, _, wanted in pairs}


@click.command()
@search_options
@click.option("--error", metavar="TEXT", help="In the type or the message of any failed attempt.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=int, help="Continue there: what the page before has said.")
@json_option
@reading_app_option
@database_options
def search(
    limit: int,
    after: int | None,
    reach: int,
    as_json: bool,
    app_path: str | None,
    dsn: str | None,
    schema: str | None,
    **filters: Any,
) -> None:
    """Find jobs by what they are.

    Live, settled and dead ones, the newest first. No more than --reach jobs of each kind are looked at. How far back that was is
    told, and how to go on.
    """
    with open_app(dsn, schema, app_path) as app:
        found = app.jobs.search_sync(limit=limit, after=after, reach=reach, **filters)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "state", "queue", "task", "attempt", "enqueued", "finished"],
        [
            [j.id, j.state, j.queue, j.task, j.attempt, short_time(j.created_at), short_time(j.finished_at)]
            for j in found.jobs
        ],
        empty="no jobs fit",
    )
    if found.after is not None:
        back = f"looked back to {short_time(found.searched_to)}; " if len(found.jobs) < limit else ""
        say(f"{back}there may be more: --after {found.after}")


@click.command()
@search_options
@json_option
@database_options
def count(reach: int, as_json: bool, dsn: str | None, schema: str | None, **filters: Any) -> None:
    """How many jobs fit, by state, queue, task, tag and member.

    No more than --reach jobs of each kind are looked at: whether those are all is told.
    """
    with open_app(dsn, schema) as app:
        told = app.jobs.count_sync(reach=reach, **filters)
    if as_json:
        print_json(told)
        return
    kinds = {"state": told.states, "queue": told.queues, "task": told.tasks, "tag": told.tags, "member": told.members}
    print_table(
        ["of this", "named", "jobs"],
        [[kind, name, jobs] for kind, named in kinds.items() for name, jobs in named.items()],
        empty="no jobs fit",
    )
    say(
        f"{told.total} job(s) in all"
        if told.exact
        else f"{told.total} or more: only what was enqueued since {short_time(told.searched_to)}, or runs, was counted"
    )
