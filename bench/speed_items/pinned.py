"""Item 11: a queue whose dead rows stay, since someone's transaction stays open while it is worked off at full speed."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from field import progress, wait_until
from speed_items.flat import WAITING
from speed_items.table import Row, Run


def pinned(run: Run) -> list[Row]:
    free_for, pinned_for, window = (10.0, 35.0, 10.0) if not run.short else (5.0, 15.0, 5.0)
    jobs = run.size(2_400_000, 900_000)  # more than is begun meanwhile
    points: list[tuple[float, int]] = []
    with run.field.place(run.rota) as place:
        place.sql(WAITING.format(queue="'default'", due_at="now()", rows=jobs))
        place.sql("vacuum analyze")
        with place.workers() as working, psycopg.connect(place.dsn) as other:
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            wait_until(working, 1, within=30)
            began = time.monotonic()
            held = False
            while (now := time.monotonic() - began) < free_for + pinned_for:
                if now >= free_for and not held:
                    other.execute("select count(*) from rota.members")
                    held = True
                points.append((now, progress(working)[0]))
                if points[-1][1] >= jobs:
                    run.say(f"all {jobs:,} were begun after {now:.0f} s: the last seconds of that are taken")
                    break
                time.sleep(0.05)
    ended = points[-1][0]

    def rate(start: float, stop: float) -> float:
        within = [point for point in points if start <= point[0] <= stop]
        (first, before), (last, after) = within[0], within[-1]
        return (after - before) / (last - first)

    free, late = rate(0, free_for), rate(ended - window, ended)
    run.figures["11"] = {"per_5_s": [round(rate(at, at + 5)) for at in range(0, round(ended) - 4, 5)]}
    run.say(f"per second, each 5 s: {run.figures['11']['per_5_s']}")
    note = f"{late:,.0f} of {free:,.0f}/s"
    what = f"last {window:g} of {ended - free_for:.0f} s with a pinned snapshot: of the free rate"
    return [Row(11, what, late / free, 0.55, 0.8, note=note)]


ITEMS: dict[int, Any] = {11: pinned}
