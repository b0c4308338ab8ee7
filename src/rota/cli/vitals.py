"""`rota vitals`: how the database is."""

from __future__ import annotations

import click

from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app

__all__ = ["vitals"]


@click.command()
@json_option
@database_options
def vitals(as_json: bool, dsn: str | None, schema: str | None) -> None:
    """How the database is, as far as it concerns a queue.

    Our tables, open transactions, who holds back the removal of dead rows, connections and notifications. `rota doctor` says what of
    it is wrong, and what mends it.
    """
    with open_app(dsn, schema) as app:
        told = app.vitals_sync(deadline="5s")
    if as_json:
        print_json(told)
        return
    print_table(
        ["table", "partitions", "rows", "dead", "MB", "indexes MB", "in place", "vacuumed"],
        [
            [
                *(table.name, table.partitions or "", table.live_rows, table.dead_rows),
                *(f"{table.bytes / 1e6:.1f}", f"{table.index_bytes / 1e6:.1f}"),
                "" if table.in_place is None else f"{table.in_place:.0%}",
                short_time(table.vacuumed_at),
            ]
            for table in told.tables
        ],
        empty="there are no tables",
    )
    click.echo()
    print_table(
        ["pid", "application", "role", "state", "open for", "pins", "waits for", "blocked by"],
        [
            [
                *(each.pid, each.application, each.role, each.state, f"{each.seconds:.1f} s"),
                *("yes" if each.pins else "", each.wait, ", ".join(map(str, each.blocked_by))),
            ]
            for each in told.transactions
        ],
        empty="no transaction of others is open",
    )
    click.echo()
    for held in told.horizon[:1]:
        click.echo(f"dead rows stay since {held.age} transactions, because of {held.kind} {held.name}")
    for limit in told.connections:
        click.echo(f"{limit.used} of {limit.most} connections are in use, {limit.ours} of them by Rota")
    click.echo(f"{told.notify_usage:.0%} of the queue of notifications is in use")
    if not told.sees_all:
        say("this role is not shown the sessions of others: grant it pg_read_all_stats")
