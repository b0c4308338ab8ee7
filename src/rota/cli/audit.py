"""`rota audit`: who changed what by hand."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from rota.cli.job_search import when
from rota.cli.output import json_option, json_text, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app
from rota.postgres.audit import REACH

__all__ = ["audit"]


@click.group()
def audit() -> None:
    """Who changed what by hand."""


@audit.command("list")
@click.option("--actor", help="What this one did.")
@click.option("--action", help="Only this: retry, cancel, queue.pause ...")
@click.option("--about", metavar="TEXT", help="With this text in the details.")
@click.option("--since", metavar="WHEN", callback=when, help="At this time, or 2h ago, or later.")
@click.option("--until", metavar="WHEN", callback=when, help="Before this time, or so long ago.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=click.IntRange(1), help="Continue there: what the page before has said.")
@click.option("--reach", type=click.IntRange(1, 10_000_000), default=REACH, show_default=True, help="Look at so many.")
@json_option
@database_options
def list_(
    actor: str | None,
    action: str | None,
    about: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    limit: int,
    after: int | None,
    reach: int,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """What was done, the last first."""
    with open_app(dsn, schema) as app:
        page = app.audit.list_sync(
            actor=actor, action=action, about=about, since=since, until=until, limit=limit, after=after, reach=reach
        )
    if as_json:
        print_json(page)
        return
    print_table(
        ["at", "actor", "action", "details"],
        [[short_time(each.at), each.actor, each.action, json_text(each.details)] for each in page.entries],
        empty="nothing fits",
    )
    if page.after is not None:
        back = f"looked back to {short_time(page.searched_to)}; " if len(page.entries) < limit else ""
        say(f"{back}there may be more: --after {page.after}")
