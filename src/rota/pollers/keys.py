"""Keys of rows as people type them: the database turns them into what the claims have, as it knows the types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from rota.errors import ConfigurationError, DatabaseUnavailable, NotPossible, RotaError
from rota.pollers.definition import PollerDefinition
from rota.pollers.inspect import PollerView, get_poller
from rota.pollers.shape import Shape, find_shape
from rota.postgres.names import read_table_name
from rota.postgres.pool import Database
from rota.postgres.query import Steps, nothing, scalar, statement

__all__ = ["read_keys_sync"]


def read_keys_sync(
    database: Database, poller: str, texts: Sequence[str], definition: PollerDefinition | None = None
) -> list[list[Any]]:
    """The keys that were typed: a value, or a JSON array for a key of several columns.

    Without the poller's definition it goes by what was declared. Raises NotPossible when nobody has declared it, and
    ConfigurationError for what is no key of its table.
    """
    table, columns = _table(database, poller) if definition is None else (definition.table, list(definition.key))
    shape = database.run_steps_sync(find_shape(table, poller=poller))
    return [_read_key(database, poller, shape, columns, text) for text in texts]


def _table(database: Database, poller: str) -> tuple[tuple[str | None, str], list[str]]:
    view: PollerView | None = database.run_sync(get_poller(poller))
    if view is None:
        raise NotPossible(
            f"There is no poller {poller!r}: no process has declared one. `rota pollers list` shows all there are."
        )
    return read_table_name(view.definition["table"]), view.definition["key"]


def _read_key(database: Database, poller: str, shape: Shape, columns: list[str], text: str) -> list[Any]:
    told = ", ".join(f"{name} ({shape.columns[name].type})" for name in columns if name in shape.columns)
    try:
        return database.run_steps_sync(_as_claimed(shape, columns, _values(text, len(columns))))
    except DatabaseUnavailable:
        raise
    except (KeyError, ValueError, RotaError) as error:
        said = str(error.__cause__ or error).splitlines()[0]
        raise ConfigurationError(f"{text!r} is no key of poller {poller!r}, which is {told}: {said}") from error


def _values(text: str, columns: int) -> list[str]:
    if columns == 1:
        return [text]
    values = json.loads(text, parse_int=str, parse_float=str)  # as they were typed
    if not isinstance(values, list) or len(values) != columns:
        raise ValueError(f"write a JSON array of {columns} values")
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


# As times are shown: behind a pooler, a session has the zone that someone else gave it.
IN_UTC = statement("read_keys_in_utc", "set local timezone to 'UTC'")
KEY = statement("read_row_key", "with given as (select %(values)s::jsonb as key) select {key} from given")


def _as_claimed(shape: Shape, columns: Sequence[str], values: Sequence[str]) -> Steps[list[Any]]:
    yield IN_UTC.query(read=nothing)
    key = KEY.composed({"key": shape.key_from(columns, "given.key")})
    read: list[Any] = yield key.query({"values": Jsonb(values)}, read=scalar)
    return read
