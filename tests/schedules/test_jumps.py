"""What is told of the clock changes to come, before anyone is surprised by them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rota.schedules.cron import Cron
from rota.schedules.every import Delay, Every
from rota.schedules.exclude import Exclude
from rota.schedules.jumps import jumps, upsets
from rota.schedules.timing import Timing, Trigger

BERLIN = "Europe/Berlin"
HOWE = "Australia/Lord_Howe"
BEGIN = datetime(2026, 9, 1, 0, 30, tzinfo=UTC)
END = BEGIN + timedelta(days=270)

BACK = "2026-10-25: the clock goes back from 03:00 to 02:00. "
FORWARD = "2027-03-28: the clock goes forward from 02:00 to 03:00. "


def told(trigger: Trigger, exclude: Exclude | None = None) -> list[str]:
    tz = getattr(trigger, "tz", "UTC")
    return [each.words for each in upsets(Timing(trigger, exclude or Exclude(), tz), BEGIN, END)]


def test_the_jumps_of_a_zone_are_found_to_the_second() -> None:
    found = [(each.at, each.leaves, each.enters) for each in jumps(BERLIN, BEGIN, END)]

    assert found == [
        (datetime(2026, 10, 25, 1, tzinfo=UTC), datetime(2026, 10, 25, 3), datetime(2026, 10, 25, 2)),
        (datetime(2027, 3, 28, 1, tzinfo=UTC), datetime(2027, 3, 28, 2), datetime(2027, 3, 28, 3)),
    ]
    assert list(jumps("UTC", BEGIN, END)) == []


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        (
            Cron("30 2 * * *", BERLIN),
            [
                BACK + "02:30 comes twice: it runs at the first (00:30 UTC), and with dst_overlap='twice' "
                "at both (00:30, and 01:30 UTC).",
                FORWARD + "02:30 does not exist: it runs at 03:00 (01:00 UTC) instead, and with dst_gap='skip' not at all.",
            ],
        ),
        (
            Cron("30 2 * * *", BERLIN, gap="skip", overlap="twice"),
            [
                BACK + "02:30 comes twice: it runs at both (00:30, and 01:30 UTC), and with dst_overlap='once' "
                "at the first (00:30 UTC) alone.",
                FORWARD + "02:30 does not exist: it does not run then, and with dst_gap='run' at 03:00 (01:00 UTC) instead.",
            ],
        ),
        (Cron("0 9 * * *", BERLIN), []),
        (Cron("30 2 * * *"), []),
    ],
)  # fmt: skip
def test_a_time_of_day_tells_what_the_rules_make_of_it_and_what_others_would(cron: Cron, expected: list[str]) -> None:
    assert told(cron) == expected


def test_what_is_told_is_what_happens() -> None:
    slots = Timing(Cron("30 2 * * *", BERLIN), tz=BERLIN).between(BEGIN, END, 1000)

    assert datetime(2026, 10, 25, 0, 30, tzinfo=UTC) in slots
    assert datetime(2026, 10, 25, 1, 30, tzinfo=UTC) not in slots
    assert datetime(2027, 3, 28, 1, tzinfo=UTC) in slots


def test_a_slot_at_the_end_of_the_gap_stands_for_those_inside() -> None:
    (_, forward) = told(Cron("0,30 2,3 * * *", BERLIN))

    assert forward == FORWARD + "02:00, 02:30 do not exist: the run at 03:00 (01:00 UTC) is the only one."


def test_what_is_excluded_is_not_upset() -> None:
    assert told(Cron("30 2 * * *", BERLIN), Exclude(weekdays=["sun"])) == []
    (_, forward) = told(Cron("30 2 * * *", BERLIN), Exclude(windows=[("03:00", "04:00")]))
    assert forward == FORWARD + "02:30 does not exist, and what would run instead is excluded."


def test_an_interval_is_told_of_only_where_it_gets_out_of_step() -> None:
    assert told(Cron("*/30 * * * *", BERLIN)) == []
    assert told(Cron("0 */2 * * *", BERLIN)) == [
        BACK + "02:00 comes twice, and an interval runs each time: the step is 1 h.",
        FORWARD + "02:00 does not exist, and an interval makes up for nothing: the step is 3 h.",
    ]
    assert "02:00, 02:20 do not exist, and an interval makes up for nothing: the step is 30 min" in told(
        Cron("*/20 * * * *", HOWE)
    )[0]  # fmt: skip


def test_days_are_the_wall_clocks_and_hours_are_elapsed() -> None:
    assert told(Every("1 day", BEGIN, BERLIN)) == [
        BACK + "02:30 comes twice: it runs at the first (00:30 UTC).",
        FORWARD + "02:30 does not exist: it runs at 03:00 (01:00 UTC) instead.",
    ]
    assert told(Every("30m", BEGIN, BERLIN)) == []
    (back, forward) = told(Every("6h", BEGIN, BERLIN))
    assert back.startswith(BACK + "From then on it comes 1 h earlier by the wall clock")
    assert forward.startswith(FORWARD + "From then on it comes 1 h later by the wall clock")
    assert told(Delay("1 day", BERLIN)) == []
