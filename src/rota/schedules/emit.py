"""`app.emit`: telling of an event, and the schedules that listen run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.conversion.plain import dumps
from rota.errors import ConfigurationError
from rota.jobs.codec import Codec, decoded, encoded
from rota.jobs.given import plain_arguments
from rota.postgres.foreign import foreign
from rota.postgres.names import check_name
from rota.postgres.pool import Database
from rota.postgres.query import Query, Row, Steps, scalar, statement

__all__ = ["Emit", "EmitSync"]


class Emit:
    """`await app.emit("order.paid", {"order_id": 7})` runs the schedules that listen to the event, and returns how many.

    The payload, plain JSON, goes over the arguments of each, name by name. `app.emit.on(connection)(...)` is part of the
    transaction of a connection of yours: they run when you commit.
    """

    def __init__(
        self, database: Database, codec: Codec | None, is_inline: Callable[[], bool], connection: Any = None
    ) -> None:
        self._database = database
        self._codec = codec
        self._is_inline = is_inline
        self._connection = connection

    def on(self, connection: Any) -> Emit:
        foreign(connection)  # refuses what is none
        return Emit(self._database, self._codec, self._is_inline, connection)

    async def __call__(self, event: str, payload: Mapping[str, Any] | None = None) -> int:
        told, schema = emit_event(event, payload, self._codec), self._database.schema
        if self._is_inline():
            return 0  # schedules are rows of a database, and there is none
        if self._connection is None:
            return await (self._database.run(told) if isinstance(told, Query) else self._database.run_steps(told))
        on = foreign(self._connection)
        return await (on.run(told, schema) if isinstance(told, Query) else on.run_steps(told, schema))


class EmitSync:
    """`app.emit_sync(...)`: the same from sync code."""

    def __init__(
        self, database: Database, codec: Codec | None, is_inline: Callable[[], bool], connection: Any = None
    ) -> None:
        self._database = database
        self._codec = codec
        self._is_inline = is_inline
        self._connection = connection

    def on(self, connection: Any) -> EmitSync:
        foreign(connection)
        return EmitSync(self._database, self._codec, self._is_inline, connection)

    def __call__(self, event: str, payload: Mapping[str, Any] | None = None) -> int:
        told, schema = emit_event(event, payload, self._codec), self._database.schema
        if self._is_inline():
            return 0  # schedules are rows of a database, and there is none
        if self._connection is None:
            return self._database.run_sync(told) if isinstance(told, Query) else self._database.run_steps_sync(told)
        on = foreign(self._connection)
        return on.run_sync(told, schema) if isinstance(told, Query) else on.run_steps_sync(told, schema)


EMIT = statement("emit", "select {schema}.emit(%(event)s::text, %(payload)s::text::jsonb)")

# Asked first: refused by PostgreSQL, the transaction would be over, in words that say nothing of a codec.
MAY_READ = statement(
    "may_read_listeners",
    """
    select
        current_user,
        bool_and(has_column_privilege($name${schema}.schedules$name$, needed.name, 'select'))
    from unnest(array['name', 'args', 'event']) as needed(name)
    """,
)

LISTENERS = statement(
    "find_listeners",
    """
    select listens.name, listens.args::text
    from {schema}.schedules as listens
    where listens.event = %(event)s::text
    order by listens.name
    """,
)

EMIT_WHOLE = statement("emit_whole", "select {schema}.emit(%(event)s::text, '{}', %(whole)s::text::jsonb)")


def emit_event(event: str, payload: Mapping[str, Any] | None, codec: Codec | None) -> Query[int] | Steps[int]:
    """Give each schedule that listens a run with this payload; returns how many. Raises InvalidArguments."""
    check_name("event", event, 200)
    refused = f"Event {event!r} was not emitted"
    given = plain_arguments(payload, refused, what="payload")
    if codec is None:
        return EMIT.query({"event": event, "payload": dumps(given)}, read=scalar)
    return _emit_coded(event, given, codec, refused)


def _emit_coded(event: str, given: dict[str, Any], codec: Codec, refused: str) -> Steps[int]:
    # only here can the arguments of each be read
    role, may_read = yield MAY_READ.query(read=lambda rows: rows[0])
    if not may_read:
        raise ConfigurationError(
            f"{refused}: this app has a codec, so the payload goes over the arguments of those that listen here and not in the "
            f"database, and role {role!r} may not read them. Let it: grant select (name, args, event) on schedules, in the "
            f"schema of Rota, to {role!r}."
        )
    listeners: list[tuple[str, str]] = yield _listeners(event)
    whole = ",".join(
        f"{dumps(name)}:{encoded(codec, dumps({**decoded(codec, stored), **given}), refused, secret=True)}"
        for name, stored in listeners
    )
    return (yield EMIT_WHOLE.query({"event": event, "whole": f"{{{whole}}}"}, read=scalar))  # type: ignore[no-any-return]


def _listeners(event: str) -> Query[list[tuple[str, str]]]:
    def read(rows: Sequence[Row]) -> list[tuple[str, str]]:
        return [(row[0], row[1]) for row in rows]

    return LISTENERS.query({"event": event}, read=read)
