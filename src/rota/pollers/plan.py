"""Fitting a poller to its table: what the catalog says, and whether PostgreSQL understands what the author wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from rota.errors import ConfigurationError, DatabaseUnavailable, RotaError
from rota.pollers.claim import Claims
from rota.pollers.definition import PollerDefinition
from rota.pollers.due import Plan, bounds_in_column, make_plan
from rota.pollers.settle import Finish
from rota.pollers.shape import Shape, find_shape
from rota.postgres.pool import Database
from rota.postgres.query import Query, Steps, scalar, statement

__all__ = ["plan_of"]

# The author's SQL, each piece alone and on no rows, so that what is wrong with it can be told of that piece.
TRY_WHERE = statement("try_poller_where", "select from {table} where ({sql}\n) limit 0")
TRY_ORDER = statement("try_poller_order", "select from {table} order by {sql}\n limit 0")
TRY_DONE = statement("try_poller_done", "update {table} set {sql}\n where false")
TRY_DUE = statement("try_poller_due", "select pg_typeof((select ({sql}\n) from {table} limit 0))::text")
# Whether the bounds of an interval fit into the user's column, and are not nothing there.
TRY_BOUNDS = statement(
    "try_poller_bounds", "select ({low})::{type} > ({nothing})::{type} and ({high})::{type} is not null"
)

_TIMES = {"timestamp with time zone": False, "timestamp without time zone": True, "date": True}


async def plan_of(database: Database, definition: PollerDefinition) -> Plan:
    """The poller, fitted to its table. Raises ConfigurationError with all that does not fit."""
    shape = await database.run_steps(find_shape(definition.table, poller=definition.name))
    problems: list[str] = []
    naive_due = False
    for option, text, trial in _trials(definition, shape):
        try:
            answer = await database.run_steps(_alone(trial), dry_run=True)
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise _misunderstood(definition, shape, error) from error
            problems.append(f"PostgreSQL says of {option}={text!r}: {_said(error)}")
            continue
        if option == "due" and answer not in _TIMES:
            problems.append(f"due={text!r} gives a {answer}; it must be a time")
        elif option == "adaptive" and not answer:
            problems.append(f"the column {definition.interval!r} cannot hold the shortest interval of {text}")
        naive_due = naive_due or (option == "due" and _TIMES.get(answer, False))
    plan = make_plan(definition, shape, naive_due=naive_due, problems=problems)
    try:
        await database.run_steps(_understood(plan), dry_run=True)
    except DatabaseUnavailable:
        raise
    except RotaError as error:
        raise _misunderstood(definition, shape, error) from error
    return plan


def _trials(definition: PollerDefinition, shape: Shape) -> Iterator[tuple[str, str, Query[Any]]]:
    """What the author wrote and only PostgreSQL can judge: the option, its text, and what to ask."""
    for option, text, trying in (
        ("where", definition.where, TRY_WHERE),
        ("order_by", definition.order_by, TRY_ORDER),
        ("done", definition.done, TRY_DONE),
        ("due", None if definition.due in shape.columns else definition.due, TRY_DUE),
    ):
        if text is not None:
            yield option, text, trying.composed({"table": shape.sql, "sql": text}).query(read=scalar)
    column = shape.columns.get(str(definition.interval))
    if definition.adaptive is not None and column is not None:
        low, high = bounds_in_column(definition)
        nothing = "interval '0'" if definition.unit is None else "0"
        parts = {"low": low, "high": high, "nothing": nothing, "type": column.type}
        yield "adaptive", str(definition.adaptive), TRY_BOUNDS.composed(parts).query(read=scalar)


def _alone(query: Query[Any]) -> Steps[Any]:
    return (yield query)


def _understood(plan: Plan) -> Steps[None]:
    """Have PostgreSQL read the statements, on no rows."""
    yield Claims(plan).nothing()
    yield Finish(plan).many([], [])


def _misunderstood(definition: PollerDefinition, shape: Shape, error: RotaError) -> ConfigurationError:
    given = {"where": definition.where, "due": definition.due, "order_by": definition.order_by, "done": definition.done}
    words = ", ".join(f"{name}={text!r}" for name, text in given.items() if text is not None)
    return ConfigurationError(
        f"Poller {definition.name!r} cannot poll {shape}: PostgreSQL says {_said(error)!r}. "
        + (f"What is SQL of yours: {words}." if words else "May this role select from and update the table?")
    )


def _said(error: RotaError) -> str:
    return str(error.__cause__ or error).splitlines()[0]
