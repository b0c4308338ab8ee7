from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import ConfigurationError, Retry


def test_pauses_grow_as_named() -> None:
    error = ValueError()

    assert [Retry(9, "exponential", 1.0, 60.0, jitter=False).pause(n, error) for n in range(1, 9)] == [
        1,
        2,
        4,
        8,
        16,
        32,
        60,
        60,
    ]
    assert [Retry(5, "linear", "2s", jitter=False).pause(n, error) for n in range(1, 5)] == [2, 4, 6, 8]
    assert [Retry(5, "constant", 3, jitter=False).pause(n, error) for n in range(1, 5)] == [3, 3, 3, 3]


def test_a_function_of_attempt_and_error_gives_the_pause() -> None:
    retry = Retry(5, lambda n, error: f"{n}m" if isinstance(error, KeyError) else 1)

    assert retry.pause(2, KeyError()) == 120
    assert retry.pause(2, ValueError()) == 1


def test_the_last_attempt_is_the_last() -> None:
    assert Retry(attempts=3).pause(2, ValueError()) is not None
    assert Retry(attempts=3).pause(3, ValueError()) is None
    assert Retry(attempts=1).pause(1, ValueError()) is None


def test_only_the_named_errors_are_tried_again() -> None:
    retry = Retry(on=(OSError, KeyError))

    assert retry.pause(1, ConnectionResetError()) is not None
    assert retry.pause(1, ValueError()) is None


@given(failures=st.integers(1, 5000), base=st.floats(0, 1e6), cap=st.floats(0, 1e6))
def test_a_jittered_pause_lies_in_the_upper_half_and_under_the_cap(failures: int, base: float, cap: float) -> None:
    exact = Retry(10_000, base=base, cap=cap, jitter=False).pause(failures, ValueError())
    jittered = Retry(10_000, base=base, cap=cap).pause(failures, ValueError())

    assert exact is not None
    assert jittered is not None
    microsecond = 1e-6  # the grain of a timedelta
    assert exact / 2 - microsecond <= jittered <= exact <= cap + microsecond


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": True},
        {"backoff": "fibonacci"},
        {"base": -1},
        {"on": "ValueError"},
        {"base": "soon"},
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Retry(**wrong)  # type: ignore[arg-type]
