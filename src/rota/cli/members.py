"""`rota members`: the processes that hold work."""

from __future__ import annotations

import click

from rota.cli.output import as_json as plain
from rota.cli.output import print_json, print_table, short_time
from rota.cli.target import database_options, open_app
from rota.jobs.inspect import held_by_member

__all__ = ["members"]


@click.group()
def members() -> None:
    """Look at the processes that hold work."""


@members.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@click.option("--json", "as_json", is_flag=True)
@database_options
def list_(ended: bool, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """The live members, newest first, and how many jobs each runs."""
    with open_app(dsn, schema) as app:
        found = app.members_sync(ended=ended)
        held = app.database.run_sync(held_by_member())
    if as_json:
        print_json([{**plain(member), "running": held.get(str(member.id), 0)} for member in found])
        return
    print_table(
        ["name", "state", "running", "since", "renewed", "release", "id"],
        [
            [
                member.name,
                f"ended ({member.end_reason})" if member.ended_at else member.state,
                held.get(str(member.id), 0),
                short_time(member.started_at),
                short_time(member.renewed_at),
                member.release,
                member.id,
            ]
            for member in found
        ],
        empty="no live members: no worker is running",
    )
