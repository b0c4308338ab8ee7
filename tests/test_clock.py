from __future__ import annotations

from datetime import timedelta

import pytest

from rota import ConfigurationError
from rota.clock import Deadline, boottime, duration


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
        ("1w", 604800),
        (" 1.5s ", 1.5),
        (7, 7),
        (0.5, 0.5),
        (timedelta(minutes=2), 120),
    ],
)
def test_durations_are_read_as_people_write_them(given: object, expected: float) -> None:
    assert duration(given).total_seconds() == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "5",
        "soon",
        "5 parsecs",
        "m5",
        "-5m",
        None,
        True,
        [],
        "5m and more",
        float("nan"),
        float("inf"),
        1e30,
        "99999999999999d",
    ],
)
def test_what_is_no_duration_is_refused_with_the_name_of_the_field(given: object) -> None:
    with pytest.raises(ConfigurationError, match="delay cannot be"):
        duration(given, "delay")  # type: ignore[arg-type]


def test_a_deadline_comes_nearer_and_is_never_behind_us() -> None:
    assert Deadline(boottime() - 1).left == 0
    assert 3599 < Deadline.after("1h").left <= 3600
