"""Items 5 and 6: how fast jobs are put."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speed_items.table import Row, Run

WAYS: dict[str, tuple[int, dict[str, Any], int, int]] = {
    # the item, how, and how many jobs in a whole run and in a short one
    "enqueue_many of 1,000 and their jobs returned: of raw unnest": (5, {"mode": "many"}, 100_000, 20_000),
    "enqueue_many of 200,000 at once: of raw COPY": (5, {"mode": "all"}, 200_000, 200_000),
    "enqueue one by one, alone: of raw": (6, {"mode": "one"}, 4_000, 1_000),
    "enqueue one by one, ten at once: of raw": (6, {"mode": "one", "lanes": 10}, 8_000, 2_000),
}
LIMITS = {"many": (0.5, 0.8), "all": (0.5, 0.8), "one": (0.6, 0.8), "one 10": (0.6, 1.0)}


def measured(run: Run, item: int) -> list[Row]:
    rows = []
    for what, (its_item, how, whole, short) in WAYS.items():
        if its_item != item:
            continue
        jobs = run.size(whole, short)

        def rate(peer: Any, how: dict[str, Any] = how, jobs: int = jobs) -> float:
            with run.field.place(peer) as place:
                return place.enqueue(**how, jobs=jobs)

        shares = run.beside_raw(what, rate)
        bar, stretch = LIMITS[" ".join(map(str, how.values()))]
        rows.append(Row(item, what, shares.share, bar, stretch, note=f"{shares.rate:,.0f}/s"))
        run.figures.setdefault(str(item), {})[what] = shares.record()
    return rows


def item(number: int) -> Callable[[Run], list[Row]]:
    return lambda run: measured(run, number)


ITEMS: dict[int, Any] = {5: item(5), 6: item(6)}
