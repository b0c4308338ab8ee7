"""`rota worker`: one process that runs an app's jobs."""

from __future__ import annotations

from collections.abc import Callable

import click

from rota.app import Rota
from rota.cli.logs import log_options
from rota.cli.target import database_options, find_app
from rota.errors import ConfigurationError
from rota.integrations.logging import log_facts
from rota.runtime.probes import probed
from rota.runtime.process import run_worker

__all__ = ["worker"]


@click.command()
@click.argument("app")
@click.option("--queues", help="Comma-separated queues to take jobs from. [default: all]")
@click.option("--pollers", help="Comma-separated pollers to poll for, or: none. [default: all]")
@click.option("--concurrency", type=click.IntRange(min=1), help="Bodies at once. [default: 20]")
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
    help="Serve /health/live, /health/ready, /health and /metrics on this port, from a thread of its own.",
)
@click.option("--health-host", default="", help="Address to serve health on. [default: all of this machine's]")
@click.option("--mark", hidden=True, help="By which a supervisor finds this worker's membership.")
@log_options
@database_options
def worker(
    app: str,
    queues: str | None,
    pollers: str | None,
    concurrency: int | None,
    drain: bool,
    grace: float,
    health_port: int | None,
    health_host: str,
    mark: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run the jobs of APP (module:attribute or a .py file) in this process.

    SIGTERM or Ctrl-C stops claiming at once, lets running jobs finish within the grace, and hands the rest back; a second
    one hands them back at once.

    With --drain it ends with 1 when PostgreSQL refused to look for due rows of a poller, after all else is done.
    """
    found = find_app(app, dsn, schema)
    found.mark = mark
    log_facts(found.facts)
    if mark is not None and _from_environment("health_port"):
        health_port = None  # a port is for one process, and this one has siblings
    with probed(
        found, worker=True, port=health_port, host=health_host, metrics=None if health_port is None else _metrics(found)
    ):
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
