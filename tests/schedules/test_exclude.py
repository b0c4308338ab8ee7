from __future__ import annotations

from datetime import date, datetime, time, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import ConfigurationError
from rota.schedules.exclude import WEEKDAYS, Exclude


def test_each_part_leaves_out_what_it_names() -> None:
    exclude = Exclude(
        weekdays=("Saturday", "sun"),
        dates=("2026-12-25", date(2027, 5, 3)),
        ranges=(("2027-02-01", "2027-02-03"),),
        windows=(("22:00", "06:00"), ("12:00", "12:30")),
    )

    covered = [
        "2027-01-02 12:00",  # a Saturday
        "2026-12-25 12:00",
        "2027-05-03 12:00",
        "2027-02-01 09:00",
        "2027-02-03 21:59:59",  # the range's last day
        "2027-01-04 22:00",
        "2027-01-05 00:00",
        "2027-01-05 05:59:59.999999",
        "2027-01-05 12:00",
    ]
    free = ["2027-01-05 06:00", "2027-01-05 12:30", "2027-01-05 21:59:59", "2027-02-04 09:00", "2027-01-04 09:00"]
    assert [each for each in covered if not exclude.covers(datetime.fromisoformat(each))] == []
    assert [each for each in free if exclude.covers(datetime.fromisoformat(each))] == []


def test_nothing_leaves_out_nothing() -> None:
    assert not Exclude()
    assert not Exclude().covers(datetime(2027, 1, 2))
    assert Exclude(windows=[("12:00", "24:00")]).windows == ((time(12), time(0)),)


def test_it_comes_back_from_json_as_it_was() -> None:
    exclude = Exclude(
        weekdays=("sun", "sat"),
        dates=("2026-12-25",),
        ranges=(("2027-02-01", "2027-02-03"),),
        windows=(("22:00", "06:00:30"),),
    )

    assert exclude.as_json() == {
        "weekdays": ["sat", "sun"],
        "dates": ["2026-12-25"],
        "ranges": [["2027-02-01", "2027-02-03"]],
        "windows": [["22:00", "06:00:30"]],
    }
    assert Exclude.from_json(exclude.as_json()) == exclude
    assert Exclude.from_json(None) == Exclude.from_json({}) == Exclude()


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"weekdays": ["caturday"]}, "exclude weekdays: 'caturday' cannot be one, a weekday is one of mon, tue"),
        ({"weekdays": "sat"}, "exclude weekdays='sat': it is a list, even of one"),
        ({"weekdays": [6]}, "exclude weekdays: 6"),
        ({"dates": ["2027-02-30"]}, "exclude dates: '2027-02-30' cannot be one, a date is written as 2026-12-25: day"),
        ({"dates": ["20270201"]}, "exclude dates"),
        ({"dates": [datetime(2027, 1, 1)]}, "exclude dates"),
        ({"ranges": [["2027-02-03", "2027-02-01"]]}, "the last date is before the first"),
        ({"ranges": ["2027-02-03"]}, "a range has a first and a last date"),
        ({"ranges": [["2027-02-03", "9999-12-31"]]}, "give the schedule an end_at"),
        ({"windows": [["22:00"]]}, "a window has a begin and an end"),
        ({"windows": [["22:00", "25:00"]]}, "a time of day is written as 22:00"),
        ({"windows": [["22:00", "06:00+01:00"]]}, "without a zone"),
        ({"windows": [["06:00", "06:00"]]}, "it begins where it ends"),
        ({"holidays": []}, "exclude has holidays: there are weekdays, dates, ranges, windows"),
        (["sat"], "it is an object with some of weekdays"),
        ({"dates": None}, "exclude dates=None: it is a list"),
    ],
)
def test_a_wrong_part_is_named(parts: object, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Exclude.from_json(parts)

    assert told in str(refused.value)


TIMES = st.builds(time, st.integers(0, 23), st.sampled_from([0, 30]))


@settings(max_examples=80, derandomize=True)
@given(
    weekdays=st.lists(st.sampled_from(WEEKDAYS), max_size=3),
    windows=st.lists(st.tuples(TIMES, TIMES).filter(lambda both: both[0] != both[1]), max_size=3),
    days=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=2),
    minutes=st.integers(0, 7 * 24 * 60),
)
def test_the_answer_stays_the_same_until_the_turn(
    weekdays: list[str], windows: list[tuple[time, time]], days: list[tuple[int, int]], minutes: int
) -> None:
    monday = date(2027, 1, 4)
    ranges = [(monday + timedelta(first), monday + timedelta(first + more)) for first, more in days]
    exclude = Exclude(weekdays, (), ranges, windows)
    wall = datetime.combine(monday, time()) + timedelta(minutes=minutes)
    turn = exclude.turn(wall)

    steps = int((turn - wall) / timedelta(minutes=15))
    answers = {exclude.covers(wall + count * timedelta(minutes=15)) for count in range(steps)}
    assert turn > wall
    assert answers <= {exclude.covers(wall)}
    assert exclude.covers(turn - timedelta(microseconds=1)) == exclude.covers(wall)


def test_it_explains_itself() -> None:
    exclude = Exclude(weekdays=("sat",), dates=("2026-12-25",), windows=(("22:00", "06:00"),))

    assert exclude.explain() == "except sat, 2026-12-25, 22:00 to 06:00"
