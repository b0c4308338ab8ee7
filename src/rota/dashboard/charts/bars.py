"""How much of each outcome there was over time, with marks for what happened meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from rota.dashboard.charts.axes import TimeAxis, nice_ceiling
from rota.dashboard.charts.svg import element, figure, number, picture

__all__ = ["Bar", "Mark", "bars"]

_LEFT, _RIGHT, _BOTTOM = 44.0, 16.0, 18.0


@dataclass(frozen=True)
class Bar:
    """What happened in the step that begins at this moment. `href` is where one finds these."""

    at: datetime
    amounts: Mapping[str, float] = field(default_factory=dict)
    href: str | None = None


@dataclass(frozen=True)
class Mark:
    """Something that happened once, such as a deploy or a failover."""

    at: datetime
    label: str
    kind: str = "mark"


def bars(
    title: str,
    data: Sequence[Bar],
    step: timedelta,
    *,
    marks: Sequence[Mark] = (),
    width: float = 1000,
    height: float = 180,
) -> Markup:
    """Stacked bars, the outcomes in the order in which they first appear; one that failed is hatched as well as coloured."""
    outcomes = list(dict.fromkeys(outcome for bar in data for outcome in bar.amounts))
    top = nice_ceiling(max((sum(bar.amounts.values()) for bar in data), default=0))
    deep = height - _BOTTOM
    if not data:
        drawing = picture(
            width, height, f"{title}: nothing to show", element("text", "Nothing yet", x=width / 2, y=height / 2)
        )
        return figure(title, drawing, ["time", "amount"], [])
    axis = TimeAxis(data[0].at, data[-1].at + step, _LEFT, width - _LEFT - _RIGHT)
    broad = max(1.0, axis.width / len(data) - 1)
    stacks = [_stack(bar, axis.x(bar.at), broad, deep, top, outcomes) for bar in data]
    label = f"{title}: {_total(data, outcomes)} from {_utc(data[0].at)} to {_utc(data[-1].at + step)}"
    drawing = picture(
        width,
        height,
        label,
        axis.labels(height - 4),
        _levels(top, deep, width),
        element("g", *stacks),
        element("g", *(_mark(mark, axis, deep) for mark in marks if axis.holds(mark.at)), class_="marks"),
    )
    rows = [[_utc(bar.at), *(number(float(bar.amounts.get(each, 0))) for each in outcomes)] for bar in data]
    rows += [[_utc(mark.at), mark.label] for mark in marks]
    return figure(title, drawing, ["time (UTC)", *outcomes], rows, before=_legend(outcomes))


def _stack(bar: Bar, x: float, broad: float, deep: float, top: float, outcomes: Sequence[str]) -> Markup:
    parts: list[Markup] = []
    y = deep
    for outcome in outcomes:
        amount = bar.amounts.get(outcome, 0)
        if amount:
            tall = max(1.0, deep * amount / top)  # one of ten thousand is still to be seen
            y -= tall
            parts.append(
                element("rect", x=x, y=max(0.0, y), width=broad, height=tall, class_=f"fill {_class(outcome)}")
            )
            if outcome in ("failed", "dead", "lost"):
                parts.append(
                    element(
                        "path",
                        d=f"M{number(x)} {number(max(0.0, y) + tall)}L{number(x + broad)} {number(max(0.0, y))}",
                        class_="hatch",
                    )
                )
    said = ", ".join(f"{number(float(bar.amounts.get(each, 0)))} {each}" for each in outcomes)
    group = element("g", element("title", escape(f"{_utc(bar.at)}: {said}")), *parts)
    return (
        group
        if bar.href is None or not parts
        else element("a", group, href=bar.href, aria_label=f"{_utc(bar.at)}: {said}")
    )


def _mark(mark: Mark, axis: TimeAxis, deep: float) -> Markup:
    x = axis.x(mark.at)
    return element(
        "g",
        element("title", escape(f"{_utc(mark.at)}: {mark.label}")),
        element("line", x1=x, x2=x, y1=0, y2=deep),
        element("path", d=f"M{number(x - 4)} 0L{number(x + 4)} 0L{number(x)} 7Z"),
        class_=f"mark {_class(mark.kind)}",
    )


def _levels(top: float, deep: float, width: float) -> Markup:
    lines = [
        element(
            "g",
            element("line", x1=_LEFT, x2=width, y1=y, y2=y, class_="grid"),
            element("text", number(value), x=_LEFT - 6, y=y + 4),
        )
        for value, y in ((top, 0.5), (top / 2, deep / 2), (0.0, deep))
    ]
    return element("g", *lines, class_="levels", aria_hidden="true")


def _legend(outcomes: Sequence[str]) -> Markup:
    return element(
        "ul", *(element("li", escape(each), class_=f"key {_class(each)}") for each in outcomes), class_="legend"
    )


def _total(data: Sequence[Bar], outcomes: Sequence[str]) -> str:
    return (
        ", ".join(f"{number(float(sum(bar.amounts.get(each, 0) for bar in data)))} {each}" for each in outcomes)
        or "nothing"
    )


def _class(name: str) -> str:
    """A name of ours as one of a class; whatever else comes has none."""
    return f"is-{name}" if name.isascii() and name.replace("-", "").isalnum() else "is-other"


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
