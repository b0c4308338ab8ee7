"""The course of one amount over time, with the axes that a spark has not; and how far each of several has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from rota.dashboard.charts.axes import TimeAxis, nice_ceiling
from rota.dashboard.charts.svg import element, figure, number, picture

__all__ = ["Point", "Track", "line", "tracks"]

_LEFT, _BOTTOM = 44.0, 18.0
_ROW, _NAMES = 24.0, 170.0


@dataclass(frozen=True)
class Point:
    """So much at this time; `also` is what else the table tells of it."""

    at: datetime
    amount: float
    also: str = ""


def line(
    title: str, data: Sequence[Point], *, unit: str, also: str = "", width: float = 1000, height: float = 120
) -> Markup:
    """From nought to the highest; the last is marked."""
    columns = ["time (UTC)", unit, *([also] if also else [])]
    rows = [[_utc(each.at), number(each.amount), *([each.also] if also else [])] for each in data]
    if not data:
        nothing = element("text", "Nothing yet", x=width / 2, y=height / 2)
        return figure(title, picture(width, height, f"{title}: nothing to show", nothing), columns, rows)
    axis = TimeAxis(data[0].at, data[-1].at, _LEFT, width - _LEFT - 16)
    deep, top = height - _BOTTOM, nice_ceiling(max(each.amount for each in data))
    places = [(axis.x(each.at), deep - deep * each.amount / top) for each in data]
    levels = [
        element(
            "g",
            element("line", x1=_LEFT, x2=width, y1=y, y2=y, class_="grid"),
            element("text", number(value), x=_LEFT - 6, y=y + 4),
        )
        for value, y in ((top, 0.5), (top / 2, deep / 2))
    ]
    drawing = picture(
        width,
        height,
        f"{title}: {number(data[-1].amount)} {unit} now, {number(max(each.amount for each in data))} at most",
        axis.labels(height - 4),
        element("g", *levels, class_="levels", aria_hidden="true"),
        element("path", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in places), class_="line"),
        element("circle", cx=places[-1][0], cy=places[-1][1], r=2.5, class_="dot"),
    )
    return figure(title, drawing, columns, rows)


@dataclass(frozen=True)
class Track:
    """How much of a way someone has come, from 0 to 1, in words too; `kind` is its class."""

    name: str
    done: float
    label: str
    kind: str


def tracks(title: str, data: Sequence[Track], *, width: float = 1000) -> Markup:
    """A row for each: what is done is filled, what is to come is an outline."""
    long = width - _NAMES - 6
    height = _ROW * max(1, len(data)) + 4
    rows = [
        element(
            "g",
            element("title", escape(f"{each.name}: {each.label}")),
            element("g", element("text", escape(each.name), x=_NAMES - 6, y=place * _ROW + 18), class_="names"),
            element("rect", x=_NAMES, y=place * _ROW + 6, width=long, height=16.0, class_="span is-planned"),
            element(
                "rect",
                x=_NAMES,
                y=place * _ROW + 6,
                width=long * min(1.0, max(0.0, each.done)),
                height=16.0,
                class_=f"span is-{each.kind}",
            ),
        )
        for place, each in enumerate(data)
    ]
    label = f"{title}: " + "; ".join(f"{each.name} {each.label}" for each in data)
    table = [[each.name, f"{each.done * 100:.1f}", each.label] for each in data]
    return figure(title, picture(width, height, label, *rows), ["what", "per cent", "in words"], table)


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
