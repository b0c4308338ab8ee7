"""`rota worker`: one process that runs an app's jobs."""

from __future__ import annotations

import click

from rota.cli.logs import log_options
from rota.cli.target import database_options, find_app
from rota.integrations.logging import log_facts
from rota.runtime.process import run_worker

__all__ = ["worker"]


@click.command()
@click.argument("app")
@click.option("--queues", help="Comma-separated queues to take jobs from. [default: all]")
@click.option("--concurrency", type=click.IntRange(min=1), help="Bodies at once. [default: 20]")
@click.option("--drain", is_flag=True, help="Exit when nothing is due any more; what is due later stays queued.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    help="Seconds running jobs get to finish at a stop.",
)
@click.option("--mark", hidden=True, help="By which a supervisor finds this worker's membership.")
@log_options
@database_options
def worker(
    app: str,
    queues: str | None,
    concurrency: int | None,
    drain: bool,
    grace: float,
    mark: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run the jobs of APP (module:attribute or a .py file) in this process.

    SIGTERM or Ctrl-C stops claiming at once, lets running jobs finish within the grace, and hands the rest back; a second
    one hands them back at once.
    """
    found = find_app(app, dsn, schema)
    found.mark = mark
    log_facts(found.facts)
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    run_worker(found, queues=names, concurrency=concurrency, drain=drain, grace=grace)
