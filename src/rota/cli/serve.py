"""`rota serve`: uvicorn with an end that loses neither requests nor jobs, for any ASGI application."""

from __future__ import annotations

import importlib
import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from rota.cli.target import database_options, find_app
from rota.errors import AppNotFound, ConfigurationError
from rota.integrations.asgi.attach import Attached, attached_to
from rota.integrations.asgi.budgets import read_budgets
from rota.integrations.asgi.lifespan import WorkerOptions
from rota.integrations.logging import set_up_logging

__all__ = ["serve"]

logger = logging.getLogger("rota")


@click.command()
@click.argument("asgi")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--drain-window",
    type=click.FloatRange(min=0),
    help="Seconds requests are served after a signal. [env: ROTA_DRAIN_WINDOW; default: 5]",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    help="Seconds jobs and open requests get to finish after a signal. [env: ROTA_GRACE; default: 25]",
)
@click.option("--app", "app_path", metavar="APP", help="Run the jobs of this app in the same process.")
@click.option("--no-worker", is_flag=True, help="Run no jobs, also those of an app that is attached.")
@click.option("--factory", is_flag=True, help="ASGI names a function that makes the application.")
@database_options
def serve(
    asgi: str,
    host: str,
    port: int,
    drain_window: float | None,
    grace: float | None,
    app_path: str | None,
    no_worker: bool,
    factory: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Serve the application ASGI (module:attribute) with uvicorn, and end it in order.

    SIGTERM turns readiness to 503 and stops claiming at once; requests are served for the drain window, then the server stops.
    Jobs and open requests have the grace; a second signal hands back at once. An application that no Rota is attached to gets the
    same around it.
    """
    set_up_logging()
    attached = _attached(_load(asgi, factory), app_path, dsn, schema, no_worker)
    budgets = read_budgets(drain_window, grace)
    if drain_window is not None:
        attached.budgets.window = budgets.window
    if grace is not None:
        attached.budgets.grace = budgets.grace
    _run(attached, host, port)


def _attached(served: Any, app_path: str | None, dsn: str | None, schema: str | None, no_worker: bool) -> Attached:
    """The application with its Rota around it, as the command says."""
    attached = attached_to(served)
    named = find_app(app_path, dsn, schema) if app_path else None
    if attached is None:
        worker = None if no_worker or named is None else WorkerOptions()
        return Attached(served, named, worker=worker, budgets=read_budgets(None, None))
    if named is not None and named is not attached.app:
        raise ConfigurationError(
            f"--app names another Rota than the one that is attached to the application, which already has its worker: leave "
            f"--app {app_path} out, or run that one by `rota worker {app_path}`."
        )
    if attached.app is not None and (dsn is not None or schema is not None) and named is None:
        attached.app.use(dsn=dsn, schema=schema)
    if no_worker:
        attached.worker = None
    return attached


def _run(attached: Attached, host: str, port: int) -> None:
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError("`rota serve` needs uvicorn: pip install 'rota[fastapi]'.") from error
    config = uvicorn.Config(
        attached.served,
        host=host,
        port=port,
        # what cannot be cancelled is not waited for longer than the rest
        timeout_graceful_shutdown=math.ceil(max(1.0, attached.budgets.grace - attached.budgets.window)),
        access_log=False,
    )
    server = uvicorn.Server(config)

    def handle(number: int, frame: FrameType | None) -> None:
        """Before the server handles signals, hand it on. At its end it sends itself the signal once more, to die of it: but to
        have ended in order is no death."""
        if not server.should_exit:
            server.handle_exit(number, frame)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run()
    except SystemExit as error:  # it has said why it could not start
        sys.exit(1 if error.code else 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _load(path: str, factory: bool) -> Any:
    name, _, attribute = path.partition(":")
    if not name or not attribute:
        raise AppNotFound(f"{path!r} is no path to an application: write module:attribute, for example main:api.")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (error.name == name or name.startswith(f"{error.name}.")):
            raise AppNotFound(
                f"There is no module {error.name!r} to find {path!r} in (looked from {os.getcwd()})."
            ) from error
        raise
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise AppNotFound(f"{path!r} names {what}, not an ASGI application.")
    make: Callable[[], Any] = found
    return make() if factory else found
