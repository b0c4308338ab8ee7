"""The demo on a terminal: one frame made of what there is to see. Pure; nothing here reads or waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rota.jobs.inspect import STATES
from rota.runtime.demo.events import Event
from rota.runtime.demo.slots import SCHEDULE
from rota.runtime.demo.takeover import Takeover
from rota.runtime.demo.tour import Snapshot, WorkerView

__all__ = ["Frame", "render"]

BARS = " ▁▂▃▄▅▆▇█"
RATE_COLUMNS = 32
WORKERS_SHOWN = 7
ROWS_WITHOUT_EVENTS = 14  # borders, a heading, three lines of numbers, three of the takeover, the keys, space between

_COLOURS = {
    "live": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "suspected": "yellow",
    "left": "dim",
    "succeeded": "green",
    "running": "cyan",
    "queued": "yellow",
    "dead": "red",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything a frame shows. `height` is that of the terminal."""

    place: str
    seconds: float
    snapshot: Snapshot
    rates: Sequence[float]
    events: Sequence[Event]
    takeover: Takeover | None
    hint: str
    height: int


def render(frame: Frame) -> RenderableType:
    workers = _shown(frame.snapshot.workers)
    room = max(2, frame.height - ROWS_WITHOUT_EVENTS - len(workers))
    clock = f"{int(frame.seconds) // 60}:{int(frame.seconds) % 60:02}"
    return Panel(
        Group(
            _workers(workers),
            Text(),
            _rate(frame.snapshot, frame.rates),
            _counts(frame.snapshot),
            _slots(frame.snapshot),
            *_takeover(frame.takeover),
            Text(),
            _events(frame.events[-room:], room),
            Text(),
            Text.from_markup(frame.hint, justify="center"),
        ),
        title=f"[bold]rota demo[/] · {escape(frame.place)} · {clock}",
        border_style="blue",
        padding=(0, 1),
    )


def _shown(workers: Sequence[WorkerView]) -> list[WorkerView]:
    """Those that run, and as many of the last that ended as there is room for."""
    ended = [w for w in workers if w.state not in ("starting", "live", "suspected", "stopping")]
    room = max(1, WORKERS_SHOWN - (len(workers) - len(ended)))
    forgotten = set(ended[:-room])
    return [worker for worker in workers if worker not in forgotten]


def _workers(workers: Sequence[WorkerView]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("worker")
    table.add_column("pid", justify="right")
    table.add_column("state", min_width=19)
    table.add_column("running", justify="right")
    table.add_column("done", justify="right")
    table.add_column("")
    for worker in workers:
        colour = _COLOURS.get(worker.state, "red")
        table.add_row(
            worker.name,
            str(worker.pid),
            f"[{colour}]{worker.state}[/]{', leads' if worker.leads else ''}",
            f"{worker.running}",
            f"{worker.done:,}",
            Text("■" * min(worker.running, 24), style="red" if worker.state.startswith("killed") else "cyan"),
        )
    return table


def _rate(snapshot: Snapshot, rates: Sequence[float]) -> Text:
    if snapshot.away:
        return Text("the database does not answer; workers hold what they have and try again", style="yellow")
    shown = list(rates)[-RATE_COLUMNS:]
    most = max([*shown, 1.0])
    bars = "".join(BARS[round(rate / most * (len(BARS) - 1))] for rate in shown)
    return Text.assemble((f"{snapshot.rate:5.1f} jobs/s  ", "bold"), (f"{bars:>{RATE_COLUMNS}}", "green"))


def _counts(snapshot: Snapshot) -> Text:
    line = Text.assemble(("enqueued ", ""), (f"{snapshot.enqueued:,}", "bold"))
    for state in ("succeeded", *(s for s in STATES if s != "succeeded")):
        count = (snapshot.counts or {}).get(state, 0)
        if count or state not in ("blocked", "cancelled"):
            line.append("  ·  ", style="dim")
            line.append(f"{state} ")
            line.append(f"{count:,}", style=f"bold {_COLOURS.get(state, '')}".strip())
    return line


def _slots(snapshot: Snapshot) -> Text:
    style = "bold green" if snapshot.slots.each_once else "bold red"
    return Text.assemble((f"{SCHEDULE}, every second: ", ""), (str(snapshot.slots), style))


def _takeover(takeover: Takeover | None) -> list[RenderableType]:
    if takeover is None:
        return []
    style = "green" if takeover.complete else "yellow"
    return [Text(), Text(f"kill -9: {takeover}", style=style)]


def _events(events: Sequence[Event], room: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for event in events:
        style = "" if event.source else "bold"
        table.add_row(f"{event.at:%H:%M:%S}", event.source or "demo", Text(event.text, style=style))
    for _ in range(room - len(events)):
        table.add_row("", "", "")
    return table
