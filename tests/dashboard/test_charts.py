"""Pictures are functions of their data: well-formed, without styles, and with a table that says the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from rota.dashboard.charts import (
    Bar,
    Cell,
    Lane,
    Mark,
    Point,
    Quantiles,
    Span,
    Track,
    band,
    bars,
    condensed,
    heat,
    lanes,
    line,
    spark,
    tracks,
)
from rota.dashboard.charts.axes import TimeAxis, nice_ceiling
from rota.dashboard.pages.job import attempt_lanes
from rota.dashboard.pages.members import term_lanes
from rota.dashboard.pages.pictures import drains
from rota.jobs.job import AttemptError, Job
from rota.jobs.trends import Depth
from rota.leases.inspect import LeaderLane, TermView

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EVIL = "\"'><script>alert(1)</script>&"


def tree(drawn: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(f"<body>{drawn}</body>")


def rows(drawn: Markup) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in tree(drawn).iterfind(".//tbody/tr")]


def drawn_with(text: str) -> Sequence[Markup]:
    span = Span(NOON, NOON + MINUTE, text, text, href=text)
    return [
        bars(text, [Bar(NOON, {text: 3}, href=text)], MINUTE, marks=[Mark(NOON, text, text)]),
        band(text, [Quantiles(NOON, 0.1, 0.2, 0.3)]),
        heat(text, [text], [NOON], [Cell(text, NOON, 1, href=text)]),
        lanes(text, [Lane(text, [span], href=text)], start=NOON, end=NOON + MINUTE),
        spark(text, [1, 2]),
        line(text, [Point(NOON, 1.0, text), Point(NOON + MINUTE, 2.0, text)], unit=text, also=text),
        tracks(text, [Track(text, 0.5, text, "running")]),
    ]


@pytest.mark.parametrize("drawn", drawn_with(EVIL))
def test_whatever_a_name_holds_is_text(drawn: Markup) -> None:
    elements = {element.tag for element in tree(drawn).iter()}

    assert "script" not in elements
    assert not [element for element in tree(drawn).iter() if "onload" in element.attrib or "style" in element.attrib]


@pytest.mark.parametrize("drawn", drawn_with("plain"))
def test_a_picture_has_a_name_for_who_cannot_see_it(drawn: Markup) -> None:
    (svg,) = tree(drawn).iter("svg")

    links = list(svg.iter("a"))
    assert svg.attrib["role"] == ("group" if links else "img")
    assert all(link.attrib["aria-label"] for link in links)
    assert svg.attrib["aria-label"].startswith("plain")


def test_bars_stack_each_outcome_and_the_table_has_the_numbers() -> None:
    data = [Bar(NOON + place * MINUTE, {"succeeded": 10 - place, "failed": place}) for place in range(3)]

    drawn = bars("Jobs", data, MINUTE, marks=[Mark(NOON + MINUTE, "deploy of 1.2")])

    assert len(re.findall('class="fill is-succeeded"', drawn)) == 3
    assert len(re.findall('class="fill is-failed"', drawn)) == len(re.findall('class="hatch"', drawn)) == 2
    assert rows(drawn) == [
        ["2030-01-31 12:00:00", "10", "0"],
        ["2030-01-31 12:01:00", "9", "1"],
        ["2030-01-31 12:02:00", "8", "2"],
        ["2030-01-31 12:01:00", "deploy of 1.2"],
    ]
    heights = [float(each.attrib["height"]) for each in tree(drawn).iter("rect")]
    assert heights[0] == pytest.approx(162)


def test_a_mark_outside_is_not_drawn() -> None:
    drawn = bars("Jobs", [Bar(NOON, {"succeeded": 1})], MINUTE, marks=[Mark(NOON - MINUTE, "before")])

    assert 'class="mark ' not in drawn


def test_a_band_has_a_gap_where_nothing_was_measured() -> None:
    measured = [Quantiles(NOON + place * MINUTE, 0.1, 0.5, 1.0) for place in range(4)]
    data = [*measured[:2], Quantiles(NOON + 2 * MINUTE, None, None, None), measured[3]]

    drawn = band("Wait", data)

    assert len(re.findall('class="band"', drawn)) == 2
    assert rows(drawn)[2] == ["2030-01-31 12:02:00", "", "", ""]


@pytest.mark.parametrize(
    "drawn", [bars("x", [], MINUTE), band("x", []), band("x", [Quantiles(NOON, None, None, None)])]
)
def test_nothing_is_said_to_be_nothing(drawn: Markup) -> None:
    assert "Nothing yet" in drawn


def test_what_waits_is_thin_what_is_planned_an_outline_and_what_failed_crossed() -> None:
    spans = [Span(NOON, NOON + MINUTE, kind, kind) for kind in ("wait", "planned", "failed")]

    drawn = lanes("x", [Lane("one", spans)], start=NOON, end=NOON + MINUTE, now=NOON)

    assert [each.attrib["height"] for each in tree(drawn).iter("rect")] == ["6", "16", "16"]
    assert len(re.findall('class="cross"', drawn)) == 1
    assert 'class="now"' in drawn


def test_a_span_without_an_end_goes_on_until_now() -> None:
    lane = Lane("one", [Span(NOON, None, "run", "runs")])

    drawn = lanes("x", [lane], start=NOON, end=NOON + 2 * MINUTE, now=NOON + MINUTE, width=366, names=150)

    (rect,) = tree(drawn).iter("rect")
    assert (rect.attrib["x"], rect.attrib["width"]) == ("150", "100")
    assert rows(drawn) == [["one", "runs", "2030-01-31 12:00:00", "", "60"]]


def test_a_span_that_is_over_before_the_picture_begins_is_in_the_table_only() -> None:
    lane = Lane("one", [Span(NOON - 2 * MINUTE, NOON - MINUTE, "run", "ran")])

    drawn = lanes("x", [lane], start=NOON, end=NOON + MINUTE)

    assert not list(tree(drawn).iter("rect"))
    assert len(rows(drawn)) == 1


def test_a_cell_is_higher_and_darker_the_more_there_is() -> None:
    cells = [Cell("a", NOON, 1), Cell("b", NOON, 100), Cell("c", NOON, 0)]

    drawn = heat("x", ["a", "b", "c"], [NOON, NOON + MINUTE], cells)

    low, high = tree(drawn).iter("rect")
    assert (low.attrib["class"], high.attrib["class"]) == ("heat level-1", "heat level-5")
    assert float(low.attrib["height"]) < float(high.attrib["height"])
    assert [row[0] for row in rows(drawn)] == ["a", "b"]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=40))
def test_a_sparkline_of_anything_stays_within_its_frame(values: list[float | None]) -> None:
    drawn = spark("x", values)

    places = [tuple(map(float, each.split())) for each in re.findall(r"[ML]([\d.e-]+ [\d.e-]+)", drawn)]
    assert all(0 <= x <= 120.01 and 0 <= y <= 24.01 for x, y in places)


@given(st.floats(0, 1e12))
def test_the_end_of_an_axis_is_round_and_not_far_above(value: float) -> None:
    top = nice_ceiling(value)

    assert top >= value * (1 - 1e-9)
    assert top <= max(1.0, value * 2.6)


@given(st.integers(1, 40_000_000), st.integers(0, 3600), st.integers(2, 10))
def test_ticks_are_few_round_and_within(seconds: int, offset: int, most: int) -> None:
    start = NOON + timedelta(seconds=offset)
    axis = TimeAxis(start, start + timedelta(seconds=seconds), 0, 100)

    ticks = list(axis.ticks(most))

    assert all(axis.holds(tick) and tick.microsecond == 0 for tick in ticks)
    assert len(ticks) <= max(most + 1, seconds / 2592000 + 1)


def spans(*told: tuple[int, int | None, str]) -> list[Span]:
    return [
        Span(NOON + start * MINUTE, None if end is None else NOON + end * MINUTE, kind, kind)
        for start, end, kind in told
    ]


def test_what_is_closer_than_a_picture_shows_is_drawn_as_one_and_what_differs_is_not() -> None:
    told = spans(
        (0, 1, "succeeded"),
        (2, 3, "succeeded"),
        (4, 5, "failed"),
        (6, 7, "succeeded"),
        (60, 61, "succeeded"),
        (62, None, "running"),
        (63, None, "running"),
    )

    drawn = condensed(told, 20 * MINUTE, "all")

    assert [((span.start - NOON) // MINUTE, span.label, span.href) for span in drawn] == [
        (0, "2 times succeeded", "all"),
        (4, "failed", None),
        (6, "succeeded", None),
        (60, "succeeded", None),
        (62, "running", None),
        (63, "running", None),
    ]
    assert drawn[0].end == told[1].end


def job(**changes: Any) -> Job[Any]:
    told: dict[str, Any] = {"id": 1, "task": "send", "queue": "mail", "state": "queued", "priority": 0, "attempt": 1}
    return Job(**{**told, "created_at": NOON, "due_at": NOON, **changes})


def failed(attempt: int, start: int, end: int, kind: str = "failed") -> AttemptError:
    return AttemptError(attempt, kind, "E", "", None, None, NOON + start * MINUTE, NOON + end * MINUTE)


def kinds(shown: Job[Any]) -> list[list[tuple[str, int]]]:
    return [[(span.kind, (span.start - NOON) // MINUTE) for span in lane.spans] for lane in attempt_lanes(shown)]


def test_attempts_stand_side_by_side_each_with_what_it_waited() -> None:
    errors = (failed(1, 1, 2), failed(2, 5, 6, "lost"))

    waits = kinds(job(errors=errors, attempt=2))
    runs = kinds(job(errors=errors, attempt=3, state="running", started_at=NOON + 8 * MINUTE))
    over = kinds(job(errors=errors, attempt=2, state="dead", finished_at=NOON + 6 * MINUTE))

    tried = [[("wait", 0), ("failed", 1)], [("wait", 2), ("lost", 5)]]
    assert waits == [*tried, [("wait", 6)]]
    assert runs == [*tried, [("wait", 6), ("running", 8)]]
    assert over == tried


def test_a_line_goes_from_nought_to_its_highest_and_its_table_tells_each_point() -> None:
    drawn = line("Waited", [Point(NOON, 0.0, "0 s"), Point(NOON + MINUTE, 8.0, "9 s")], unit="events", also="for")

    path = tree(drawn).find(".//path[@class='line']")
    assert path is not None
    assert path.get("d") == "M44 102L984 20.4"  # eight of ten, and the rest is the axis
    assert "8 events now, 8 at most" in drawn
    assert rows(drawn) == [["2030-01-31 12:00:00", "0", "0 s"], ["2030-01-31 12:01:00", "8", "9 s"]]


def test_a_line_of_nothing_says_so() -> None:
    assert "Nothing yet" in line("Waited", [], unit="events")


@pytest.mark.parametrize(("done", "width"), [(0.0, "0"), (0.25, "206"), (1.0, "824"), (1.7, "824"), (-1.0, "0")])
def test_a_track_is_filled_as_far_as_it_has_come(done: float, width: str) -> None:
    drawn = tracks("How far", [Track("build 1", done, "some", "running")])

    outline, filled = tree(drawn).iterfind(".//rect")
    assert (outline.get("width"), filled.get("width")) == ("824", width)


def test_a_time_in_which_nobody_led_stands_out_between_two_terms() -> None:
    who = (UUID(int=1), NOON)
    terms = [
        TermView("indexer", 1, "a", "host", 1, *who, NOON + MINUTE, "lost", "expired"),
        TermView("indexer", 2, "b", "host", 2, UUID(int=2), NOON + 3 * MINUTE, None, None, None),
    ]
    lane = LeaderLane("indexer", tuple(terms), ((NOON + MINUTE, NOON + 3 * MINUTE),))

    drawn = lanes("Who led when", term_lanes([lane]), start=NOON, end=NOON + 4 * MINUTE, now=NOON + 4 * MINUTE)

    kinds = [rect.get("class") for rect in tree(drawn).iterfind(".//rect")]
    assert kinds == ["span is-gap", "span is-lost", "span is-running"]
    assert [row[1] for row in rows(drawn)] == ["nobody led", "a, epoch 1, lost", "b, epoch 2, leads"]
    assert rows(drawn)[0][4] == "120"


@pytest.mark.parametrize(
    ("due", "seconds"),
    [
        ([100, 200], 60.0),  # a hundred in a minute, and a hundred are left
        ([10, 20, 30, 40], 60.0),
        ([50, *[60] * 14, 80, 9000], 1500.0),  # what was longer ago than a quarter of an hour says nothing
        ([200, 100], None),
        ([100, 100], None),
        ([0, 100], None),
        ([100], None),
    ],
)
def test_when_a_queue_will_be_empty_is_told_from_its_pace(due: list[int], seconds: float | None) -> None:
    samples = [Depth(NOON - n * MINUTE, "mail", each, 0, 0, 0, False) for n, each in enumerate(due)]

    assert drains(samples) == ({} if seconds is None else {"mail": pytest.approx(seconds)})


def test_of_a_queue_that_was_not_counted_to_its_end_nothing_is_foretold() -> None:
    samples = [Depth(NOON - n * MINUTE, "mail", 100 * (n + 1), 0, 0, 0, True) for n in range(3)]

    assert drains(samples) == {}
