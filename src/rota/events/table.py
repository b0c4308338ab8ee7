"""`app.event_table`: events in a table of the user's, which Rota reads and never writes.

The table needs one column that it may not have: the id of the transaction that wrote the row, by which events are read in an order
that no late commit breaks (see `read`). Adding it rewrites nothing. Rows that are older have none: they are history, were all
committed before the column's default was set, and come first, by their positions, with 0 for an id.

Unlike in a log of Rota's the id is the plain one: every event is seen once, but of two transactions that write to one stream, the
one that began earlier is seen first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rota.errors import ConfigurationError, InvalidArguments
from rota.events.columns import Mapped, TableColumns, check_columns, find_columns, known
from rota.events.event import Event
from rota.events.read import After, Pair, check_count, check_pair
from rota.events.source import EventSource
from rota.events.types import EventTypes
from rota.postgres.names import read_table_name
from rota.postgres.pool import Database
from rota.postgres.query import Query, Row, Steps, identifier, statement

__all__ = ["EventTable", "ddl", "find_ddl"]


class EventTable:
    """Events in a table of yours, read as a log is: `app.event_table("my_events", position="id", xid="txid", data="payload")`.

    Every insert must leave `xid` to its default. `read_all` sees every row once, in the order of the pair (order_xid, position);
    rows that are older than the column come first, and have the order_xid 0.
    """

    def __init__(self, table: Any, database: Callable[[], Database], mapped: Mapped) -> None:
        schema, name = read_table_name(table)
        self._place = (schema or "public", name)
        self.name = name if schema is None else f"{schema}.{name}"
        self.types = EventTypes(self.name)
        self.event, self.upcast = self.types.event, self.types.upcast
        self._database = database
        self._mapped = mapped
        quoted = {role: None if column is None else identifier(column) for role, column in mapped.items()}
        position, xid, data = (_needed(self.name, quoted, role) for role in ("position", "xid", "data"))
        self.source = EventSource(
            name=self.name,
            table=".".join(map(identifier, self._place)),
            position=position,
            order_xid=xid,
            data=data,
            **{role: quoted.get(role) for role in ("stream", "type", "metadata", "version", "created_at", "shape")},
        )
        self._checked: TableColumns | None = None

    async def check(self) -> None:
        """Compare the names with the catalog. Raises ConfigurationError with all that does not fit, and the columns there are."""
        self._checked = await self._database().run(self._check())

    def check_sync(self) -> None:
        self._checked = self._database().run_sync(self._check())

    async def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """The events of a stream, in the order of their versions if the table has such, else in that of `read_all`."""
        if self._checked is None:
            await self.check()
        return await self._database().run(self._read(stream, after, limit))

    def read_sync(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        if self._checked is None:
            self.check_sync()
        return self._database().run_sync(self._read(stream, after, limit))

    async def read_all(self, *, after: After | None = None, limit: int = 1000) -> list[Event]:
        """The next events, at most `limit`, after an event that was read or its pair (order_xid, position); see EventLog.read_all."""
        if self._checked is None:
            await self.check()
        return await self._database().run(self._read_all(after, limit))

    def read_all_sync(self, *, after: After | None = None, limit: int = 1000) -> list[Event]:
        if self._checked is None:
            self.check_sync()
        return self._database().run_sync(self._read_all(after, limit))

    def decode(self, row: Sequence[Any], /) -> Event:
        """An event from its row, as projections read it. Raises UndecodableEvent."""
        return self.types.decode(*row)

    def _check(self) -> Query[TableColumns]:
        find = find_columns(*self._place)

        def read(rows: Sequence[Row]) -> TableColumns:
            return check_columns(self.name, *self._place, find.read(rows), self._mapped)

        return find.statement.query(find.params, read=read)

    def _read(self, stream: str, after: int, limit: int | None) -> Query[list[Event]]:
        check_count("after", after, 0)
        if limit is not None:
            check_count("limit", limit, 1)
        column = self._mapped.get("stream")
        if column is None or self._checked is None:
            raise ConfigurationError(
                f"{self.name!r} has no streams to read one of: say which column names them, event_table(..., stream=...)."
            )
        if after and self.source.version is None:
            raise InvalidArguments(
                f"A stream of {self.name!r} cannot be read after version {after}: it has no versions. Say which column has them, "
                "event_table(..., version=...)."
            )
        type_ = self._checked.types[column]
        return read_table_stream(self.source, self.types, stream, type_, after=after, limit=limit)

    def _read_all(self, after: After | None, limit: int) -> Query[list[Event]]:
        return read_table(self.source, self.types, after=check_pair(after), limit=check_count("limit", limit, 1))

    def __repr__(self) -> str:
        return f"<event table {self.name!r}>"


def _needed(table: str, quoted: Mapped, role: str) -> str:
    column = quoted.get(role)
    if column is None:
        raise ConfigurationError(f"Events cannot be read from {table!r} without {role}=..., the name of a column.")
    return column


READ_TABLE_STREAM = statement(
    "read_table_stream",
    """
    select {columns}
    from {table} as event
    where event.{stream} = %(stream)s::text::{type}
      and coalesce({version}, 1) > %(after)s::bigint
    order by {version}, event.{order_xid} nulls first, event.{position}
    limit %(limit)s::bigint
    """,
)


def read_table_stream(
    source: EventSource, types: EventTypes, stream: str, type_: str, *, after: int, limit: int | None
) -> Query[list[Event]]:
    """The events of one stream of the table. Its name is compared as what the column has, so that an index on it is of use."""
    params = {"stream": stream, "after": after, "limit": limit}
    parts = _parts(source) | {"stream": str(source.stream), "type": type_}
    return READ_TABLE_STREAM.composed(parts).query(params, read=lambda rows: [types.decode(*row) for row in rows])


READ_TABLE = statement(
    "read_table_events",
    """
    select *
    from (
        (
            select {columns}
            from {table} as event
            where event.{order_xid} is null
              and %(order_xid)s::text = '0'
              and event.{position} > %(position)s::bigint
            order by event.{position}
            limit %(limit)s::bigint
        )
        union all
        (
            select {columns}
            from {table} as event
            where (event.{order_xid}, event.{position}) > (%(order_xid)s::text::xid8, %(position)s::bigint)
              -- whatever is committed from now on has an id that is not below this one
              and event.{order_xid} < pg_snapshot_xmin(pg_current_snapshot())
            order by event.{order_xid}, event.{position}
            limit %(limit)s::bigint
        )
    ) as event
    order by event.rota_xid, event.rota_position
    limit %(limit)s::bigint
    """,
)


def read_table(source: EventSource, types: EventTypes, *, after: Pair, limit: int) -> Query[list[Event]]:
    """The events of the table after this pair: history, and what is below the horizon."""
    order_xid, position = after
    params = {"order_xid": str(order_xid), "position": position, "limit": limit}
    return READ_TABLE.composed(_parts(source)).query(params, read=lambda rows: [types.decode(*row) for row in rows])


def _parts(source: EventSource) -> dict[str, str]:
    def column(name: str | None, type_: str) -> str:
        return f"null::{type_}" if name is None else f"event.{name}::{type_}"

    columns = (
        f"event.{source.position}::bigint as rota_position",
        f"coalesce(event.{source.order_xid}::text::bigint, 0) as rota_xid",
        column(source.stream, "text"),
        column(source.version, "bigint"),
        column(source.type, "text"),
        column(source.shape, "integer"),
        column(source.data, "text"),
        column(source.metadata, "text"),
        column(source.created_at, "timestamptz"),
    )
    return {
        "columns": ", ".join(columns),
        "table": source.table,
        "order_xid": source.order_xid,
        "position": source.position,
        "version": column(source.version, "bigint"),
    }


def ddl(table: Any, *, position: str, xid: str, partitioned: bool = False) -> list[str]:
    """The statements that give a table its column for the transaction's id, without rewriting it; to be run one by one.

    The first waits for those who write to the table, and is quick. The second reads the table, while others go on writing where it
    is not partitioned.
    """
    schema, name = read_table_name(table)
    place = ".".join(map(identifier, (schema or "public", name)))
    # a default that is given together with the column would be computed for every row there is
    add = (
        f"alter table {place} add column {identifier(xid)} xid8, "
        f"alter column {identifier(xid)} set default pg_current_xact_id();"
    )
    return ["set lock_timeout = '5s';", add, "reset lock_timeout;", _index(place, position, xid, partitioned)]


def _index(place: str, position: str, xid: str, partitioned: bool) -> str:
    # no index of a partitioned table can be made without locking it
    how = "" if partitioned else " concurrently"
    return f"create index{how} on {place} ({identifier(xid)}, {identifier(position)});"


def find_ddl(table: Any, *, position: str | None = None, xid: str = "xid") -> Steps[list[str]]:
    """The same for a table of this database, where `position` is by default its primary key. Raises ConfigurationError.

    Where the column is there already, only the index is left to make.
    """
    schema, name = read_table_name(table)
    said = name if schema is None else f"{schema}.{name}"
    place = (schema or "public", name)
    there = known(said, *place, (yield find_columns(*place)))
    if there.is_view:
        raise ConfigurationError(
            f"{said!r} is a view, which can have no column of its own. Name the table it reads from."
        )
    column = there.key if position is None else position
    if column is None:
        raise ConfigurationError(
            f"{said!r} has no primary key of one column to be the position of its events: say which column is. The table has {there}."
        )
    check_columns(said, *place, there, {"position": column} | ({"xid": xid} if xid in there.types else {}))
    if xid in there.types:
        return [_index(".".join(map(identifier, place)), column, xid, there.partitioned)]
    return ddl(place, position=column, xid=xid, partitioned=there.partitioned)
