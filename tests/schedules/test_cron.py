from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.schedules.reference import Pattern, clock, slots

from rota import ConfigurationError
from rota.schedules.cron import Cron

BERLIN = "Europe/Berlin"  # in 2027 from 02:00 to 03:00 on 28 March, and from 03:00 to 02:00 on 31 October


def local(cron: Cron, start: str, n: int) -> list[str]:
    """The next n slots, from this wall time on, as the wall clock shows them."""
    zone = ZoneInfo(cron.tz)
    at = datetime.fromisoformat(start).replace(tzinfo=zone).astimezone(UTC) - timedelta(seconds=1)
    found = []
    for _ in range(n):
        slot = cron.next(at)
        assert slot is not None
        assert slot > at
        assert slot.tzinfo is UTC
        at = slot
        found.append(slot.astimezone(zone).strftime("%d %H:%M%z"))
    return found


def test_a_time_in_the_gap_comes_once_at_its_end() -> None:
    assert local(Cron("0 2 * * *", BERLIN), "2027-03-27", 3) == ["27 02:00+0100", "28 03:00+0200", "29 02:00+0200"]


def test_times_in_the_gap_and_at_its_end_come_once() -> None:
    assert local(Cron("0,30 2,3 * * *", BERLIN), "2027-03-28", 3) == [
        "28 03:00+0200",
        "28 03:30+0200",
        "29 02:00+0200",
    ]


def test_a_time_in_the_gap_is_skipped_if_asked() -> None:
    assert local(Cron("0 2 * * *", BERLIN, gap="skip"), "2027-03-27", 2) == ["27 02:00+0100", "29 02:00+0200"]


def test_a_time_in_the_overlap_comes_once_at_its_first() -> None:
    assert local(Cron("0 2 * * *", BERLIN), "2027-10-30", 3) == ["30 02:00+0200", "31 02:00+0200", "01 02:00+0100"]


def test_a_time_in_the_overlap_comes_twice_if_asked() -> None:
    cron = Cron("0,30 2 * * *", BERLIN, overlap="twice")

    assert local(cron, "2027-10-31", 5) == [
        "31 02:00+0200",
        "31 02:30+0200",
        "31 02:00+0100",
        "31 02:30+0100",
        "01 02:00+0100",
    ]


def test_asked_between_the_two_comings_it_does_not_give_the_first_again() -> None:
    between = datetime(2027, 10, 31, 1, 15, tzinfo=UTC)  # 02:15 for the second time

    assert Cron("30 2 * * *", BERLIN).next(between) == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


def test_an_interval_keeps_its_pace_through_the_overlap() -> None:
    assert local(Cron("*/30 * * * *", BERLIN), "2027-10-31 02:00", 5) == [
        "31 02:00+0200",
        "31 02:30+0200",
        "31 02:00+0100",
        "31 02:30+0100",
        "31 03:00+0100",
    ]


def test_an_interval_makes_up_for_nothing_after_the_gap() -> None:
    assert local(Cron("30 */2 * * *", BERLIN), "2027-03-28", 2) == ["28 00:30+0100", "28 04:30+0200"]


@pytest.mark.parametrize(("zone", "day"), [("America/Santiago", "2026-09-06"), ("Africa/Cairo", "2026-04-24")])
def test_a_midnight_that_does_not_exist_loses_no_day(zone: str, day: str) -> None:
    assert local(Cron("0 0 * * *", zone), f"{day} 01:00", 1)[0][:8] == f"{day[-2:]} 01:00"


def test_half_an_hour_of_lord_howe() -> None:
    cron = Cron("15 2 * * *", "Australia/Lord_Howe")

    assert local(cron, "2026-10-03", 3) == ["03 02:15+1030", "04 02:30+1100", "05 02:15+1100"]
    assert local(Cron("45 1 * * *", "Australia/Lord_Howe"), "2027-04-04", 2) == ["04 01:45+1100", "05 01:45+1030"]


def test_an_interval_loses_nothing_where_a_jump_is_off_the_hour() -> None:
    assert local(Cron("*/20 2 * * *", "Australia/Lord_Howe"), "2026-04-05", 4) == [
        "05 02:00+1030",
        "05 02:20+1030",
        "05 02:40+1030",
        "06 02:00+1030",
    ]
    assert local(Cron("0 * * * *", "Asia/Pyongyang"), "2018-05-04 23:00", 2) == ["04 23:00+0830", "05 00:00+0900"]
    assert local(Cron("30 */2 * * *", "America/St_Johns"), "2008-03-09", 2) == ["09 02:30-0230", "09 04:30-0230"]


def test_an_interval_does_not_come_at_a_midnight_that_does_not_exist() -> None:
    assert local(Cron("*/30 0 6 * *", "America/Santiago"), "2026-09-05", 2) == ["06 00:00-0300", "06 00:30-0300"]


def test_a_day_that_does_not_exist_is_made_up_for_when_it_is_over() -> None:
    assert local(Cron("0 9 * * *", "Pacific/Apia"), "2011-12-29", 3) == [
        "29 09:00-1000",
        "31 00:00+1400",
        "31 09:00+1400",
    ]


def test_six_fields_are_as_good_as_five() -> None:
    for five in ("0 2 * * *", "30 2 * * sun", "*/30 * * * *"):
        for start in ("2027-03-27", "2027-10-30"):
            assert local(Cron(f"0 {five}", BERLIN), start, 200) == local(Cron(five, BERLIN), start, 200)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/5 * * * *", ["01 00:00", "01 00:05", "01 00:10"]),
        ("0 */6 * * *", ["01 00:00", "01 06:00", "01 12:00"]),
        ("0 9 * * mon-fri", ["01 09:00", "04 09:00", "05 09:00"]),  # 1 January 2027 is a Friday
        ("0 0 13 * 5", ["01 00:00", "08 00:00", "13 00:00"]),  # the 13th or a Friday
        ("0 0 */2 * 5", ["01 00:00", "15 00:00", "29 00:00"]),  # with a star: both
        ("*/10 * * * * *", ["01 00:00:00", "01 00:00:10", "01 00:00:20"]),
        ("0 0 L * *", ["31 00:00", "28 00:00", "31 00:00"]),
        ("0 0 LW * *", ["29 00:00", "26 00:00", "31 00:00"]),
        ("0 0 * * 5L", ["29 00:00", "26 00:00", "26 00:00"]),
        ("0 0 * * friL", ["29 00:00", "26 00:00", "26 00:00"]),
        ("0 0 * * mon#2", ["11 00:00", "08 00:00", "08 00:00"]),
        ("0 0 ? * 7", ["03 00:00", "10 00:00", "17 00:00"]),
        ("0 0 ? JAN ?", ["01 00:00", "02 00:00", "03 00:00"]),
        ("5-5/10 * * * *", ["01 00:05", "01 01:05", "01 02:05"]),
        ("@hourly", ["01 00:00", "01 01:00", "01 02:00"]),
        ("@daily", ["01 00:00", "02 00:00", "03 00:00"]),
        ("@Midnight", ["01 00:00", "02 00:00", "03 00:00"]),
        ("@weekly", ["03 00:00", "10 00:00", "17 00:00"]),
        ("@monthly", ["01 00:00", "01 00:00", "01 00:00"]),
    ],
)
def test_expressions_mean_what_cron_means(expression: str, expected: list[str]) -> None:
    at = datetime(2026, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)
    found = []
    for _ in expected:
        slot = Cron(expression).next(at)
        assert slot is not None
        at = slot
        found.append(at.strftime("%d %H:%M:%S" if len(expected[0]) > 8 else "%d %H:%M"))

    assert found == expected


def test_leap_days_and_rarer_ones_are_found() -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)

    assert Cron("0 0 29 2 *").next(at) == datetime(2028, 2, 29, tzinfo=UTC)
    assert Cron("0 0 29 2 */7").next(at) == datetime(2032, 2, 29, tzinfo=UTC)  # a Sunday
    assert Cron("@yearly").next(at) == Cron("@annually").next(at) == datetime(2028, 1, 1, tzinfo=UTC)


def test_at_the_end_of_time_there_is_none() -> None:
    for zone in ("UTC", BERLIN, "Pacific/Kiritimati", "Etc/GMT+12"):
        last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

        assert Cron("0 2 * * *", zone).next(last) is None
        assert Cron("* * * * * *", zone).next(last) is None


MINUTES = st.sampled_from(["0", "30", "*", "*/30", "*/7", "15,45", "10-20/5", "59"])
HOURS = st.sampled_from(["0", "2", "*", "*/2", "1-3", "0,23", "2-22/4"])
DAYS = st.sampled_from(["*", "1", "L", "LW", "13", "*/2", "28-31", "1,L"])
MONTHS = st.sampled_from(["*", "mar-apr", "OCT,NOV", "2", "*/5"])
WEEKDAYS = st.sampled_from(["*", "sun", "5", "7", "mon-fri", "sun#1", "0L", "fri#2,1", "*/3"])
ZONES = st.sampled_from([BERLIN, "UTC", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    fields=st.tuples(MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS),
    zone=ZONES,
    day=st.sampled_from(["2027-03-27", "2027-10-30", "2026-03-07", "2026-10-31", "2027-04-03", "2028-02-28"]),
    gap=st.sampled_from(["run", "skip"]),
    overlap=st.sampled_from(["once", "twice"]),
)
@example(("30", "2", "*", "*", "*"), BERLIN, "2027-10-30", "run", "once")
@example(("0", "2", "*", "*", "*"), BERLIN, "2027-03-27", "skip", "twice")
def test_any_expression_comes_as_by_walking_the_clock(
    fields: tuple[str, ...], zone: str, day: str, gap: str, overlap: str
) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    end = start + timedelta(days=3)
    pattern = Pattern(" ".join(fields))
    walked = clock(ZoneInfo(zone), start - timedelta(days=1), end)
    expected = [slot for slot in slots(pattern, walked, gap, overlap) if slot >= start]
    cron = Cron(" ".join(fields), zone, gap=gap, overlap=overlap)  # type: ignore[arg-type]

    found = []
    at = cron.next(start - timedelta(microseconds=1))
    while at is not None and at < end:
        found.append(at)
        at = cron.next(at)

    assert found == expected
    assert cron.count(start - timedelta(microseconds=1), end - timedelta(microseconds=1)) == len(expected)
    assert cron.explain()


def test_a_thousand_fires_from_any_moment_between_do_not_drift() -> None:
    cron = Cron("*/5 * * * *", BERLIN)
    due = datetime(2027, 3, 28, tzinfo=UTC)
    for late in range(1000):  # asked from the run's moment, up to almost five minutes after the slot
        slot = cron.next(due + timedelta(milliseconds=late * 299))
        assert slot == due + timedelta(minutes=5)
        due = slot


def test_every_second_of_twenty_years_is_counted_by_the_day() -> None:
    start, end, began = datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC), time.process_time()

    assert Cron("* * * * * *", BERLIN).count(start, end) == (end - start) // timedelta(seconds=1)
    assert Cron("0 30 2 * * *", BERLIN).count(start, end) == (end - start).days
    assert time.process_time() - began < 2  # and not the seconds of the overlaps one by one, either


def test_h_is_the_same_for_a_name_and_spread_over_names() -> None:
    def minute(name: str, expression: str = "H * * * *") -> int:
        slot = Cron(expression, name=name).next(datetime(2027, 1, 1, tzinfo=UTC) - timedelta(seconds=1))
        assert slot is not None
        return slot.minute

    minutes = [minute(f"report-{number}") for number in range(2000)]

    assert minute("report-1") == minute("report-1", "0 H * * * *") == minutes[1]
    assert set(minutes) == set(range(60))
    assert max(minutes.count(each) for each in range(60)) < 70
    assert {minute(f"{number}", "H(10-12) * * * *") for number in range(100)} == {10, 11, 12}
    assert {minute(f"{number}", "H(0-29)/10 * * * *") for number in range(200)} == set(range(10))


def test_h_with_a_step_keeps_its_pace() -> None:
    cron = Cron("H/15 * * * *", BERLIN, name="report")
    at = cron.next(datetime(2027, 10, 30, 23, tzinfo=UTC))
    for _ in range(40):
        assert at is not None
        assert cron.next(at) == at + timedelta(minutes=15)
        at = cron.next(at)

    assert Cron("H/15 2 * * *", name="report").is_interval
    assert not Cron("H 2 * * *", name="report").is_interval


def test_it_explains_itself_in_english() -> None:
    assert Cron("0 9 * * mon-fri", BERLIN).explain() == "At 09:00 on Monday through Friday, Europe/Berlin time"
    assert Cron("@daily").explain() == "At 00:00 every day, UTC time"


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("61 * * * *", "the minute cannot be '61': 61 is not within 0-59"),
        ("0 24 * * *", "the hour cannot be '24': 24 is not within 0-23"),
        ("1,61 * * * *", "the minute cannot be '61'"),
        ("70 0 0 * * *", "the second cannot be '70'"),
        ("* * 0 * *", "the day of month cannot be '0': 0 is not within 1-31"),
        ("* * * 13 *", "the month cannot be '13'"),
        ("* * * * 8", "the day of week cannot be '8': 8 is not within 0-7"),
        ("10-5 * * * *", "runs backwards; to go round the end write 10-59,0-5"),
        ("0 0 * * fri-mon", "runs backwards; to go round the end write FRI-7,1-MON"),
        ("*/0 * * * *", "after the / comes a step"),
        ("*/x * * * *", "after the / comes a step"),
        ("*/90 * * * *", "there are 60 values, so a step of 90 means one of them"),
        ("1,,2 * * * *", "nothing between two commas"),
        ("0 0 15W * *", "the weekday nearest to a day is not known here; LW"),
        ("0 0 * * fritag", "the day of week cannot be 'FRITAG': it takes *, numbers 0-7"),
        ("0 0 * feber *", "a name such as jan"),
        ("1-2-3 * * * *", "one range with at most one step"),
        ("? * * * *", "the minute cannot be '?'"),
        ("0 0 30 2 *", "it never comes: no date has day of month '30', month '2'"),
        ("0 0 */30 * 1#3", "it never comes"),
        ("* * * *", "it has 4 fields. Write 5"),
        ("0 0 12 * * ? 2027", "it has 7 fields"),
        ("", "it is text of 5 or 6 fields"),
        (None, "it is text of 5 or 6 fields"),
        ("٣ * * * *", "not plain ASCII"),
        ("9" * 5000 + " * * * *", "at most 1000 characters"),
        ("9" * 500 + " * * * *", "is not within 0-59"),
        ("@reboot", "@reboot is no alias"),
        ("@every 5m", "For a fixed pace use every=."),
        ("H * * * *", "H is chosen by the schedule's name"),
    ],
)
def test_a_wrong_expression_is_refused_with_field_and_reason(expression: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Cron(expression)

    assert told in str(refused.value)
    assert str(refused.value).startswith("cron=")


@pytest.mark.parametrize("field", ["H(", "HH", "H(5-70)", "H(20-10)", "H/0", "H/61", "H(0-9)/11", "H-5"])
def test_a_wrong_h_is_refused(field: str) -> None:
    with pytest.raises(ConfigurationError, match="the minute cannot be"):
        Cron(f"{field} * * * *", name="report")


@given(st.text(st.sampled_from("0159*/-,#LWHJANMON?() @"), max_size=24))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        cron = Cron(text, name="any")
        assert cron.next(datetime(2027, 1, 1, tzinfo=UTC))
        assert cron.explain()


@pytest.mark.parametrize(
    "zone", ["Europe/Berln", "Europe", "../etc/passwd", "", "localtime", "right/UTC", None, "a\0b"]
)
def test_a_wrong_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="no such zone"):
        Cron("0 2 * * *", zone)


def test_the_nearest_zone_is_named() -> None:
    with pytest.raises(ConfigurationError, match="did you mean Europe/Berlin"):
        Cron("0 2 * * *", "Europe/Berln")


def test_wrong_policies_and_instants_without_a_zone_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="gap='later': it is 'run' or 'skip'"):
        Cron("0 2 * * *", gap="later")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="overlap='thrice'"):
        Cron("0 2 * * *", overlap="thrice")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a datetime with a time zone"):
        Cron("0 2 * * *").next(datetime(2027, 1, 1))
