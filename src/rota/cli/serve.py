"""`rota serve`: uvicorn with an end that loses neither requests nor jobs, for any ASGI application."""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import click

from rota.cli.logs import log_options
from rota.cli.target import database_options, find_app
from rota.errors import AppNotFound, ConfigurationError, RotaError
from rota.integrations.asgi.attach import Attached, attached_to
from rota.integrations.asgi.lifespan import WorkerOptions
from rota.integrations.asgi.readiness import Probes
from rota.runtime.budgets import read_budgets
from rota.runtime.fleet import Fleet
from rota.runtime.health import Report, health_of
from rota.runtime.lifeline import is_replaced, tell_parent
from rota.runtime.limit import HARD_LIMIT, HardLimit
from rota.runtime.process import bodies_in_threads, leave, leaving_by_signals, on_ending
from rota.runtime.supervisor import SupervisedWorker
from rota.runtime.systemd import systemd_notified
from rota.service.ending import ENDING

__all__ = ["CannotListen", "bound", "run_attached", "serve"]

logger = logging.getLogger("rota")

_BACKLOG = 2048  # as uvicorn has it
# What the event loop has to answer how it is.
_ANSWER_SECONDS = 3.0


class CannotListen(RotaError):
    """The address is taken, or not ours to listen on."""


@click.command()
@click.argument("asgi")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that share the port, each with its own worker; one that dies is replaced.",
)
@click.option(
    "--recycle-after",
    metavar="REQUESTS",
    type=click.IntRange(min=1),
    help="Replace a process that has served about so many, for code that leaks: first another one is ready in its place, then it "
    "drains and ends.",
)
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
@click.option(
    "--fd", type=int, hidden=True, help="The socket to serve on, opened by the process that watches this one."
)
@click.option("--joins", is_flag=True, hidden=True, help="Others serve on that socket already.")
@click.option("--mark", hidden=True, help="By which a supervisor finds its membership.")
@log_options
@database_options
def serve(
    asgi: str,
    host: str,
    port: int,
    workers: int,
    recycle_after: int | None,
    drain_window: float | None,
    grace: float | None,
    app_path: str | None,
    no_worker: bool,
    factory: bool,
    fd: int | None,
    joins: bool,
    mark: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Serve the application ASGI (module:attribute) with uvicorn, and end it in order.

    SIGTERM turns readiness to 503 and stops claiming at once; requests are served for the drain window, then the server stops.
    Jobs and open requests have the grace; a second signal hands back at once. An application that no Rota is attached to gets the
    same around it.
    """
    budgets = read_budgets(drain_window, grace)
    # who is to be replaced cannot hold the port, which must not be closed meanwhile
    if workers > 1 or (recycle_after is not None and fd is None):
        options = {
            "--drain-window": drain_window,
            "--grace": grace,
            "--app": app_path,
            "--recycle-after": recycle_after,
        }
        flags = {"--no-worker": no_worker, "--factory": factory}
        public = [asgi, *(word for name, value in options.items() if value is not None for word in (name, str(value)))]
        public += [name for name, value in flags.items() if value]
        private = {"--dsn": dsn, "--schema": schema}
        hidden = [word for name, value in private.items() if value is not None for word in (name, value)]
        sys.exit(
            asyncio.run(_run_fleet(workers, bound(host, port), public, hidden, max(budgets.grace, budgets.window)))
        )
    with leaving_by_signals():
        attached = _attached(_load(asgi, factory), app_path, dsn, schema, no_worker)
        if drain_window is not None:
            attached.budgets.window = budgets.window
        if grace is not None:
            attached.budgets.grace = budgets.grace
        attached.joins, attached.leaves = joins, True
        if attached.app is not None:
            attached.app.mark = mark
        run_attached(attached, bound(host, port) if fd is None else socket.socket(fileno=fd), recycle_after)


async def _run_fleet(size: int, listening: socket.socket, public: list[str], private: list[str], grace: float) -> int:
    """The processes accept from one socket, which is opened here, so that one can go while the others serve."""

    async def start(number: int) -> SupervisedWorker:
        command = ["serve", *public, "--fd", str(listening.fileno()), "--log-label", f"{number:<5} "]
        command += ["--joins"] if fleet.is_ready else []
        return await SupervisedWorker.launch(command, private, grace=grace, pass_fds=[listening.fileno()], tells=True)

    fleet = Fleet(size, start, grace=grace)
    # with this one open, clients would be let in and served by nobody once the others have closed theirs
    with listening, on_ending(listening.close, lambda: None):
        return await fleet.run()


def bound(host: str, port: int) -> socket.socket:
    """A socket with this address that does not listen yet: nobody is let in before there is someone to serve them."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise CannotListen(
            f"Nothing can listen on {host}, port {port}: {error.strerror}. Give another --host or --port."
        ) from error
    logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, bound.getsockname()[1])
    return bound


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


def run_attached(attached: Attached, listening: socket.socket, recycle_after: int | None = None) -> None:
    """Serve it with uvicorn until this process is told to end, and end in order."""
    try:
        import uvicorn

        from rota.integrations.uvicorn_server import DrainingServer
    except ImportError as error:
        raise ConfigurationError("`rota serve` needs uvicorn: pip install 'rota[fastapi]'.") from error
    _log_alike("uvicorn", "uvicorn.error")
    config = uvicorn.Config(
        attached.served,
        backlog=_BACKLOG,
        # what cannot be cancelled is not waited for longer than the rest
        timeout_graceful_shutdown=attached.budgets.graceful_timeout,
        access_log=False,
        log_config=None,
    )
    server = DrainingServer(config)
    if recycle_after is not None:
        # each a little later than the last, or all would have had enough at the same moment
        enough = recycle_after + random.randint(0, recycle_after // 10)
        config.callback_notify, config.timeout_notify = functools.partial(_tell_when_enough, server, enough), 0
    process = _Process(attached, server)
    # from now on, not only while it serves: a signal before that is not lost, and the one that it sends itself at its end, to die
    # of it, is no death, as it has ended in order
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    limit, failed = HardLimit(max(attached.budgets.grace, attached.budgets.window)), False
    forget = ENDING.on_begin(process.stop_accepting)
    try:
        with systemd_notified(process):
            server.run([listening])
    except SystemExit as error:  # it has said why it could not start
        failed = bool(error.code)
    finally:
        forget()
        for number, handler in before.items():
            signal.signal(number, handler)
        stuck = bodies_in_threads()
        if ENDING.begun or stuck:
            limit.within(HARD_LIMIT)  # the interpreter waits for threads, ours and others
        else:
            limit.lift()
    failed = failed or (getattr(server, "lifespan", None) is not None and server.lifespan.should_exit)
    if left := [*(attached.life.left if attached.life is not None else []), *stuck]:
        leave("; ".join(left))
    if failed:
        sys.exit(1)


class _Process:
    """How this process is, for whoever started it."""

    def __init__(self, attached: Attached, server: Any) -> None:
        self._attached = attached
        self._server = server
        self._probes = Probes(attached.app, lambda: attached.life, alone=True)

    def live(self) -> Report:
        return Report(200, {"live": True}) if self._attached.app is None else health_of(self._attached.app).live()

    def ready_sync(self) -> Report:
        """As the probe has it for this process, and not before anybody could ask that."""
        life = self._attached.life
        if ENDING.begun:
            return Report(503, {"ready": False, "reason": "shutting_down"})
        if life is None or not self._server.started:
            return Report(503, {"ready": False, "reason": "starting"})
        try:
            return asyncio.run_coroutine_threadsafe(self._probes.ask("ready"), life.loop).result(_ANSWER_SECONDS)
        except TimeoutError:
            return Report(503, {"ready": False, "reason": "blocked"})
        except (CancelledError, RuntimeError):  # the loop was closed meanwhile
            return Report(503, {"ready": False, "reason": "shutting_down"})

    def stop_accepting(self) -> None:
        """When another process is there in the place of this one: to the end clients come to the port that they share, and one that
        is let in at the last moment would find its connection closed."""
        if is_replaced() and self._attached.life is not None:
            for listener in self._server.servers:
                self._attached.life.loop.call_soon_threadsafe(listener.close)


async def _tell_when_enough(server: Any, enough: int) -> None:
    if server.server_state.total_requests >= enough:
        tell_parent("ENOUGH=1")


def _log_alike(name: str, coloured: str) -> None:
    """Have the lines of another logger come out as ours do."""
    other = logging.getLogger(name)
    other.handlers, other.propagate = list(logger.handlers), False
    other.setLevel(logger.level)

    def in_one_colour(record: logging.LogRecord) -> bool:
        vars(record).pop("color_message", None)
        return True

    logging.getLogger(coloured).addFilter(in_one_colour)


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
