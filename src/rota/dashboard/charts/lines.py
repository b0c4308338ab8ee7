"""How long things took over time, as a band of quantiles; and the course of one number, as small as a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from rota.dashboard.charts.axes import TimeAxis, nice_ceiling
from rota.dashboard.charts.svg import element, figure, number, picture, runs

__all__ = ["Quantiles", "band", "spark"]

_LEFT, _RIGHT, _BOTTOM = 44.0, 16.0, 18.0


@dataclass(frozen=True)
class Quantiles:
    """Seconds that half, all but a twentieth, and all but a hundredth took no longer than; None where there was nothing."""

    at: datetime
    p50: float | None
    p95: float | None
    p99: float | None


def band(title: str, data: Sequence[Quantiles], *, width: float = 1000, height: float = 150) -> Markup:
    """From p50 to p99 as an area, with p95 as a line in it. A gap is where nothing was measured."""
    columns = ["time (UTC)", "p50 s", "p95 s", "p99 s"]
    rows = [[_utc(each.at), *(_seconds(value) for value in (each.p50, each.p95, each.p99))] for each in data]
    measured = [each for each in data if each.p99 is not None]
    if not measured:
        nothing = element("text", "Nothing yet", x=width / 2, y=height / 2)
        return figure(title, picture(width, height, f"{title}: nothing to show", nothing), columns, rows)
    axis = TimeAxis(data[0].at, data[-1].at, _LEFT, width - _LEFT - _RIGHT)
    deep, top = height - _BOTTOM, nice_ceiling(max(each.p99 or 0.0 for each in measured))

    def place(at: datetime, value: float) -> str:
        return f"{number(axis.x(at))} {number(deep - deep * value / top)}"

    parts: list[Markup] = []
    for run in runs([each.p99 for each in data]):
        chosen = [data[place_] for place_ in run]
        upper = [place(each.at, each.p99 or 0.0) for each in chosen]
        lower = [place(each.at, each.p50 or 0.0) for each in reversed(chosen)]
        middle = [place(each.at, each.p95 or 0.0) for each in chosen]
        parts.append(element("path", d=f"M{'L'.join(upper + lower)}Z", class_="band"))
        parts.append(element("path", d=f"M{'L'.join(middle)}", class_="line"))
    last = measured[-1]
    label = f"{title}: last p50 {_seconds(last.p50)} s, p95 {_seconds(last.p95)} s, p99 {_seconds(last.p99)} s"
    levels = [
        element(
            "g",
            element("line", x1=_LEFT, x2=width, y1=y, y2=y, class_="grid"),
            element("text", f"{number(value)} s", x=_LEFT - 6, y=y + 4),
        )
        for value, y in ((top, 0.5), (top / 2, deep / 2))
    ]
    drawing = picture(
        width,
        height,
        label,
        axis.labels(height - 4),
        element("g", *levels, class_="levels", aria_hidden="true"),
        *parts,
    )
    return figure(title, drawing, columns, rows)


def spark(
    label: str, values: Sequence[float | None], *, width: float = 120, height: float = 24, stretches: bool = False
) -> Markup:
    """A line without axes, from nought to its highest; the last value is marked. The numbers beside it say the rest."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    step = width / max(1, len(values) - 1)

    def place(at: int) -> tuple[float, float]:
        return at * step, height - 2 - (height - 4) * (values[at] or 0.0) / top

    parts = [
        element("path", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in map(place, run)), class_="line")
        for run in runs(values)
        if len(run) > 1
    ]
    if values and values[-1] is not None and not stretches:  # which would make an egg of it
        x, y = place(len(values) - 1)
        parts.append(element("circle", cx=x, cy=y, r=2, class_="dot"))
    return picture(
        width,
        height,
        label,
        element("title", escape(label)),
        *parts,
        class_="spark wide" if stretches else "spark",
        stretches=stretches,
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else number(round(value, 3)) if value < 100 else number(round(value))


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
