"""Items 1 to 4: how fast a backlog of jobs that do nothing is worked off."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from speed_items.table import Drains, Row, Run

CONCURRENCIES = (100, 500, 2_000)


def one_process(run: Run) -> list[Row]:
    jobs = run.size(50_000, 20_000)
    rotas = {f"rota {version}": peer for version, peer in run.rotas.items()}
    found = run.in_turn({**rotas, **run.peers}, jobs)
    run.figures["1"] = {name: drains.record() for name, drains in found.items()}
    rows = []
    for version, name in zip(run.rotas, rotas, strict=True):
        rota, modern = found[name], tuple(map(int, version.split("."))) >= (3, 12)
        note = f"{rota.rate:,.0f}/s"
        if modern:
            rows.append(Row(1, f"drain, one process, Python {version}: of raw", rota.share, 0.45, 0.65, note=note))
            rows.append(beside(run, rota, found, "graphile", 1, version, 1.3, 1.6))
            rows.append(beside(run, rota, found, "pgqueuer", 1, version, 3.0))
        else:
            rows.append(replace(beside(run, rota, found, "graphile", 1, version, 1.0), note=note))
    return rows


def two_processes(run: Run) -> list[Row]:
    jobs = run.size(50_000, 20_000)
    entrants = {"rota": run.rota, **{name: peer for name, peer in run.peers.items() if name == "graphile"}}
    found = run.in_turn(entrants, jobs, workers=2)
    run.figures["2"] = {name: drains.record() for name, drains in found.items()}
    rota = found["rota"]
    graphile = beside(run, rota, found, "graphile", 2, "two processes", 1.3)
    return [graphile, Row(2, "drain, two processes: of raw", rota.share, None, 0.7, note=f"{rota.rate:,.0f}/s")]


def other_bodies(run: Run) -> list[Row]:
    """Plain functions in threads, and in processes; by the history of each, since those bodies are elsewhere."""
    jobs = {"async": run.size(50_000, 10_000), "thread": run.size(20_000, 5_000), "process": run.size(5_000, 1_000)}
    rates: dict[str, list[float]] = {body: [] for body in jobs}
    for _ in range(run.rounds):
        for body, count in jobs.items():
            with run.field.place(replace(run.rota, settings={**run.rota.settings, "body": body})) as place:
                place.fill(count)
                rates[body].append(place.drain_by_history(count))
            run.say(f"{body:8} {rates[body][-1]:8,.0f}/s")
    run.figures["3"] = rates
    return [
        Row(
            3,
            f"drain of bodies in {where}: of async ones",
            statistics.median(each / plain for each, plain in zip(rates[body], rates["async"], strict=True)),
            bar,
            stretch,
            note=f"{statistics.median(rates[body]):,.0f}/s",
        )
        for body, where, bar, stretch in (("thread", "threads", 0.25, 0.5), ("process", "processes", 0.05, 0.15))
    ]


def defaults(run: Run) -> list[Row]:
    jobs = run.size(50_000, 20_000)
    sweep = {f"concurrency {each}": replace(run.rota, settings={"concurrency": each}) for each in CONCURRENCIES}
    found = run.in_turn({"defaults": replace(run.rota, settings={}), **sweep}, jobs)
    run.figures["4"] = {name: drains.record() for name, drains in found.items()}
    best = max(found, key=lambda name: found[name].share)
    share = found["defaults"].share / found[best].share
    return [Row(4, "drain on default settings: of the best", share, 0.8, 1.0, note=f"best: {best}")]


def beside(
    run: Run,
    rota: Drains,
    found: dict[str, Drains],
    peer: str,
    item: int,
    where: str,
    bar: float,
    stretch: float | None = None,
) -> Row:
    what = f"drain, {where if item == 2 else f'one process, Python {where}'}: times {peer}"
    if peer not in found:
        return Row(item, what, None, bar, stretch, note=f"{peer} is missing")
    return Row(item, what, rota.times(found[peer]), bar, stretch, note=f"{peer} {found[peer].rate:,.0f}/s")


ITEMS: dict[int, Any] = {1: one_process, 2: two_processes, 3: other_bodies, 4: defaults}
