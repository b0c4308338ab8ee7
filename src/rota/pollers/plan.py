"""Fitting a poller to its table: what the catalog says, and whether PostgreSQL understands what the author wrote."""

from __future__ import annotations

from rota.errors import ConfigurationError, DatabaseUnavailable, RotaError
from rota.pollers.claim import Claims
from rota.pollers.definition import PollerDefinition
from rota.pollers.due import Plan, make_plan
from rota.pollers.settle import Finish
from rota.pollers.shape import find_shape
from rota.postgres.pool import Database
from rota.postgres.query import Steps

__all__ = ["plan_of", "plan_of_sync"]


async def plan_of(database: Database, definition: PollerDefinition) -> Plan:
    """The poller, fitted to its table. Raises ConfigurationError where it does not fit."""
    plan = make_plan(definition, await database.run_steps(find_shape(definition.table, poller=definition.name)))
    try:
        await database.run_steps(_understood(plan), dry_run=True)
    except DatabaseUnavailable:
        raise
    except RotaError as error:
        raise _misunderstood(plan, error) from error
    return plan


def plan_of_sync(database: Database, definition: PollerDefinition) -> Plan:
    plan = make_plan(definition, database.run_steps_sync(find_shape(definition.table, poller=definition.name)))
    try:
        database.run_steps_sync(_understood(plan), dry_run=True)
    except DatabaseUnavailable:
        raise
    except RotaError as error:
        raise _misunderstood(plan, error) from error
    return plan


def _understood(plan: Plan) -> Steps[None]:
    """Have PostgreSQL read the statements, on no rows."""
    yield Claims(plan).nothing()
    yield Finish(plan).many([], [])


def _misunderstood(plan: Plan, error: RotaError) -> ConfigurationError:
    definition = plan.definition
    given = {"where": definition.where, "due": definition.due, "order_by": definition.order_by, "done": definition.done}
    words = ", ".join(f"{name}={text!r}" for name, text in given.items() if text is not None)
    said = str(error.__cause__ or error).splitlines()[0]
    return ConfigurationError(
        f"Poller {definition.name!r} cannot poll {plan.shape}: PostgreSQL says {said!r}. "
        + (f"What is SQL of yours: {words}." if words else "May this role select from and update the table?")
    )
