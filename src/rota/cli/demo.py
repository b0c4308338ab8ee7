"""`rota demo`: a live tour, on a terminal or without one, that ends with an account counted from the database."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.syntax import Syntax

from rota import embedded
from rota.app import Rota
from rota.cli.dashboard import free_port, is_installed
from rota.cli.demo_screen import Frame, render
from rota.cli.keys import listen_to_keys
from rota.cli.output import print_json, say
from rota.cli.target import find_app
from rota.postgres.dsn import Dsn
from rota.postgres.query import identifier
from rota.runtime.demo.crew import APP
from rota.runtime.demo.events import Event, Events
from rota.runtime.demo.ledger import Ledger
from rota.runtime.demo.slots import SCHEDULE, Slots
from rota.runtime.demo.takeover import Takeover
from rota.runtime.demo.tour import Snapshot, Tour
from rota.runtime.supervisor import SupervisedWorker

__all__ = ["CODE", "demo"]

SECONDS = 15  # without a terminal and without a wish
KILL_FROM = 6  # seconds; a shorter run has no time to show a takeover
KILL_AFTER = 12.0  # seconds on a terminal, where one wants to look around first
REFRESH = 0.25
DASHBOARD_WITHIN = 20.0  # seconds; the demo goes on without it

KEYS = "[b]K[/] kill -9 a worker   [b]C[/] stop one cleanly   [b]L[/] a burst of load   [b]Q[/] quit"
NO_KEYS = "Ctrl-C to quit"

CODE = """\
from rota import Retry, Rota

app = Rota()  # your DATABASE_URL, or an embedded PostgreSQL if there is none


@app.task(retry=Retry(attempts=5, base=0.5))
async def charge_card(order_id: int) -> str:
    return f"order {order_id} is paid"


if __name__ == "__main__":
    print(charge_card.enqueue_sync(7))
"""


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Run for so long without keys and moving pictures.")
@click.option("--workers", type=click.IntRange(1, 16), default=3, show_default=True, help="Worker processes.")
@click.option("--json", "as_json", is_flag=True, help="End with the account as JSON.")
@click.option("--dsn", help="Use this database. [default: an embedded one, thrown away afterwards]")
@click.option("--schema", default="rota_demo", show_default=True, help="Schema of the demo's tables.")
@click.option(
    "--dashboard/--no-dashboard",
    default=None,
    help="Serve the dashboard too, on port 8200 or another that is free. [default: if rota[dashboard] is installed]",
)
def demo(
    seconds: float | None, workers: int, as_json: bool, dsn: str | None, schema: str, dashboard: bool | None
) -> None:
    """Watch several worker processes share jobs and a schedule, lose one of them to kill -9, and lose neither job nor slot.

    Ends by itself after --seconds, else with Q or Ctrl-C. The exit code is 0 if every job that was enqueued is accounted for,
    and every slot of the schedule has had one run.
    """
    if seconds is None and not sys.stdout.isatty():
        seconds = SECONDS
    shown = is_installed() if dashboard is None else dashboard
    sys.exit(asyncio.run(_demo(seconds, workers, as_json, dsn, schema, shown)))


async def _demo(
    seconds: float | None, workers: int, as_json: bool, dsn: str | None, schema: str, dashboard: bool
) -> int:
    stop = _Stop()
    ledger, takeovers, slots = Ledger(enqueued=0), list[Takeover](), Slots()
    async with _database(dsn) as (address, place), find_app(APP, address, schema) as app:
        began = time.monotonic()
        await app.migrate()
        say(f"✓ schema {schema} ({(time.monotonic() - began) * 1000:.0f} ms)")
        async with _dashboard(address, schema) if dashboard else contextlib.nullcontext() as page:
            shown = place if page is None else f"{place}, dashboard on {page}"
            if page is not None:
                say(f"✓ dashboard on {page}")
            if not stop.is_set():
                ledger, takeovers, slots = await _tour(app, stop, shown, workers, seconds)
    if as_json:
        print_json(_account(ledger, takeovers, slots))
    else:
        _conclude(ledger, takeovers, slots, dsn, schema)
    return ledger.exit_code or int(not slots.each_once)


async def _tour(
    app: Rota, stop: _Stop, place: str, workers: int, seconds: float | None
) -> tuple[Ledger, list[Takeover], Slots]:
    events = Events(_say_own if seconds is not None else lambda event: None)
    tour = Tour(app, workers, events)
    stop.on_repeat(tour.hurry)
    try:
        await tour.start()
        if seconds is None:
            await _on_screen(tour, events, stop, place)
        else:
            await _in_lines(tour, stop, seconds, workers)
        say("stopping the workers")
    finally:
        ledger = await tour.close()
    return ledger, tour.takeovers, tour.slots


class _Stop:
    """Whether someone asked for the end, by key or by signal. Asked again, nothing is waited for."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._repeat: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.ask)

    def on_repeat(self, react: Callable[[], None]) -> None:
        self._repeat = react

    def ask(self) -> None:
        if self._asked.is_set() and self._repeat is not None:
            self._repeat()
        self._asked.set()

    def is_set(self) -> bool:
        return self._asked.is_set()

    async def wait(self, seconds: float) -> None:
        """Until it is asked for, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()


@contextlib.asynccontextmanager
async def _database(dsn: str | None) -> AsyncIterator[tuple[str, str]]:
    """An address to use and its name for people. Our own server is there for the demo alone."""
    if dsn is not None:
        yield dsn, f"{Dsn(dsn).database or 'your database'}"
        return
    began = time.monotonic()
    server = embedded.EmbeddedServer(ephemeral=True)
    try:
        address = await asyncio.to_thread(server.start)
        version = embedded.status(server.home).version
        say(f"✓ PostgreSQL {version} ready (embedded, {time.monotonic() - began:.1f} s)")
        yield address, f"PostgreSQL {version}, embedded"
    finally:
        await asyncio.to_thread(server.close)


@contextlib.asynccontextmanager
async def _dashboard(dsn: str, schema: str) -> AsyncIterator[str | None]:
    """Serve the page for the length of the block; its address, or None if it cannot be served."""
    command = ["dashboard", APP, "--port", str(free_port()), "--log-level", "warning", "--beside"]
    page = await SupervisedWorker.launch(command, ["--dsn", dsn, "--schema", schema], grace=1.0, capture=True)
    address, lines = None, page.lines()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DASHBOARD_WITHIN):
            async for line in lines:
                if found := re.search(r"dashboard on (http://\S+)", line):
                    address = found[1]
                    break
    reading = asyncio.create_task(_read_on(lines))  # or it would stop when nobody takes what it says
    try:
        yield address
    finally:
        await page.stop()
        await reading


async def _read_on(lines: AsyncIterator[str]) -> None:
    async for _ in lines:
        pass


async def _in_lines(tour: Tour, stop: _Stop, seconds: float, workers: int) -> None:
    began = time.monotonic()
    while (await tour.look()).live < workers and not stop.is_set():
        await stop.wait(0.05)
    say(f"✓ {_workers(workers)} at work ({time.monotonic() - began:.1f} s)")
    began = time.monotonic()
    will_kill = seconds >= KILL_FROM
    every = 1.0 if seconds <= 20 else 5.0
    next_line = every
    while (passed := time.monotonic() - began) < seconds and not stop.is_set():
        snapshot = await tour.look()
        if will_kill and passed >= seconds / 2:
            will_kill = False
            tour.kill_one()
        if passed >= next_line:
            next_line += every
            say(_line(passed, snapshot))
        await stop.wait(min(0.25, max(0.0, seconds - passed)))


def _line(passed: float, seen: Snapshot) -> str:
    if seen.away:
        return f"{passed:4.0f} s  the database does not answer"
    counts = seen.counts or {}
    states = "  ".join(f"{state} {counts.get(state, 0):,}" for state in ("queued", "running", "succeeded", "dead"))
    return f"{passed:4.0f} s  {_workers(seen.live)}  {seen.rate:5.1f} jobs/s  {states}  {seen.slots}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _say_own(event: Event) -> None:
    if not event.source:
        say(f"        {event.text}")


async def _on_screen(tour: Tour, events: Events, stop: _Stop, place: str) -> None:
    """The live view. Kills a worker by itself once, unless the viewer was quicker."""
    killed = False

    def kill() -> None:
        nonlocal killed
        killed = True
        tour.kill_one()

    actions = {"k": kill, "c": tour.stop_one, "l": tour.burst, "q": stop.ask}
    rates: deque[float] = deque(maxlen=64)
    console = Console()
    began = time.monotonic()
    with (
        listen_to_keys(lambda key: actions.get(key.lower(), lambda: None)()) as has_keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not stop.is_set():
            snapshot = await tour.look()
            passed = time.monotonic() - began
            rates.append(snapshot.rate)
            hint = KEYS if has_keys else NO_KEYS
            takeover = tour.takeovers[-1] if tour.takeovers else None
            frame = Frame(place, passed, snapshot, rates, tuple(events), takeover, hint, console.height)
            live.update(render(frame), refresh=True)
            if passed >= KILL_AFTER and not killed:
                kill()
            await stop.wait(REFRESH)


def _account(ledger: Ledger, takeovers: list[Takeover], slots: Slots) -> dict[str, Any]:
    return {
        **asdict(ledger),
        "adds_up": ledger.adds_up,
        "slots": {**asdict(slots), "each_once": slots.each_once},
        "takeovers": [
            {
                "worker": takeover.worker,
                "jobs": len(takeover.jobs),
                "missed_after": takeover.ended_after,
                "started_after": takeover.starts,
                "complete": takeover.complete,
            }
            for takeover in takeovers
        ],
    }


def _conclude(ledger: Ledger, takeovers: list[Takeover], slots: Slots, dsn: str | None, schema: str) -> None:
    for takeover in takeovers:
        say(f"kill -9: {takeover}")
    say(f"{SCHEDULE}, every second: {slots}")
    click.echo(str(ledger))
    if not ledger.adds_up:
        missing = ledger.expected - ledger.counted
        say(f"This does not add up: {abs(missing):,} jobs {'are missing' if missing > 0 else 'are too many'}.")
        return
    say("Every job that was enqueued is accounted for.")
    if not slots.each_once:
        say("Not every slot of the schedule has had one run.")
        return
    say("\nThe code behind it, say in tasks.py:\n")
    Console(stderr=True).print(Syntax(CODE, "python", background_color="default"))
    say("Run it with `rota dev tasks.py`: a database, a worker, and a reload when you save;")
    say("then `python tasks.py` in another terminal. What else there is: docs/, `rota --help`.")
    if dsn is not None:
        say(f"The demo's tables are left in schema {schema}; `drop schema {identifier(schema)} cascade` removes them.")
