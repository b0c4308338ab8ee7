"""Items 7 and 8: how soon an idle worker begins a job, and what comes of it when jobs are put all the while."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from field import Peer, progress, raw, wait_until
from speed_items.table import Row, Run, Shares


def pickup(run: Run) -> list[Row]:
    jobs = run.size(300, 200)
    # of each round apart: one bad moment of the machine is not to be the p99 of them all
    found: dict[str, list[tuple[float, float]]] = {"raw": [], "rota": []}
    for _ in range(run.rounds):
        for name, peer in (("raw", raw()), ("rota", run.rota)):
            took = _delays(run, peer, jobs)
            found[name].append((statistics.median(took), statistics.quantiles(took, n=100)[98]))
            run.say(f"{name:5} p50 {found[name][-1][0]:6.2f} ms, p99 {found[name][-1][1]:6.2f} ms")
    p50s, p99s = ({name: statistics.median(r[i] for r in rounds) for name, rounds in found.items()} for i in (0, 1))
    run.figures["7"] = found
    return [
        Row(
            7,
            f"call to start of an idle worker, {label}: times raw",
            figures["rota"] / figures["raw"],
            bar,
            stretch,
            at_most=True,
            note=f"{figures['rota']:.2f} ms, raw {figures['raw']:.2f} ms",
        )
        for label, figures, bar, stretch in (("p50", p50s, 1.5, 1.2), ("p99", p99s, 1.6, 1.3))
    ]


def _delays(run: Run, peer: Peer, jobs: int) -> list[float]:
    """Milliseconds from the call that puts a job to the first line of its body."""
    starts, out = run.field.folder / "starts.json", run.field.folder / "calls.json"
    with run.field.place(peer) as place:
        with place.workers(starts=starts) as working:
            place.enqueue(mode="one", jobs=1)
            wait_until(working, 1, within=30)
            place.call("pickup", "--jobs", jobs, "--out", out)
            wait_until(working, 1 + 3 + jobs, within=30)
        began = json.loads(starts.read_text())
        return [(began[str(i)] - called) * 1000 for i, (called, _) in enumerate(json.loads(out.read_text()))]


def together(run: Run) -> list[Row]:
    """A producer and a worker at the same time: what is completed while jobs are put."""
    rows = []
    for label, mode, lanes, limits in (
        ("singles, ten at once", "one", 10, (1.0, 2.0)),
        ("1,000 at once", "many", 1, (0.4, 0.5)),
    ):
        left: list[float] = []

        def completed(peer: Peer, mode: str = mode, lanes: int = lanes, left: list[float] = left) -> float:
            put, done, seconds, ended = _together(run, peer, mode, lanes)
            if peer.name == "rota":
                left.append(ended)
            run.say(f"{peer.name:5} put {put / seconds:8,.0f}/s, began {done / seconds:8,.0f}/s meanwhile")
            return done / seconds

        shares: Shares = run.beside_raw(f"together, {label}", completed)
        bar, stretch = limits
        what = f"put and worked at the same time, {label}: of raw"
        rows.append(Row(8, what, shares.share, bar, stretch, note=f"{shares.rate:,.0f}/s"))
        if mode == "one":
            rows.append(Row(8, "  and completed of what was put", min(left), 1.0))
        run.figures.setdefault("8", {})[label] = shares.record()
    return rows


def _together(run: Run, peer: Peer, mode: str, lanes: int) -> tuple[int, int, float, float]:
    """Jobs put, bodies begun until the producer ended, its seconds, and the share completed a moment later."""
    seconds = run.size(12, 5)
    with run.field.place(peer) as place, place.workers() as working:
        place.enqueue(mode="one", jobs=1)
        wait_until(working, 1, within=30)
        said = place.call("enqueue", "--mode", mode, "--lanes", lanes, "--seconds", seconds)
        done = progress(working)[0] - 1
        put, took = said["jobs"], said["seconds"]
        if mode == "one":
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline and place.value(f"select exists ({peer.pending})"):
                time.sleep(0.02)
        return put, done, took, (progress(working)[0] - 1) / put


ITEMS: dict[int, Any] = {7: pickup, 8: together}
