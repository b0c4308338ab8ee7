"""`rota worker`: one process that runs an app's jobs, or several of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import click

from rota.app import Rota
from rota.cli.logs import log_options
from rota.cli.output import say
from rota.cli.probe import probe
from rota.cli.target import database_options, find_app
from rota.errors import ConfigurationError
from rota.integrations.logging import log_facts
from rota.runtime.announce import announce_condition
from rota.runtime.fleet import Fleet
from rota.runtime.probes import probed
from rota.runtime.process import leaving_by_signals, run_worker
from rota.runtime.supervisor import SupervisedWorker

__all__ = ["worker"]


@click.command()
@click.argument("app")
@click.option("--queues", help="Comma-separated queues to take jobs from. [default: all]")
@click.option("--pollers", help="Comma-separated pollers to poll for, or: none. [default: all]")
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
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    envvar="ROTA_HEALTH_PORT",
    show_envvar=True,
    help="Serve /health/live, /health/ready, /health and /metrics on this port, from a thread of its own; of several "
    "--processes each on the next one.",
)
@click.option("--health-host", default="", help="Address to serve health on. [default: all of this machine's]")
@click.option("--announce", is_flag=True, hidden=True, help="Say in one line when its condition changes.")
@click.option("--mark", hidden=True, help="By which a supervisor finds this worker's membership.")
@log_options
@database_options
def worker(
    app: str,
    queues: str | None,
    pollers: str | None,
    concurrency: int | None,
    processes: int,
    drain: bool,
    grace: float,
    health_port: int | None,
    health_host: str,
    announce: bool,
    mark: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run the jobs of APP (module:attribute or a .py file) in this process, or with --processes in several that it watches.

    SIGTERM or Ctrl-C stops claiming at once, lets running jobs finish within the grace, and hands the rest back; a second
    one hands them back at once. SIGQUIT shows where all threads are.

    With --drain it ends with 1 when PostgreSQL refused to look for due rows of a poller, after all else is done.
    """
    if processes > 1:
        public = _given(queues=queues, pollers=pollers, concurrency=concurrency, health_host=health_host or None)
        public += ["--drain"] if drain else []
        fleet = _run_fleet(processes, app, public, dsn, schema, port=health_port, grace=grace, drain=drain)
        sys.exit(asyncio.run(fleet))
    if mark is not None and _from_environment("health_port"):
        health_port = None  # a port is for one process, and this one has siblings
    with leaving_by_signals():
        found = find_app(app, dsn, schema)
        found.mark = mark
        log_facts(found.facts)
        if announce:
            announce_condition(found.facts, lambda condition: say(f"health      {condition}"))
        metrics = None if health_port is None else _metrics(found)
        with probed(found, worker=True, port=health_port, host=health_host, metrics=metrics):
            run_worker(
                found,
                queues=_names(queues),
                pollers=[] if pollers == "none" else _names(pollers),
                concurrency=concurrency,
                drain=drain,
                grace=grace,
            )


def _metrics(app: Rota) -> Callable[[], tuple[str, bytes]] | None:
    """What /metrics shows, counted from now on; None without the extra."""
    try:
        from rota.integrations.prometheus import collector, exposition
    except ConfigurationError:
        return None
    collector(app)
    return lambda: exposition(app)


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def _from_environment(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.ENVIRONMENT


def _given(**options: object) -> list[str]:
    """Those that were given, as on a command line."""
    said = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items() if value is not None)
    return [word for option in said for word in option]


async def _run_fleet(
    size: int,
    app: str,
    public: list[str],
    dsn: str | None,
    schema: str | None,
    *,
    port: int | None,
    grace: float,
    drain: bool,
) -> int:
    # in a process of its own, so that this one holds no code that could harm it
    looking = asyncio.create_task(probe([app], dsn, schema))

    async def start(number: int) -> SupervisedWorker:
        own = _given(log_label=f"{number:<5} ", health_port=port and port + number - 1)
        return await SupervisedWorker.start(app, *public, *own, dsn=dsn, schema=schema, grace=grace, tells=True)

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
