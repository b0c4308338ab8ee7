"""Rows whose keys no claim can hold.

A claim is found by its key, and PostgreSQL takes no more than about 2,700 bytes into an entry of an index. The user's own index has
the same limit, but not the same form: bytes are written in hex in a claim, and the poller's name comes first. Such rows are so
rare that no look asks for them; but once there is one, every look that finds it is refused, and all others with it.
"""

from __future__ import annotations

from dataclasses import replace

import psycopg

from rota.errors import RotaError
from rota.pollers.due import Plan

__all__ = ["find_long_keys", "is_too_long", "without_long_keys"]

# Of 2,704 in pages of 8 kB, less what an entry has around its values.
_MOST_BYTES = 2_640


def is_too_long(error: RotaError) -> bool:
    """Whether PostgreSQL refused a claim for the length of a key."""
    cause = error.__cause__
    return isinstance(cause, psycopg.errors.ProgramLimitExceeded) and cause.diag.table_name == "poll_claims"


def without_long_keys(plan: Plan) -> Plan:
    """The same plan, for all other rows."""
    where = f"({plan.parts['where']}\n) and not {_is_long(plan)}"
    return replace(plan, definition=replace(plan.definition, where=where))


def find_long_keys(plan: Plan) -> str:
    """SQL for people that shows the keys that are too long."""
    return f"select {plan.parts['keys']} from {plan.shape.sql} where {_is_long(plan)}"  # noqa: S608 - quoted, from the catalog


def _is_long(plan: Plan) -> str:
    """Some of these could be packed, and would do."""
    most = _MOST_BYTES - len(plan.definition.name.encode())
    return f"pg_catalog.pg_column_size({plan.parts['key']}) > {most}"
