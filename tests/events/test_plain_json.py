"""Data that are short and flat are written without a detour, and as the long way writes them."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.conversion.plain import ANYTHING, Room, dumps
from rota.conversion.shorthand import flat_json

texts = st.text(st.characters() | st.sampled_from('\0\ud800\u2028"\\🐘'), max_size=20)
values = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([1e16, -1e17, 10**5000])


class Size(enum.StrEnum):
    SMALL = "s"


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(texts | st.integers(), values | st.lists(values, max_size=2), max_size=5) | values)
def test_what_is_written_the_short_way_is_what_the_long_way_writes(value: Any) -> None:
    text = flat_json(value)

    assert text is None or text == dumps(ANYTHING.encode(value, Room(1_000_000)))


def test_most_data_are_written_the_short_way() -> None:
    assert flat_json({"order": 17, "sum": 12.5, "paid": True, "by": "ü", "for": None}) == (
        '{"order":17,"sum":12.5,"paid":true,"by":"ü","for":null}'
    )


@pytest.mark.parametrize(
    "value",
    [
        {"a": float("nan")},
        {"a": 1e16},
        {"a": "\0"},
        {"a": "\ud800"},
        {"\0": 1},
        {1: 1},
        {"a": (1,)},
        {"a": Size.SMALL},
        {"a": "x" * 2_000},
        {"a": 10**5000},
        OrderedDict(a=1),
        [1],
    ],
)
def test_what_may_not_fit_is_left_to_the_long_way(value: Any) -> None:
    assert flat_json(value) is None
