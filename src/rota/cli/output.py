"""How commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import click

__all__ = [
    "as_json",
    "json_option",
    "json_text",
    "print_fields",
    "print_json",
    "print_table",
    "say",
    "say_more",
    "short_time",
]


json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


def say_more(page: Sequence[Any], limit: int) -> None:
    """Tell of a page that is full how to get the next one."""
    if len(page) == limit:
        say(f"there may be more: --after {page[-1].id}")


def say(text: str) -> None:
    """A word to the person; never mixed with data."""
    click.echo(text, err=True)


def as_json(value: Any) -> Any:
    """Plain JSON of a value of ours; private fields stay private."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()  # not in whatever time zone the session happens to have
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    return value


def print_json(value: Any) -> None:
    click.echo(json.dumps(as_json(value), indent=2, ensure_ascii=False))


def json_text(value: Any) -> str | None:
    """A payload on one line, as it would be typed again; None for none."""
    return None if value is None else json.dumps(as_json(value), ensure_ascii=False)


def print_fields(shown: Mapping[str, Any]) -> None:
    """What there is, one line each."""
    for name, value in shown.items():
        if value not in (None, ""):
            click.echo(f"{name:10} {value}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    if not rows:
        say(empty)
        return
    # takes a tenth of the start of a worker, which shows no table
    from rich.console import Console
    from rich.table import Table

    terminal = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not terminal.is_terminal)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # a file or a pipe has no width: there a line is a row, so that it can be searched
    (terminal if terminal.is_terminal else Console(width=10_000)).print(table)


def short_time(moment: datetime | None) -> str:
    """As this machine's clock shows it, and by which zone: others of its times are in UTC, or in a schedule's zone."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
