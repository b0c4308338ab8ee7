"""How it went: what was done over time with what happened meanwhile, how long it waited, and which tasks failed when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from rota.dashboard.charts import Bar, Cell, Mark, Quantiles, band, bars, heat, spark
from rota.dashboard.page import Look
from rota.errors import ConfigurationError
from rota.jobs.trends import Depth, HeatCell, Trend
from rota.leases import marks

__all__ = ["SPANS", "burning", "depth_sparks", "done", "drains", "read_pictures", "waited"]

SPANS = ("1h", "6h", "24h", "7d")
_SPAN = "6h"
_TASKS = 15
# It is counted once a minute.
_FRESH_SECONDS = 15.0
_PACE = timedelta(minutes=15)


async def read_pictures(look: Look) -> dict[str, Any]:
    span = look.param("span") or _SPAN
    if span not in SPANS:
        raise ConfigurationError(f"span cannot be {span!r}: it is one of {', '.join(SPANS)}.")
    trends = look.looking.trends

    async def read() -> tuple[Trend, Sequence[marks.Mark], Sequence[HeatCell]]:
        return await trends.series(span), await trends.marks(span), await trends.heat("24h", most=_TASKS)

    known = await look.read(("pictures", span), read, fresh=_FRESH_SECONDS)
    trend, happened, cells = known.value
    return {
        "known": known,
        "span": span,
        "spans": SPANS,
        "complete_until": trend.complete_until,
        "done": done(trend, happened, look),
        "waited": waited(trend),
        "heat": burning(cells, look) if cells else None,
    }


def done(trend: Trend, happened: Sequence[marks.Mark], look: Look) -> Markup:
    """Outcomes over time; each bar leads to its jobs."""
    data = [
        Bar(
            bucket.at,
            {
                name: getattr(bucket, name)
                for name in ("succeeded", "cancelled", "failed", "lost")
                if getattr(bucket, name)
            },
            look.to("jobs", since=bucket.at.isoformat(), until=(bucket.at + trend.width).isoformat()),
        )
        for bucket in trend.buckets
    ]
    said = [Mark(each.at, f"{each.kind}: {each.what}", each.kind) for each in happened]
    return bars("What was done", data, trend.width, marks=said)


def waited(trend: Trend) -> Markup:
    data = [Quantiles(each.at, each.wait_p50, each.wait_p95, each.wait_p99) for each in trend.buckets]
    return band("How long jobs waited: from p50 to p99, with p95", data)


def burning(cells: Sequence[HeatCell], look: Look) -> Markup:
    """Failures of each task in each hour; while nothing fails, what was done."""
    fails = any(cell.failed or cell.dead for cell in cells)
    hour = timedelta(hours=1)
    steps = sorted({cell.at for cell in cells})
    drawn = [
        Cell(
            cell.task,
            cell.at,
            float(cell.failed + cell.dead if fails else cell.succeeded),
            look.to("jobs", task=cell.task, since=cell.at.isoformat(), until=(cell.at + hour).isoformat()),
        )
        for cell in cells
    ]
    names = list(dict.fromkeys(cell.task for cell in cells))
    title = "Failures by task and hour, the last day" if fails else "Done by task and hour, the last day"
    return heat(title, names, _whole(steps, hour), drawn)


def _whole(steps: Sequence[datetime], width: timedelta) -> list[datetime]:
    """The steps without a gap."""
    if not steps:
        return []
    return [steps[0] + place * width for place in range((steps[-1] - steps[0]) // width + 1)]


def depth_sparks(depths: Sequence[Depth]) -> dict[str, Markup]:
    """What was due in each queue in the last hour, a sample a minute."""
    by_queue: dict[str, list[float | None]] = {}
    for depth in reversed(depths):
        by_queue.setdefault(depth.queue, []).append(float(depth.due))
    return {queue: spark(f"Due in {queue} in the last hour", values) for queue, values in by_queue.items()}


def drains(depths: Sequence[Depth]) -> dict[str, float]:
    """In how many seconds each queue has nothing due any more, at the pace of the last quarter of an hour; others grow, or stand."""
    by_queue: dict[str, list[Depth]] = {}
    for depth in depths:
        by_queue.setdefault(depth.queue, []).append(depth)
    found = ((queue, _drains_in(told)) for queue, told in by_queue.items())
    return {queue: seconds for queue, seconds in found if seconds is not None}


def _drains_in(told: Sequence[Depth]) -> float | None:
    """Of the samples of one queue, the newest first."""
    last = told[0]
    recent = [depth for depth in told if depth.at >= last.at - _PACE]
    first = recent[-1]
    seconds, done = (last.at - first.at).total_seconds(), first.due - last.due
    # where not all was counted, the difference says nothing
    if seconds <= 0 or done <= 0 or not last.due or any(depth.at_least for depth in (first, last)):
        return None
    return last.due * seconds / done
