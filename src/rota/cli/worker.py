"""`rota worker`: one process that runs an app's jobs, or several of them."""

from __future__ import annotations

import asyncio
import sys

import click

from rota.app import Rota
from rota.cli.output import say
from rota.cli.probe import probe
from rota.cli.target import database_options, find_app
from rota.integrations.logging import log_facts, set_up_logging
from rota.runtime.announce import announce_condition
from rota.runtime.fleet import Fleet
from rota.runtime.process import run_worker
from rota.runtime.supervisor import SupervisedWorker

__all__ = ["worker"]


@click.command()
@click.argument("app")
@click.option("--queues", help="Comma-separated queues to take jobs from. [default: all]")
@click.option("--concurrency", type=click.IntRange(min=1), help="Bodies at once. [default: 20]")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Worker processes, each with this concurrency; one that dies is replaced.",
)
@click.option("--drain", is_flag=True, help="Exit when nothing is due any more; what is due later stays queued.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    help="Seconds running jobs get to finish at a stop.",
)
@click.option("--announce", is_flag=True, hidden=True, help="Say in one line when its condition changes.")
@click.option("--label", default="", hidden=True, help="What tells its lines from those of its neighbours.")
@click.option("--mark", hidden=True, help="By which a supervisor finds this worker's membership.")
@database_options
def worker(
    app: str,
    queues: str | None,
    concurrency: int | None,
    processes: int,
    drain: bool,
    grace: float,
    announce: bool,
    label: str,
    mark: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run the jobs of APP (module:attribute or a .py file) in this process, or with --processes in several that it watches.

    SIGTERM or Ctrl-C stops claiming at once, lets running jobs finish within the grace, and hands the rest back; a second
    one hands them back at once. SIGQUIT shows where all threads are.
    """
    if processes > 1:
        set_up_logging(label="fleet ")
        public = [
            *(["--queues", queues] if queues is not None else []),
            *(["--concurrency", str(concurrency)] if concurrency is not None else []),
            *(["--drain"] if drain else []),
        ]
        sys.exit(asyncio.run(_run_fleet(processes, app, public, dsn, schema, grace=grace, drain=drain)))
    set_up_logging(label=label)
    found = find_app(app, dsn, schema)
    found.mark = mark
    log_facts(found.facts)
    if announce:
        announce_condition(found.facts, lambda condition: say(f"health      {condition}"))
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    run_worker(found, queues=names, concurrency=concurrency, drain=drain, grace=grace)


async def _run_fleet(
    size: int, app: str, public: list[str], dsn: str | None, schema: str | None, *, grace: float, drain: bool
) -> int:
    # in a process of its own, so that this one holds no code that could harm it
    looking = asyncio.create_task(probe([app], dsn, schema))

    async def start(number: int) -> SupervisedWorker:
        return await SupervisedWorker.start(
            app, *public, "--label", f"{number:<5} ", dsn=dsn, schema=schema, grace=grace
        )

    async def bury(worker: SupervisedWorker) -> None:
        report = await asyncio.shield(looking)
        if report.dsn is None:
            return  # the embedded server, or wherever a pool of the user's leads: peers find out by themselves
        async with Rota(report.dsn, schema=report.schema) as database_only:
            await worker.end_membership(database_only.database)

    try:
        return await Fleet(size, start, grace=grace, bury=bury, once=drain).run()
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)  # what it could not read, the workers have told
