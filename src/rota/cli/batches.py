"""`rota batches`: jobs that were started together, and how far they are."""

from __future__ import annotations

import click

from rota.cli.changes import change_options, for_each
from rota.cli.output import as_json as plain
from rota.cli.output import json_option, print_fields, print_json, print_table, say, say_more, short_time
from rota.cli.target import database_options, open_app

__all__ = ["batches"]


@click.group()
def batches() -> None:
    """Look at batches, and cancel what is left of one."""


@batches.command("list")
@click.option("--name", help="Of this name.")
@click.option("--open", "is_open", is_flag=True, help="Only those that have not ended.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=int, help="Continue after this id: the last of the page before.")
@json_option
@database_options
def list_(
    name: str | None,
    is_open: bool,
    limit: int,
    after: int | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Batches, the newest first."""
    with open_app(dsn, schema) as app:
        found = app.batches.list_sync(name=name, open=is_open, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "name", "jobs", "started", "ended"],
        [[each.id, each.name, each.total, short_time(each.created_at), short_time(each.closed_at)] for each in found],
        empty="no batches fit",
    )
    say_more(found, limit)


@batches.command()
@click.argument("id", type=int)
@json_option
@database_options
def show(id: int, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """One batch, and how many of its jobs ended how."""
    with open_app(dsn, schema) as app:
        batch, progress = app.batches.get_sync(id), app.batches.progress_sync(id)
    if as_json:
        print_json({**plain(batch), "progress": plain(progress)})
        return
    print_fields(
        {
            "id": batch.id,
            "name": batch.name,
            "started": short_time(batch.created_at),
            "ended": short_time(batch.closed_at),
            "jobs": batch.total,
            "succeeded": progress.succeeded,
            "dead": progress.dead,
            "cancelled": progress.cancelled,
            "running": progress.running,
            "waiting": progress.waiting,
            "forgotten": progress.forgotten or None,
        }
    )


@batches.command()
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@click.option("--reason", default="", help="Why they are not wanted any more.")
@change_options
@database_options
def cancel(
    ids: tuple[int, ...], reason: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Cancel what is left of batches.

    Jobs that wait are cancelled at once, those that run are told to end. The callback of a batch runs all the same, when the
    last of its jobs has ended.
    """
    with open_app(dsn, schema) as app:

        def change(id: int) -> None:
            count = app.batches.cancel_sync(id, reason, by=by, dry_run=dry_run)
            say(f"{'would cancel' if dry_run else 'cancelled'} {count} job(s) of batch {id}")

        for_each(ids, change)
