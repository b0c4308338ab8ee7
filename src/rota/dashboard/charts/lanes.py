"""Spans of time side by side: attempts of a job, runs of schedules, terms of leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from rota.dashboard.charts.axes import TimeAxis
from rota.dashboard.charts.svg import element, figure, number, picture

__all__ = ["Lane", "Span", "condensed", "lanes"]

_ROW, _BOTTOM = 24.0, 18.0


@dataclass(frozen=True)
class Span:
    """From start to end; one without an end goes on. `kind` is its class: wait, run, succeeded, failed, planned…"""

    start: datetime
    end: datetime | None
    kind: str
    label: str
    href: str | None = None


@dataclass(frozen=True)
class Lane:
    name: str
    spans: Sequence[Span] = ()
    href: str | None = None


def condensed(spans: Sequence[Span], gap: timedelta, href: str | None = None) -> list[Span]:
    """The same with those that follow each other as one, where they are of a kind and closer than a picture can show.

    What goes on stays by itself. `href` leads to all that became one.
    """
    runs: list[list[Span]] = []
    for span in spans:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and last.kind == span.kind
            and last.end is not None
            and span.end is not None
            and span.start - last.end < gap
        ):
            runs[-1].append(span)
        else:
            runs.append([span])
    return [
        run[0]
        if len(run) == 1
        else Span(run[0].start, run[-1].end, run[0].kind, f"{len(run)} times {run[0].kind}", href)
        for run in runs
    ]


def lanes(
    title: str,
    data: Sequence[Lane],
    *,
    start: datetime,
    end: datetime,
    now: datetime | None = None,
    width: float = 1000,
    names: float = 190,
) -> Markup:
    """A row per lane from start to end, with a line where it is now. What is planned is drawn as an outline; what waits is thin."""
    if end <= start:
        end = start + timedelta(seconds=1)
    height = _ROW * max(1, len(data)) + _BOTTOM
    axis = TimeAxis(start, end, names, width - names - 16)
    rows = [_lane(lane, place * _ROW, axis, names, now or end) for place, lane in enumerate(data)]
    line: list[Markup] = []
    if now is not None and axis.holds(now):
        x = axis.x(now)
        line = [element("line", element("title", "now"), x1=x, x2=x, y1=0, y2=height - _BOTTOM, class_="now")]
    spans = sum(len(lane.spans) for lane in data)
    label = f"{title}: {len(data)} lanes, {spans} spans from {_utc(start)} to {_utc(end)}"
    table = [
        [lane.name, span.label, _utc(span.start), "" if span.end is None else _utc(span.end), _length(span, now or end)]
        for lane in data
        for span in lane.spans
    ]
    drawing = picture(width, height, label, axis.labels(height - 4, most=6), *rows, *line)
    return figure(title, drawing, ["lane", "what", "from (UTC)", "to (UTC)", "seconds"], table)


def _lane(lane: Lane, y: float, axis: TimeAxis, names: float, now: datetime) -> Markup:
    text = element("text", escape(lane.name if len(lane.name) <= 28 else f"{lane.name[:27]}…"), x=names - 6, y=y + 16)
    named = text if lane.href is None else element("a", text, href=lane.href, aria_label=lane.name)
    spans = [_span(span, y, axis, now) for span in lane.spans if _is_seen(span, axis, now)]
    return element("g", element("g", element("title", escape(lane.name)), named, class_="names"), *spans)


def _is_seen(span: Span, axis: TimeAxis, now: datetime) -> bool:
    return span.start <= axis.end and (span.end or max(now, span.start)) >= axis.start


def _span(span: Span, y: float, axis: TimeAxis, now: datetime) -> Markup:
    from_, to = axis.x(span.start), axis.x(span.end or max(now, span.start))
    thin = span.kind == "wait"
    kind = span.kind if span.kind.isascii() and span.kind.isalnum() else "other"
    parts = [
        element("title", escape(f"{span.label}: {_utc(span.start)} to {_utc(span.end) if span.end else 'now'}")),
        element(
            "rect",
            x=from_,
            y=y + (9 if thin else 4),
            width=max(2.0, to - from_),
            height=6.0 if thin else 16.0,
            class_=f"span is-{kind}",
        ),
    ]
    if kind in ("failed", "dead", "lost"):  # a shape beside the colour
        x = max(from_, to - 1)
        parts.append(element("path", d=f"M{number(x - 4)} {number(y + 8)}l8 8m0 -8l-8 8", class_="cross"))
    drawn = element("g", *parts)
    return (
        drawn
        if span.href is None
        else element("a", drawn, href=span.href, aria_label=f"{span.label}: {_utc(span.start)}")
    )


def _length(span: Span, now: datetime) -> str:
    return number(round(((span.end or max(now, span.start)) - span.start).total_seconds(), 3))


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
