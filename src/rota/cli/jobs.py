"""`rota jobs`: look at jobs."""

from __future__ import annotations

import click

from rota.cli.output import print_json, print_table, short_time
from rota.cli.target import database_options, open_app
from rota.jobs.inspect import STATES

__all__ = ["jobs"]


@click.group()
def jobs() -> None:
    """Look at jobs."""


@jobs.command("list")
@click.option("--state", type=click.Choice(STATES))
@click.option("--queue")
@click.option("--task")
@click.option("--tag")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", type=int, help="Continue after this id: the last of the page before.")
@click.option("--json", "as_json", is_flag=True)
@database_options
def list_(
    state: str | None,
    queue: str | None,
    task: str | None,
    tag: str | None,
    limit: int,
    after: int | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Jobs that fit all filters, the newest first."""
    with open_app(dsn, schema) as app:
        found = app.jobs.list_sync(state=state, queue=queue, task=task, tag=tag, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "state", "queue", "task", "attempt", "due", "finished"],
        [[j.id, j.state, j.queue, j.task, j.attempt, short_time(j.due_at), short_time(j.finished_at)] for j in found],
        empty="no jobs fit",
    )


@jobs.command()
@click.argument("id", type=int)
@click.option("--json", "as_json", is_flag=True)
@database_options
def show(id: int, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """One job with its arguments, its result and its errors."""
    with open_app(dsn, schema) as app:
        job = app.jobs.get_sync(id)
    if as_json:
        print_json(job)
        return
    shown = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "attempt": job.attempt,
        "created": short_time(job.created_at),
        "due": short_time(job.due_at),
        "started": short_time(job.started_at),
        "finished": short_time(job.finished_at),
        "member": job.member,
        "tags": ", ".join(job.tags),
        "arguments": job.args,
        "result": job.result,
    }
    for name, value in shown.items():
        if value not in (None, ""):
            click.echo(f"{name:10} {value}")
    for error in job.errors:
        click.echo(
            f"\nattempt {error.attempt} {error.kind} at {short_time(error.finished_at)}: {error.type or ''} {error.message or ''}"
        )
        if error.trace:
            click.echo(error.trace.rstrip())
