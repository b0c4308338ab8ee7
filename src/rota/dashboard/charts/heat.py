"""Names against hours: where it burns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from rota.dashboard.charts.axes import TimeAxis
from rota.dashboard.charts.svg import element, figure, number, picture

__all__ = ["Cell", "heat"]

_NAMES, _ROW, _RIGHT, _BOTTOM = 180.0, 20.0, 16.0, 18.0
_LEVELS = 5


@dataclass(frozen=True)
class Cell:
    """So much of a name in a step. `href` is where one finds it."""

    name: str
    at: datetime
    amount: float
    href: str | None = None


def heat(
    title: str, names: Sequence[str], steps: Sequence[datetime], cells: Sequence[Cell], *, width: float = 1000
) -> Markup:
    """A row per name, a column per step; five levels, of which the number is also told by the size of the mark in the cell."""
    top = max((cell.amount for cell in cells), default=0.0)
    height = _ROW * max(1, len(names)) + _BOTTOM
    broad = (width - _NAMES - _RIGHT) / max(1, len(steps))
    columns = {at: place for place, at in enumerate(steps)}
    places = {name: place for place, name in enumerate(names)}
    drawn = [
        _cell(cell, _NAMES + columns[cell.at] * broad, places[cell.name] * _ROW, broad, top)
        for cell in cells
        if cell.amount > 0 and cell.at in columns and cell.name in places
    ]
    labels = [
        element("text", escape(name if len(name) <= 26 else f"{name[:25]}…"), x=_NAMES - 6, y=place * _ROW + 14)
        for name, place in places.items()
    ]
    axis: list[Markup] = []
    if len(steps) > 1:
        axis = [
            TimeAxis(steps[0], steps[-1], _NAMES + broad / 2, width - _NAMES - _RIGHT - broad).labels(
                height - 4, most=6
            )
        ]
    drawing = picture(
        width,
        height,
        f"{title}: {len(names)} rows, at most {number(float(top))}",
        *axis,
        element("g", *labels, class_="names"),
        *drawn,
    )
    rows = [[cell.name, _utc(cell.at), number(float(cell.amount))] for cell in cells if cell.amount > 0]
    return figure(title, drawing, ["name", "time (UTC)", "amount"], rows)


def _cell(cell: Cell, x: float, y: float, broad: float, top: float) -> Markup:
    level = min(_LEVELS, 1 + int(_LEVELS * cell.amount / top * 0.999)) if top else 1
    tall = (_ROW - 2) * (0.4 + 0.6 * level / _LEVELS)
    drawn = element(
        "rect",
        element("title", escape(f"{cell.name}, {_utc(cell.at)}: {number(float(cell.amount))}")),
        x=x + 0.5,
        y=y + (_ROW - tall) / 2,
        width=max(1.0, broad - 1),
        height=tall,
        class_=f"heat level-{level}",
    )
    return (
        drawn
        if cell.href is None
        else element(
            "a", drawn, href=cell.href, aria_label=f"{cell.name}, {_utc(cell.at)}: {number(float(cell.amount))}"
        )
    )


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
