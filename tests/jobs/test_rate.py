"""Rates as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import ConfigurationError
from rota.jobs.rate import Rate, read_rate


@pytest.mark.parametrize(
    ("text", "count", "seconds", "shown"),
    [
        ("100/1m", 100, 60, "100/1m"),
        ("5/s", 5, 1, "5/1s"),
        ("1000/1h", 1000, 3600, "1000/1h"),
        (" 3 / 90s ", 3, 90, "3/90s"),
        ("1/1h 30m", 1, 5400, "1/90m"),
        ("7/14d", 7, 14 * 86400, "7/2w"),
        ("2/ms", 2, 0.001, "2/1ms"),
        ("2/1.5s", 2, 1.5, "2/1500ms"),
        ("2/1.25ms", 2, 0.00125, "2/1.25ms"),
        ("2147483647/366d", 2**31 - 1, 366 * 86400, "2147483647/366d"),
    ],
)
def test_a_rate_is_a_count_and_a_period(text: str, count: int, seconds: float, shown: str) -> None:
    rate = read_rate(text, "rate")

    assert rate == Rate(count, pytest.approx(seconds))
    assert str(rate) == shown


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "how many may begin in which time"),
        ("100", "how many may begin in which time"),
        ("/1m", "how many may begin in which time"),
        ("100/", "how many may begin in which time"),
        ("-5/1m", "how many may begin in which time"),
        ("1.5/1m", "how many may begin in which time"),
        (100, "how many may begin in which time"),
        (None, "how many may begin in which time"),
        ("0/1m", "to have none begin, pause the queue"),
        ("2147483648/1m", "it lets 1 to 2147483647 begin"),
        ("9" * 5000 + "/1m", "it lets 1 to 2147483647 begin"),
        ("5/fortnight", "'fortnight' is no time"),
        ("5/1", "'1' is no time"),
        ("5/-1m", "'-1m' is no time"),
        ("5/1m/1s", "'1m/1s' is no time"),
        ("5/0s", "its period is 1 ms to 366 days"),
        ("5/0.5ms", "its period is 1 ms to 366 days"),
        ("5/367d", "its period is 1 ms to 366 days"),
    ],
)
def test_what_is_no_rate_is_refused_by_the_name_of_its_field(value: Any, why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_rate(value, "Limit(rate=...)")

    assert str(refused.value).startswith("Limit(rate=...) cannot be ")
    assert why in str(refused.value)


@given(st.integers(1, 2**31 - 1), st.integers(1000, 366 * 86400 * 10**6))
def test_a_rate_that_is_shown_reads_as_the_same(count: int, micros: int) -> None:
    rate = Rate(count, micros / 1_000_000)

    again = read_rate(str(rate), "rate")

    assert (again.count, again.seconds) == (count, pytest.approx(rate.seconds, abs=1e-6))
