from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import ConfigurationError
from rota.schedules.cron import Cron
from rota.schedules.every import Delay, Every, Once
from rota.schedules.exclude import Exclude
from rota.schedules.misfire import Decision, Misfire, decide
from rota.schedules.timing import Timing, jittered

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
BY_MINUTE = Timing(Cron("* * * * *", "Europe/Berlin"))


def test_a_slot_on_time_runs_and_the_next_is_waited_for() -> None:
    for misfire in get_args(Misfire):
        assert decide(BY_MINUTE, NOON, NOON + SECOND, misfire=misfire) == Decision((NOON,), 0, NOON + MINUTE)


def test_before_its_time_nothing_happens() -> None:
    assert decide(BY_MINUTE, NOON, NOON - SECOND) == Decision((), 0, NOON)


@pytest.mark.parametrize(
    ("misfire", "fired", "missed"),
    [("once", 1, 180), ("skip", 0, 181), ("all", 181, 0)],
)
def test_after_three_hours_each_policy_has_its_exact_counts(misfire: Misfire, fired: int, missed: int) -> None:
    now = NOON + 3 * HOUR + 30 * SECOND
    decision = decide(BY_MINUTE, NOON, now, misfire=misfire, grace=5 * SECOND, limit=1000)

    assert (len(decision.fire), decision.missed) == (fired, missed)
    assert decision.next_slot == NOON + 3 * HOUR + MINUTE
    assert decision.fire == tuple(NOON + 3 * HOUR - count * MINUTE for count in reversed(range(fired)))


def test_what_is_within_grace_runs_whatever_the_policy_and_stands_for_what_is_late() -> None:
    now = NOON + 3 * HOUR + 30 * SECOND
    on_time = (NOON + 3 * HOUR - MINUTE, NOON + 3 * HOUR)

    for misfire in ("once", "skip"):
        decision = decide(BY_MINUTE, NOON, now, misfire=misfire, grace=90 * SECOND)  # type: ignore[arg-type]
        assert decision == Decision(on_time, 179, NOON + 3 * HOUR + MINUTE, made_up=int(misfire == "once"))


@pytest.mark.parametrize("grace", [timedelta(), SECOND, MINUTE], ids=str)
def test_a_scheduler_that_was_there_makes_up_for_nothing_however_short_the_grace(grace: timedelta) -> None:
    by_second = Timing(Every("1s", NOON))

    for misfire in get_args(Misfire):
        assert decide(by_second, NOON, NOON + 17 * SECOND, misfire=misfire, grace=grace).made_up == 0
    assert decide(by_second, NOON, NOON + 62 * SECOND, misfire="all", grace=grace).made_up == 63


def test_the_newest_are_kept_when_there_are_too_many() -> None:
    now = NOON + 3 * HOUR
    for misfire, grace in (("all", SECOND), ("skip", 4 * HOUR)):
        decision = decide(BY_MINUTE, NOON, now, misfire=misfire, grace=grace, limit=3)  # type: ignore[arg-type]

        assert decision.fire == (now - 2 * MINUTE, now - MINUTE, now)
        assert decision.missed == 178


def test_the_promised_slot_counts_whatever_the_timing_has_become() -> None:
    odd = NOON - 17 * SECOND

    assert decide(BY_MINUTE, odd, NOON - SECOND) == Decision((odd,), 0, NOON)


def test_slots_that_are_left_out_are_not_missed() -> None:
    timing = Timing(Cron("0 * * * *"), Exclude(windows=(("13:00", "16:00"),)))

    assert decide(timing, NOON, NOON + 5 * HOUR, misfire="all", grace=SECOND) == Decision(
        (NOON, NOON + 4 * HOUR, NOON + 5 * HOUR), 0, NOON + 6 * HOUR, made_up=3
    )


def test_a_moment_missed_is_made_up_for_and_over() -> None:
    assert decide(Timing(Once(NOON)), NOON, NOON + HOUR) == Decision((NOON,), 0, None, made_up=1)
    assert decide(Timing(Once(NOON)), NOON, NOON + HOUR, misfire="skip") == Decision((), 1, None)


def test_a_delay_has_nothing_to_miss() -> None:
    assert decide(Timing(Delay("1s")), NOON, NOON + HOUR, misfire="skip") == Decision((NOON,), 0, None)


@pytest.mark.parametrize(
    ("timing", "slots"),
    [
        (Timing(Every("1ms", NOON)), 365 * 86_400_000 + 1),
        (Timing(Cron("* * * * * *", "Europe/Berlin")), 365 * 86_400 + 1),
        (Timing(Every("1ms", NOON), Exclude(weekdays=("sat", "sun"))), 260 * 86_400_000 + 43_200_000),
        (Timing(Cron("* 2 * * *", "Europe/Berlin")), 365 * 60 + 1),
    ],
)
@pytest.mark.parametrize("misfire", get_args(Misfire))
def test_a_year_of_downtime_is_counted_and_not_walked(timing: Timing, slots: int, misfire: Misfire) -> None:
    began = time.process_time()
    decision = decide(timing, NOON, NOON + timedelta(days=365), misfire=misfire, grace=timedelta(), limit=50)

    assert decision.missed + len(decision.fire) == slots
    assert len(decision.fire) <= 50
    assert time.process_time() - began < 5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    trigger=st.sampled_from([Cron("*/7 * * * *"), Every("90s", NOON), Cron("0 2 * * *", "Europe/Berlin")]),
    down=st.timedeltas(timedelta(), timedelta(hours=30)),
    grace=st.timedeltas(timedelta(), timedelta(hours=5)),
    limit=st.integers(1, 50),
    misfire=st.sampled_from(get_args(Misfire)),
)
def test_decisions_are_those_of_the_rules_applied_to_each_slot(
    trigger: Cron | Every, down: timedelta, grace: timedelta, limit: int, misfire: Misfire
) -> None:
    timing = Timing(trigger)
    first = timing.next(datetime(2027, 10, 30, 12, tzinfo=UTC))
    assert first is not None
    now = first + down
    slots = timing.between(first, now + timedelta(microseconds=1))
    wanted = [slot for slot in slots if misfire == "all" or now - slot <= grace]
    if misfire == "once" and not wanted:
        wanted = slots[-1:]

    decision = decide(timing, first, now, misfire=misfire, grace=grace, limit=limit)

    assert decision.fire == tuple(wanted[-limit:])
    assert decision.missed == len(slots) - len(decision.fire)
    assert decision.next_slot == timing.next(now)


def test_with_jitter_no_slot_runs_before_its_time_and_none_is_lost() -> None:
    timing, jitter, slot = Timing(Every("1s", NOON)), timedelta(seconds=5), NOON
    ran: list[datetime] = []
    now = NOON
    while now < NOON + MINUTE:
        decision = decide(timing, slot, now, name="report", jitter=jitter)
        assert all(jittered("report", each, jitter) <= now for each in decision.fire)
        assert decision.missed == 0
        assert decision.next_slot is not None
        assert jittered("report", decision.next_slot, jitter) > now
        ran += decision.fire
        slot = decision.next_slot
        now += timedelta(milliseconds=250)

    assert ran == [NOON + count * SECOND for count in range(len(ran))]
    assert len(ran) >= 55


def test_wrong_policies_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="misfire='never': it is one of once, skip, all"):
        decide(BY_MINUTE, NOON, NOON, misfire="never")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a limit is 1 or more"):
        decide(BY_MINUTE, NOON, NOON, limit=0)
