"""What can be known of a poller without its database is checked when it is declared, all of it at once."""

from datetime import timedelta
from typing import Any

import pytest

from rota import Adaptive, Retry, Rota
from rota.errors import ConfigurationError


async def handler(row: dict[str, Any]) -> None: ...


def declare(**options: Any) -> Any:
    return Rota("postgresql://nowhere").poller(**{"table": "rows", **options})(handler)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "nothing says when a row is due: give last= with interval=, due=, or where="),
        ({"last": "last"}, "interval= is missing"),
        ({"where": "a", "retry": Retry(losses=1)}, r"Retry\(losses=...\) is for tasks"),
        ({"where": "a", "interval": "5m"}, "interval= and adaptive= need last= or due="),
        ({"where": "a", "adaptive": Adaptive("1m", "1h")}, "interval= and adaptive= need last= or due="),
        ({"last": "last", "interval": "0s"}, "interval is '0s'; it is more than nothing"),
        ({"last": "last", "interval": timedelta(-1)}, "it is more than nothing"),
        ({"last": "last", "interval": timedelta.max}, "at most 365,000 days"),
        ({"last": "last", "interval": float("nan")}, "interval cannot be nan"),
        ({"last": "last", "interval": []}, r"interval cannot be \[\]"),
        ({"last": "last", "interval": "5m", "unit": "fortnight"}, "unit is 'fortnight'; it is one of millisecond, second"),
        ({"last": "last", "interval": "5m", "unit": []}, r"unit is \[\]"),
        ({"last": "last", "interval": 5, "unit": "minute"}, "unit= is for an interval= that names a column"),
        ({"last": ["last"], "interval": "5m"}, r"last is \['last'\]; it is the name of a column"),
        ({"last": 5, "interval": "5m"}, "last is 5; it is the name of a column"),
        ({"due": "due", "key": []}, r"key is \[\]; it is the name of a column, or a list of different ones"),
        ({"due": "due", "key": ["a", "a"]}, "a list of different ones"),
        ({"due": "due", "key": [["a"]]}, r"\['a'\] cannot name anything"),
        ({"due": "due", "key": 5}, "key is 5"),
        ({"due": "due", "table": "a.b.c" * 20}, "cannot name anything"),
        ({"due": "due", "table": ("a", "b", "c")}, "it is the name of a table, 'schema.table', or a pair"),
        ({"due": "due", "table": 5}, "table cannot be 5"),
        ({"due": "due", "table": "a."}, "'' cannot name anything"),
        ({"where": " "}, "where is ' '; it is SQL text"),
        ({"where": "a\0"}, "it is SQL text"),
        ({"where": "a = '\ud800'"}, "it is SQL text"),
        ({"where": "a", "done": True}, "done is True; it is SQL text"),
        ({"where": "a", "order_by": ["a"]}, r"order_by is \['a'\]; it is SQL text"),
        ({"due": ""}, "due is ''; it is SQL text"),
        ({"due": "due", "counted_from": "middle"}, "counted_from is 'middle'; it is 'end' or 'start'"),
        ({"last": "a", "adaptive": Adaptive(1, 2), "counted_from": "start"}, "counted_from='start' keeps a row to one pace"),
        ({"last": "a", "adaptive": 5}, "adaptive is 5; it is rota.Adaptive"),
        ({"due": "a", "adaptive": Adaptive(1, 2)}, "adaptive= with due= needs interval= to name the column"),
        ({"due": "due", "batch": 0}, "batch is 0; it is a whole number, 1 or more, at most 10,000"),
        ({"due": "due", "batch": True}, "batch is True"),
        ({"due": "due", "concurrency": 10_001}, "concurrency is 10001"),
        ({"due": "due", "limit": 0}, "limit is 0; it is a whole number, 1 or more"),
        ({"due": "due", "timeout": 0}, "timeout is 0; it is more than nothing"),
        ({"due": "due", "idle": "-1s"}, "idle cannot be"),
        ({"due": "due", "name": "a\nb"}, "a poller's name cannot be"),
        ({"due": "due", "name": "x" * 201}, "text of 1 to 200 characters"),
        ({"due": "due", "retry": Retry}, "attempts"),
    ],
)  # fmt: skip
def test_option_that_cannot_work_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        declare(**options)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        declare(
            key=[], last=5, interval=-1, where="", batch=0, limit=0, timeout=0, adaptive=1, counted_from="x", name="p"
        )

    said = str(refused.value)
    assert said.startswith("Poller 'p' cannot work: ")
    for option in ("key", "last", "interval", "where", "batch", "limit", "timeout", "adaptive", "counted_from"):
        assert f"{option} is " in said


@pytest.mark.parametrize("given", [handler(None).close(), 5, dict])
def test_what_cannot_be_called_with_a_row_is_no_handler(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a poller"):
        Rota("postgresql://nowhere").poller(table="rows", where="a")(given)


def test_name_can_be_had_once() -> None:
    app = Rota("postgresql://nowhere")
    app.poller(table="rows", where="a")(handler)

    with pytest.raises(ConfigurationError, match="There is a poller 'handler' already"):
        app.poller(table="rows", where="b")(handler)


@pytest.mark.parametrize(
    ("options", "form", "clock"),
    [
        ({"last": "a", "interval": "5m"}, "last", "a"),
        ({"last": "a", "adaptive": Adaptive("1m", "1h")}, "last", "a"),
        ({"due": "b"}, "due", "b"),
        ({"due": "b", "last": "a"}, "due", "b"),
        ({"where": "c"}, "state", None),
    ],
)
def test_form_follows_from_what_is_named(options: dict[str, Any], form: str, clock: str | None) -> None:
    definition = declare(**options).definition

    assert (definition.form, definition.clock) == (form, clock)


@pytest.mark.parametrize(
    ("given", "unit", "read"),
    [
        ("5m", None, (timedelta(minutes=5), None)),
        (90, None, (timedelta(seconds=90), None)),
        (timedelta(days=1), None, (timedelta(days=1), None)),
        ("pace", None, ("pace", None)),
        ("5m", "minute", ("5m", 60.0)),  # a column may be called so
        ("pace", "week", ("pace", 604800.0)),
        ("pace", "millisecond", ("pace", 0.001)),
    ],
)
def test_interval_is_a_duration_or_a_column(given: Any, unit: Any, read: tuple[Any, Any]) -> None:
    definition = declare(last="last", interval=given, unit=unit).definition

    assert (definition.interval, definition.unit) == read
