"""The event logs of an app, and the tables it has adopted."""

from __future__ import annotations

from collections.abc import Callable

from rota.events.log import EventLog
from rota.events.table import EventTable
from rota.postgres.names import check_name
from rota.postgres.pool import Database

__all__ = ["EventLogs"]


class EventLogs:
    """What `app.event_log` and `app.event_table` make."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self._logs: dict[str, EventLog] = {}

    def event_log(self, name: str) -> EventLog:
        """The event log of this name: `orders = app.event_log("orders")`. There is nothing to create; asked again, it is the same."""
        if name not in self._logs:
            self._logs[name] = EventLog(check_name("the name of an event log", name, 100), self._database)
        return self._logs[name]

    def event_table(
        self,
        table: str | tuple[str, str],
        *,
        position: str,
        xid: str,
        data: str,
        stream: str | None = None,
        type: str | None = None,
        metadata: str | None = None,
        version: str | None = None,
        created_at: str | None = None,
        shape: str | None = None,
    ) -> EventTable:
        """Read the events in a table of yours: `app.event_table("shop.events", position="id", xid="txid", data="payload")`.

        A name without a schema is one in `public`; a pair (schema, table) is for names that hold a dot. `position` is a column that
        grows, `xid` one of type xid8 whose default is pg_current_xact_id(): `rota projections ddl TABLE` prints what adds it. `data`
        holds JSON. The names are compared with the catalog when it is first read.
        """
        mapped = {
            "position": position,
            "xid": xid,
            "data": data,
            "stream": stream,
            "type": type,
            "metadata": metadata,
            "version": version,
            "created_at": created_at,
            "shape": shape,
        }
        return EventTable(table, self._database, mapped)
