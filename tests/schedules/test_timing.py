from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import ConfigurationError
from rota.schedules.cron import Cron
from rota.schedules.every import Delay, Every, Once
from rota.schedules.exclude import Exclude
from rota.schedules.timing import Timing, jittered

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)  # a Friday
BERLIN = "Europe/Berlin"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """From where a trigger was asked for its next slot, each time."""
    asked: list[datetime] = []

    def noted(find: Callable[[Any, datetime], datetime | None]) -> Callable[[Any, datetime], datetime | None]:
        return lambda self, after: asked.append(after) or find(self, after)  # type: ignore[func-returns-value]

    for trigger in (Cron, Every):
        monkeypatch.setattr(trigger, "next", noted(trigger.next))
    return asked


def test_start_is_included_and_end_is_not() -> None:
    timing = Timing(Every("1h", NOW), start_at=NOW + 2 * HOUR, end_at=NOW + 5 * HOUR)

    assert timing.preview(NOW - DAY) == [NOW + 2 * HOUR, NOW + 3 * HOUR, NOW + 4 * HOUR]
    assert timing.next(NOW + 4 * HOUR) is None
    assert timing.count(NOW - DAY, NOW + DAY) == 3


def test_between_takes_its_start_and_not_its_end() -> None:
    timing = Timing(Cron("0 * * * *"))

    assert timing.between(NOW, NOW + 3 * HOUR) == [NOW, NOW + HOUR, NOW + 2 * HOUR]
    assert timing.between(NOW, NOW + DAY, limit=2) == [NOW, NOW + HOUR]
    assert timing.between(NOW, NOW) == []


def test_slots_that_are_left_out_do_not_exist() -> None:
    timing = Timing(Cron("0 9 * * *", BERLIN), Exclude(weekdays=("sat", "sun"), dates=("2027-01-05",)), BERLIN)

    days = [slot.astimezone(ZoneInfo(BERLIN)).strftime("%a %d %H") for slot in timing.preview(NOW, 3)]
    assert days == ["Mon 04 09", "Wed 06 09", "Thu 07 09"]


def test_a_rest_is_stepped_over_however_many_slots_there_would_be() -> None:
    timing = Timing(Every("1ms", NOW), Exclude(ranges=(("2027-01-02", "2028-12-31"),)))

    assert timing.next(NOW + DAY) == datetime(2029, 1, 1, tzinfo=UTC)
    assert timing.count(NOW, datetime(2029, 1, 1, 1, tzinfo=UTC)) == 12 * 3_600_000 - 1 + 3_600_000 + 1


@pytest.mark.parametrize(
    "exclude",
    [
        Exclude(weekdays=("mon", "tue", "wed", "thu", "fri", "sat", "sun")),
        Exclude(windows=(("00:00", "12:00"), ("12:00", "00:00"))),
    ],
)
@pytest.mark.parametrize(
    "trigger", [Every("1ms", NOW), Cron("* * * * * *", BERLIN), Cron("0 0 29 2 *"), Every("1y", NOW)]
)
def test_an_exclusion_that_leaves_nothing_ends_the_search(
    trigger: Every | Cron, exclude: Exclude, looks: list[datetime]
) -> None:
    assert Timing(trigger, exclude, BERLIN).next(NOW) is None
    assert len(looks) <= 4_000


def test_leap_days_left_out_for_a_century_end_the_search(looks: list[datetime]) -> None:
    assert Timing(Cron("0 0 29 2 *"), Exclude(windows=(("00:00", "01:00"),))).next(NOW) is None
    assert len(looks) <= 26  # to the last of them there is would be two thousand


def test_an_excluded_hour_that_comes_twice_is_left_out_twice() -> None:
    timing = Timing(Cron("*/30 * * * *", BERLIN), Exclude(windows=(("02:30", "03:00"),)), BERLIN)

    found = timing.between(datetime(2027, 10, 31, tzinfo=UTC), datetime(2027, 10, 31, 2, 1, tzinfo=UTC))
    assert [f"{slot:%H:%M}" for slot in found] == ["00:00", "01:00", "02:00"]  # 02:00, 02:00 again, 03:00


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    trigger=st.sampled_from(
        [
            Cron("*/20 * * * *", BERLIN),
            Cron("0,30 1-3 * * *", BERLIN),
            Cron("15 2 * * *", "Australia/Lord_Howe"),
            Every("7m", NOW),
            Every("1 day", NOW, BERLIN),
        ]
    ),
    exclude=st.sampled_from(
        [
            Exclude(),
            Exclude(weekdays=("sun",)),
            Exclude(windows=(("22:00", "02:20"),)),
            Exclude(windows=(("02:30", "02:45"), ("02:50", "03:10")), dates=("2027-10-30",)),
        ]
    ),
    zone=st.sampled_from([BERLIN, "Australia/Lord_Howe", "America/Havana"]),
    start=st.sampled_from(["2027-03-27", "2027-10-30", "2027-04-03", "2027-11-06", "2027-03-13"]),
    minutes=st.integers(0, 3000),
    n=st.integers(1, 200),
)
def test_counting_and_looking_back_agree_with_visiting_each(
    trigger: Cron | Every, exclude: Exclude, zone: str, start: str, minutes: int, n: int
) -> None:
    timing = Timing(trigger, exclude, zone)
    after = datetime.fromisoformat(start).replace(tzinfo=UTC)
    upto = after + timedelta(minutes=minutes)
    visited = []
    slot = trigger.next(after)
    while slot is not None and slot <= upto:
        if not exclude.covers(slot.astimezone(ZoneInfo(zone)).replace(tzinfo=None)):
            visited.append(slot)
        slot = trigger.next(slot)

    assert timing.between(after + timedelta(microseconds=1), upto + timedelta(microseconds=1)) == visited
    assert timing.count(after, upto) == len(visited)
    assert timing.newest(after, upto, n) == visited[-n:]


def test_a_stored_schedule_gives_its_timing() -> None:
    cron = {"cron": "H 2 * * *", "tz": BERLIN, "gap": "skip", "overlap": "twice", "exclude": {"weekdays": ["sat"]}}
    timing = Timing.from_json("cron", cron, name="report")

    assert timing == Timing(Cron("H 2 * * *", BERLIN, "report", "skip", "twice"), Exclude(weekdays=("sat",)), BERLIN)
    assert Timing.from_json("every", {"every": "1h", "anchor": "2027-01-01T12:00:00Z", "tz": None}).trigger == Every(
        "1h", NOW
    )
    assert Timing.from_json("delay", {"every": "1h"}).trigger == Delay("1h")
    assert Timing.from_json("once", {"at": NOW, "end_at": "2028-01-01T00:00:00+00:00"}).trigger == Once(NOW)
    assert [Timing.from_json(kind, {}).next(NOW) for kind in ("after", "event", "manual")] == [None] * 3


@pytest.mark.parametrize(
    ("kind", "spec", "told"),
    [
        ("hourly", {}, "kind='hourly': there are cron, every, delay, once, after, event, manual"),
        ("cron", {}, "cron is missing: a schedule of kind 'cron' needs it"),
        ("cron", {"cron": "61 * * * *"}, "the minute cannot be '61'"),
        ("cron", {"cron": "* * * * *", "tz": "Mars/Olympus"}, "tz='Mars/Olympus'"),
        ("cron", {"cron": "* * * * *", "gap": 1}, "gap=1"),
        ("every", {"every": "1h"}, "anchor is missing"),
        ("every", {"every": "1h", "anchor": "yesterday"}, "anchor='yesterday'"),
        ("once", {"at": "2027-01-01T00:00:00"}, "an instant is a datetime with a time zone"),
        ("manual", {"exclude": [1]}, "exclude=[1]"),
        ("manual", {"start_at": NOW, "end_at": NOW}, "no slot lies between them"),
        ("manual", {"start_at": "soon"}, "start_at='soon'"),
    ],
)
def test_a_broken_row_is_refused_with_what_is_wrong(kind: str, spec: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Timing.from_json(kind, spec)

    assert told in str(refused.value)


def test_instants_that_are_skipped_are_no_slots_and_others_among_them_mean_nothing() -> None:
    overlap = datetime(2026, 10, 25, 1, 30, tzinfo=UTC).astimezone(ZoneInfo(BERLIN))  # the second 02:30
    words = {"cron": "30 * * * *", "tz": BERLIN, "exclude": {"windows": [["04:00", "05:00"]]}}
    begin, end = datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 25, 6, tzinfo=UTC)
    strays = [begin, begin + timedelta(hours=3, minutes=30)]  # no slot, and one that is excluded

    every = Timing.from_json("cron", words).between(begin, end)
    timing = Timing.from_json("cron", {**words, "skipped": [overlap, *strays]})

    assert timing.between(begin, end) == [each for each in every if each != overlap.astimezone(UTC)]
    assert timing.count(begin, end) == len(every) - 1 == 4
    assert timing.newest(begin, end, 9) == timing.between(begin, end)


def test_the_first_and_the_last_years_of_all_do_no_harm() -> None:
    begin = datetime(1, 1, 1, tzinfo=UTC)
    daily = Timing(Cron("0 9 * * *"), Exclude(ranges=[("2020-01-01", "9999-12-29")]))

    assert Timing(Cron("0 9 * * *")).between(begin, datetime(1, 1, 2, tzinfo=UTC)) == [begin.replace(hour=9)]
    assert daily.next(NOW) is None
    assert Timing(Every("100 years", NOW)).next(datetime(8990, 1, 1, tzinfo=UTC)) is None
    with pytest.raises(ConfigurationError, match="after="):
        daily.next(datetime(1, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")))


def test_jitter_is_stable_spread_and_below_its_bound() -> None:
    jitter = timedelta(seconds=10)
    parts = [jittered(f"report-{number}", NOW, jitter) - NOW for number in range(1000)]

    assert jittered("report-1", NOW, jitter) == NOW + parts[1]
    assert jittered("report-1", NOW.astimezone(ZoneInfo(BERLIN)), jitter) == NOW + parts[1]
    assert jittered("report-1", NOW + DAY, jitter) != NOW + DAY + parts[1]
    assert all(timedelta() <= part < jitter for part in parts)
    assert 60 < sum(part < jitter / 10 for part in parts) < 140
    assert jittered("report-1", NOW, timedelta()) == NOW


def test_it_explains_itself() -> None:
    timing = Timing(Cron("0 9 * * *", BERLIN), Exclude(weekdays=("sat",)), BERLIN, start_at=NOW)

    assert timing.explain() == "At 09:00 every day, Europe/Berlin time, except sat, from 2027-01-01 12:00:00 UTC"
