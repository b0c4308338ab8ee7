"""Around every jump of every zone's clock, cron comes exactly when walking that clock minute by minute says so.

The default suite takes a few zones with jumps of every kind; `make soak` takes all zones and all jumps from 2000 to 2040.
"""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from itertools import product
from typing import get_args
from zoneinfo import ZoneInfo, available_timezones

import pytest
from tests.schedules.reference import Pattern, clock, jumps, slots

from rota.schedules.cron import Cron
from rota.schedules.zones import Gap, Overlap

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)

EXPRESSIONS = (
    "*/15 * * * *",
    "0 * * * *",
    "30 */2 * * *",
    "*/20 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "15,45 0-3 * * *",
    "10 0-23 * * *",
    "30 1 * * sun",
    "0 3 1,15,L * fri#1",
)
Policies = tuple[tuple[Gap, Overlap], ...]
POLICIES: Policies = tuple(product(get_args(Gap), get_args(Overlap)))

# by the hour and by the half hour; at two, at midnight, over midnight; for a day, for three hours; with the offset of no DST
ZONES = {
    "Europe/Berlin": 2027,
    "America/New_York": 2007,
    "Australia/Lord_Howe": 2026,
    "America/Havana": 2010,
    "America/Santiago": 2026,
    "Africa/Cairo": 2026,
    "Africa/Casablanca": 2026,
    "Antarctica/Troll": 2026,
    "Antarctica/Casey": 2010,
    "Pacific/Apia": 2011,
    "Asia/Pyongyang": 2018,
    "America/Sao_Paulo": 2018,
    "Asia/Gaza": 2026,
    "America/St_Johns": 2008,
}


def profile(zone: ZoneInfo, jump: datetime, days: int) -> tuple[object, ...]:
    """What the zone's clock does around the jump: zones that do the same there share the reference."""
    return jump, *((jump + hour * HOUR).astimezone(zone).utcoffset() for hour in range(-48 * days, 24 * days + 1))


def differences(names: list[str], jump: datetime, days: int, policies: Policies = POLICIES) -> list[str]:
    """What goes wrong in these zones, which all do the same around this jump."""
    start, end = jump - days * DAY, jump + days * DAY
    walked = clock(ZoneInfo(names[0]), start - days * DAY, end)
    wrong = []
    for expression in EXPRESSIONS:
        pattern = Pattern(expression)
        for gap, overlap in policies[:1] if pattern.is_interval else policies:
            expected = [slot for slot in slots(pattern, walked, gap, overlap) if slot >= start]
            for name in names:
                cron = Cron(expression, name, gap=gap, overlap=overlap)
                found = []
                at = cron.next(start - SECOND)
                while at is not None and at < end and len(found) <= len(expected):
                    found.append(at)
                    at = cron.next(at)
                counted = cron.count(start - SECOND, end - SECOND)
                if found != expected or counted != len(expected):
                    off = sorted(set(found) ^ set(expected))[:3]
                    wrong.append(f"{name} {jump} {expression} {gap} {overlap}: {off}, counted {counted}")
    return wrong


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if number % 4 else name for number, name in enumerate(ZONES)]
)
def test_slots_around_the_jumps_of_a_clock_are_those_of_the_clock(name: str) -> None:
    year = ZONES[name]
    around = jumps(ZoneInfo(name), year, year)[:2]

    assert around
    assert [each for jump in around for each in differences([name], jump, 1, POLICIES[::3])] == []


@pytest.mark.skipif(not os.environ.get("ROTA_SOAK"), reason="minutes; make soak")
@pytest.mark.timeout(0)
def test_slots_around_every_jump_of_every_zone_are_those_of_the_clock() -> None:
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        for jump in jumps(zone, 2000, 2040):
            groups[profile(zone, jump, 2)].append(name)

    with ProcessPoolExecutor() as pool:
        work = [pool.submit(differences, names, key[0], 2) for key, names in groups.items()]  # type: ignore[arg-type]
        wrong = [each for done in work for each in done.result()]

    print(f"{len(groups)} jumps, {sum(map(len, groups.values()))} with their zones, {len(wrong)} differences")
    assert wrong == []
