from __future__ import annotations

import pytest

from rota import ConfigurationError
from rota.postgres.query import identifier, many, nothing, one_or_none, scalar, statement


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("rota", '"rota"'),
        ("My Schema", '"My Schema"'),
        ('a"b', '"a""b"'),
        ("select", '"select"'),
        ("grüße", '"grüße"'),
        ('"; drop schema public; --', '"""; drop schema public; --"'),
        ("x" * 63, '"' + "x" * 63 + '"'),
    ],
)
def test_names_are_quoted(name: str, quoted: str) -> None:
    assert identifier(name) == quoted


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "ü" * 32, "\ud800"])
def test_names_that_postgresql_would_cut_or_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name anything"):
        identifier(name)


def test_a_statement_carries_its_name_and_its_schema_and_nothing_else_is_composed() -> None:
    sql = statement("look", "select '{}'::jsonb, %(a)s from {schema}.jobs").sql('odd "schema" 100%')

    assert sql == '/* rota:look */ select \'{}\'::jsonb, %(a)s from "odd ""schema"" 100%%".jobs'


def test_rows_are_read_as_asked() -> None:
    rows = [(1, 2), (3, 4)]

    assert many(lambda a, b: a + b)(rows) == [3, 7]
    assert one_or_none(lambda a, b: a + b)(rows) == 3
    assert one_or_none(lambda a, b: a + b)([]) is None
    assert scalar(rows) == 1
    assert scalar([]) is None
    assert nothing(rows) is None  # type: ignore[func-returns-value]
