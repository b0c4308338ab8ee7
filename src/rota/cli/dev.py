"""`rota dev`: a database, its tables and a worker for an app, and a new worker whenever the code changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from rota import embedded
from rota.app import Rota
from rota.cli.dashboard import free_port, is_installed
from rota.cli.discover import app_paths
from rota.cli.output import say
from rota.cli.probe import AppReport, BrokenCode, probe
from rota.cli.target import database_options
from rota.errors import RotaError
from rota.postgres.dsn import Dsn
from rota.runtime.reload import Code, changed, pause_after, read_code
from rota.runtime.supervisor import SupervisedWorker, describe_exit

__all__ = ["dev"]

GRACE = 5.0  # seconds that running jobs get at a restart: its author is waiting
SETTLED = 0.1  # seconds without a change: an editor or a checkout may write several files


@click.command()
@click.argument("app", required=False)
@click.option("--ephemeral", is_flag=True, help="Use an embedded server that is thrown away at the end.")
@click.option(
    "--dashboard/--no-dashboard",
    default=None,
    help="Serve the dashboard too, on port 8200 or another that is free. [default: if rota[dashboard] is installed]",
)
@database_options
def dev(app: str | None, ephemeral: bool, dashboard: bool | None, dsn: str | None, schema: str | None) -> None:
    """Run APP while you write it: database, tables, the dashboard, and a worker that is restarted when a Python file here changes.

    Without APP it is found by convention: `app` under [tool.rota] in pyproject.toml, else main.py, app.py, tasks.py or
    jobs.py. Without a database address an embedded PostgreSQL is used, with its data in .rota/postgres. Code that cannot be
    imported is reported, and the next change tried. Ctrl-C ends it: running jobs finish first, a second Ctrl-C hands them
    back.
    """
    paths = [app] if app is not None else app_paths(Path.cwd())
    if ephemeral and dsn is not None:
        raise click.UsageError(
            "--ephemeral and --dsn exclude each other: a database with an address is not ours to throw away."
        )
    with embedded.EmbeddedServer(ephemeral=True) if ephemeral else contextlib.nullcontext() as server:
        shown = is_installed() if dashboard is None else dashboard
        asyncio.run(_Development(paths, server.start() if server else dsn, schema, shown).run())


class _Development:
    """One worker at a time, for the code as it is."""

    def __init__(self, paths: list[str], dsn: str | None, schema: str | None, dashboard: bool = False) -> None:
        self._paths = paths
        self._dsn = dsn
        self._schema = schema
        self._stop = asyncio.Event()
        self._worker: SupervisedWorker | None = None
        self._wants_dashboard = dashboard
        self._dashboard: SupervisedWorker | None = None
        self._shown: AppReport | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._ask_to_stop)
        try:
            while not self._stop.is_set():
                code = read_code(".")  # before it is imported: what changes meanwhile is a change
                await self._unless_stopped(self._start_worker())
                await self._until_change(code)
                await self._stop_worker()
        finally:
            if self._dashboard is not None:
                self._dashboard.terminate()  # beside the worker, which may have its time to finish
            await self._stop_worker()
            if self._dashboard is not None:
                await self._dashboard.stop()

    def _ask_to_stop(self) -> None:
        if self._stop.is_set() and self._worker is not None:
            self._worker.hurry()  # the second time: it stops waiting for running bodies
        self._stop.set()

    async def _start_worker(self) -> None:
        """Start one for the code as it is. Code that is broken now may be mended by the next change; the rest is fatal at first."""
        try:
            report = await probe(self._paths, self._dsn, self._schema)
            await self._prepare(report)
        except RotaError as error:
            if self._shown is None and not isinstance(error, BrokenCode):
                raise
            say(f"{error}\nWaiting for the next change.")
            return
        self._paths = [report.path]
        if self._wants_dashboard and self._dashboard is None:
            self._dashboard = await self._start_dashboard(report)
        self._worker = await SupervisedWorker.start(
            report.path, "--announce", dsn=self._dsn, schema=self._schema, grace=GRACE
        )

    async def _start_dashboard(self, report: AppReport) -> SupervisedWorker:
        """One for as long as we run: what changes in the code changes nothing for it."""
        private = [
            *(["--dsn", report.dsn] if report.dsn is not None else []),
            *(["--schema", report.schema] if report.schema is not None else []),
        ]
        command = ["dashboard", "--port", str(free_port()), "--log-level", "warning", "--beside"]
        return await SupervisedWorker.launch(command, private, grace=1.0)

    async def _prepare(self, report: AppReport) -> None:
        """The database is there and has its tables. Our own server runs for as long as we do, whoever else uses it."""
        if report.dsn is None:
            await asyncio.to_thread(embedded.shared_server().start)
        async with Rota(report.dsn, schema=report.schema) as app:
            await app.migrate()
            if report != self._shown:
                _show(report, await _server_version(app))
        self._shown = report

    async def _until_change(self, code: Code) -> None:
        reported = self._worker is None
        while not self._stop.is_set():
            began = time.monotonic()
            if changed(code, read_code(".")):
                files = changed(code, await self._settled())
                say(f"{_named(files)} changed, restarting")
                return
            if not reported and self._worker is not None and self._worker.exit_code is not None:
                reported = True
                await self._end_membership(self._worker)
                say(f"The worker ended ({describe_exit(self._worker.exit_code)}). Waiting for the next change.")
            await self._pause(pause_after(began))

    async def _end_membership(self, worker: SupervisedWorker) -> None:
        """Of a worker that crashed: what it held is free when the next one starts."""
        assert self._shown is not None
        with contextlib.suppress(RotaError):  # then it is found out by the next one
            async with Rota(self._shown.dsn, schema=self._shown.schema) as app:
                await worker.end_membership(app.database)

    async def _settled(self) -> Code:
        """The code once it has stopped changing."""
        code = read_code(".")
        while not self._stop.is_set():
            await self._pause(SETTLED)
            now = read_code(".")
            if now == code:
                break
            code = now
        return code

    async def _stop_worker(self) -> None:
        """Running jobs finish within the grace, or are handed back: the next worker has them, and none is charged for it."""
        if self._worker is not None:
            running = self._worker.running
            if await self._worker.stop() != 0 and running:
                await self._end_membership(self._worker)  # it had to be killed, and did not leave
            self._worker = None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, or give it up when we are asked to stop: an app's import may take for ever."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not working.done():
            working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def _server_version(app: Rota) -> str:
    async with await app.database.connector("dev").connect() as connection:
        return connection.info.parameter_status("server_version") or "?"


def _show(report: AppReport, version: str) -> None:
    if report.dsn is None:
        where = f"embedded, data in {_short(embedded.status().home)}; look inside with `rota postgres psql`"
    else:
        where = str(Dsn(report.dsn))
    say(f"PostgreSQL  {version.split()[0]}, {where}")
    say(f"schema      {report.schema}")
    say(f"app         {report.path}")
    say(f"tasks       {', '.join(report.tasks) or 'none yet'}")
    say(f"watching    *.py under {os.getcwd()}; Ctrl-C ends it\n")


def _short(path: str) -> str:
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


def _named(files: list[str]) -> str:
    names = [os.path.relpath(file) for file in files[:3]]
    return ", ".join(names) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
