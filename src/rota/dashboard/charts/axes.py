"""From moments and amounts to places in a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from rota.dashboard.charts.svg import element

__all__ = ["TimeAxis", "nice_ceiling", "time_label"]

_STEPS = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
)


@dataclass(frozen=True)
class TimeAxis:
    """Moments from `start` to `end`, over `width` from `left` on."""

    start: datetime
    end: datetime
    left: float
    width: float

    def x(self, at: datetime) -> float:
        """Where a moment is; what is outside is at the edge."""
        whole = (self.end - self.start).total_seconds()
        share = (at - self.start).total_seconds() / whole if whole > 0 else 0.0
        return self.left + self.width * min(1.0, max(0.0, share))

    def holds(self, at: datetime) -> bool:
        return self.start <= at <= self.end

    def ticks(self, most: int = 8) -> Iterator[datetime]:
        """Round moments in UTC, no more than so many."""
        length = self.end - self.start
        step = next((each for each in _STEPS if length / each <= most), _STEPS[-1])
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        at = epoch + math.ceil((self.start - epoch) / step) * step
        while at <= self.end:
            yield at
            at += step

    def labels(self, y: float, most: int = 8) -> Markup:
        """The ticks with their times, which the page shows in its reader's zone."""
        length = self.end - self.start
        return element("g", *(self._label(at, y, length) for at in self.ticks(most)), class_="axis", aria_hidden="true")

    def _label(self, at: datetime, y: float, length: timedelta) -> Markup:
        x = self.x(at)
        return element(
            "g",
            element("line", x1=x, x2=x, y1=0, y2=y - 12, class_="grid"),
            element(
                "text", time_label(at, length), x=x, y=y, data_time=at.isoformat(), data_span=length.total_seconds()
            ),
        )


def time_label(at: datetime, length: timedelta) -> str:
    utc = at.astimezone(UTC)
    if length <= timedelta(minutes=10):
        return utc.strftime("%H:%M:%S")
    return utc.strftime("%H:%M") if length <= timedelta(days=2) else utc.strftime("%m-%d")


def nice_ceiling(value: float) -> float:
    """The next round number above: where an axis ends."""
    if value < 1e-9:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= value * (1 - 1e-9))
