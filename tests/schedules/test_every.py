from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import ConfigurationError
from rota.schedules.every import Delay, Every, Once, interval_of

ANCHOR = datetime(2027, 1, 31, 9, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def local(every: Every, after: datetime, n: int) -> list[str]:
    found = []
    for _ in range(n):
        slot = every.next(after)
        assert slot is not None
        assert slot > after
        after = slot
        found.append(slot.astimezone(ZoneInfo(every.tz)).strftime("%m-%d %H:%M%z"))
    return found


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("90 minutes", 5400),
        ("1 day", 86400),
        ("2w", 1209600),
        ("1 week 1 day", 691200),
        (0.001, 0.001),
        (45, 45),
        (timedelta(hours=2), 7200),
    ],
)
def test_intervals_as_people_write_them(written: str, seconds: float) -> None:
    assert interval_of(written).length.total_seconds() == seconds


def test_months_and_years_are_their_own_kind() -> None:
    assert interval_of("1 month").months == interval_of("1mo").months == 1
    assert interval_of("1y").months == 12
    assert interval_of("1 year 6 months").months == 18
    assert interval_of("3 months").is_wall_clock


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("0s", "from 1 ms to 100 years"),
        ("0.5ms", "from 1 ms to 100 years"),
        ("101 years", "from 1 ms to 100 years"),
        ("0 months", "from 1 ms to 100 years"),
        (-1, "from 1 ms to 100 years"),
        ("1 fortnight", "'fortnight' is no unit; there are milliseconds, seconds"),
        ("1 month 2 days", "not mixed with shorter units"),
        ("1.5 months", "whole numbers"),
        ("9" * 4999 + " months", "whole numbers"),
        ("9" * 4999 + "s", "it is a timedelta"),
        ("1M", "it is a timedelta, a number of seconds, or text"),
        ("daily", "it is a timedelta"),
        ("", "it is a timedelta"),
        (None, "it is a timedelta"),
        (True, "it is a timedelta"),
        (float("nan"), "it is a timedelta"),
    ],
)
def test_a_wrong_interval_is_refused_with_its_reason(written: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match="every=") as refused:
        Every(written, ANCHOR)

    assert told in str(refused.value)


@given(
    interval=st.timedeltas(timedelta(milliseconds=1), timedelta(days=40)),
    away=st.timedeltas(timedelta(days=-9000), timedelta(days=9000)),
)
def test_elapsed_time_stays_on_the_anchors_grid(interval: timedelta, away: timedelta) -> None:
    after = ANCHOR + away
    slot = Every(interval, ANCHOR).next(after)

    assert slot is not None
    assert after < slot <= after + interval
    assert not (slot - ANCHOR) % interval


def test_a_thousand_late_fires_do_not_drift() -> None:
    every, due = Every("7s", ANCHOR), ANCHOR
    for late in range(1000):
        slot = every.next(due + timedelta(milliseconds=7 * late - late // 2))
        assert slot == due + timedelta(seconds=7)
        due = slot

    assert due == ANCHOR + timedelta(seconds=7000)


def test_hours_are_elapsed_and_days_are_the_wall_clocks() -> None:
    eve = datetime(2027, 3, 27, 1, tzinfo=UTC)  # 02:00 in Berlin, the day before the gap

    assert local(Every("12h", eve, "Europe/Berlin"), eve, 3) == [
        "03-27 14:00+0100",
        "03-28 03:00+0200",
        "03-28 15:00+0200",
    ]
    assert local(Every("1 day", eve, "Europe/Berlin"), eve, 2) == ["03-28 03:00+0200", "03-29 02:00+0200"]
    assert local(Every("24h", eve, "Europe/Berlin"), eve, 2) == ["03-28 03:00+0200", "03-29 02:00+0200"]
    assert local(Every("1 day", eve), eve, 2) == ["03-28 01:00+0000", "03-29 01:00+0000"]


def test_a_day_in_the_overlap_comes_at_its_first() -> None:
    eve = datetime(2027, 10, 30, 0, 30, tzinfo=UTC)  # 02:30 in Berlin
    every = Every("1 day", eve, "Europe/Berlin")

    assert local(every, eve, 2) == ["10-31 02:30+0200", "11-01 02:30+0100"]
    assert every.next(datetime(2027, 10, 31, 1, 15, tzinfo=UTC)) == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


def test_the_31st_falls_to_the_last_day_and_comes_back() -> None:
    assert local(Every("1 month", ANCHOR), ANCHOR, 4) == [
        "02-28 09:30+0000",
        "03-31 09:30+0000",
        "04-30 09:30+0000",
        "05-31 09:30+0000",
    ]
    leap = Every("1y", datetime(2028, 2, 29, tzinfo=UTC))
    assert leap.next(datetime(2029, 1, 1, tzinfo=UTC)) == datetime(2029, 2, 28, tzinfo=UTC)
    assert leap.next(datetime(2032, 1, 1, tzinfo=UTC)) == datetime(2032, 2, 29, tzinfo=UTC)


@settings(max_examples=50)
@given(
    months=st.integers(1, 30),
    away=st.timedeltas(timedelta(days=-4000), timedelta(days=4000)),
    day=st.integers(0, 364),
)
def test_months_are_those_of_a_walk_from_the_anchor(months: int, away: timedelta, day: int) -> None:
    anchor = ANCHOR + timedelta(days=day)
    every = Every(f"{months} months", anchor, "Europe/Berlin")
    after = anchor + away
    wall = anchor.astimezone(BERLIN)
    walked = []
    for count in range(-160, 161):  # at 10:30, when no clock jumps
        year, month = divmod(wall.year * 12 + wall.month - 1 + count * months, 12)
        if 1900 < year < 2200:
            day = min(wall.day, monthrange(year, month + 1)[1])
            walked.append(wall.replace(year=year, month=month + 1, day=day))

    assert every.next(after) == min(each for each in walked if each > after)


def test_a_year_of_milliseconds_is_counted_at_once() -> None:
    every = Every("1ms", ANCHOR)

    assert every.count(ANCHOR, ANCHOR + timedelta(days=365)) == 365 * 86_400_000
    assert every.count(ANCHOR, ANCHOR) == every.count(ANCHOR, ANCHOR - timedelta(days=1)) == 0
    assert Every("1 day", ANCHOR, "Europe/Berlin").count(ANCHOR, ANCHOR + timedelta(days=365)) == 365


def test_at_the_end_of_time_there_is_none() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

    assert [Every(each, ANCHOR).next(last) for each in ("1ms", "1 day", "1 month", "1y")] == [None] * 4


def test_a_delay_counts_from_the_end_of_the_last_run() -> None:
    assert Delay("90s").next(ANCHOR) == ANCHOR + timedelta(seconds=90)
    assert Delay("1 month").next(ANCHOR) == datetime(2027, 2, 28, 9, 30, tzinfo=UTC)


def test_a_day_of_a_delay_is_24_hours_whatever_the_clocks_do() -> None:
    before_the_jump = datetime(2026, 3, 28, 12, tzinfo=UTC)

    assert Delay("1 day", "Europe/Berlin").next(before_the_jump) == before_the_jump + timedelta(hours=24)
    assert Every("1 day", before_the_jump, "Europe/Berlin").next(before_the_jump) == before_the_jump + timedelta(
        hours=23
    )
    assert Delay("1 month", "Europe/Berlin").next(before_the_jump) == datetime(2026, 4, 28, 12, tzinfo=UTC)


def test_once_is_once() -> None:
    once = Once(ANCHOR)

    assert once.next(ANCHOR - timedelta(microseconds=1)) == ANCHOR
    assert once.next(ANCHOR) is None


@pytest.mark.parametrize("wrong", [datetime(2027, 1, 1), "2027-01-01", None])
def test_an_anchor_or_moment_is_an_instant(wrong: datetime) -> None:
    with pytest.raises(ConfigurationError, match="anchor=.*a datetime with a time zone"):
        Every("1h", wrong)
    with pytest.raises(ConfigurationError, match="at=.*a datetime with a time zone"):
        Once(wrong)


def test_they_explain_themselves() -> None:
    assert Every("1h 30m", ANCHOR).explain() == "Every 1 hour 30 minutes, counted from 2027-01-31 09:30:00 UTC"
    assert Every("1 day", ANCHOR, "Europe/Berlin").explain() == (
        "Every day at 10:30:00, counted from 2027-01-31, Europe/Berlin time"
    )
    assert Every("250ms", ANCHOR).explain().startswith("Every 250 ms,")
    assert Every("18 months", ANCHOR).explain().startswith("Every 18 months at")
    assert Delay("1h").explain() == "1 hour after the last run has ended"
    assert Delay("2 days").explain() == "2 days after the last run has ended"
    assert Once(ANCHOR).explain() == "Once, at 2027-01-31 09:30:00 UTC"
