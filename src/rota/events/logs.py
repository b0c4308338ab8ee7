"""The event logs of an app, and the tables it has adopted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rota.events.log import EventLog
from rota.events.table import EventTable
from rota.postgres.names import check_name
from rota.postgres.pool import Database

__all__ = ["EventLogs"]


class EventLogs:
    """What `app.event_log` and `app.event_table` make."""

    def __init__(self, database: Callable[[], Database], known: EventLogs | None = None) -> None:
        self._database = database
        #: those of another app have the same types here
        self._logs: dict[str, EventLog] = {}
        if known is not None:
            self._logs |= {name: EventLog(name, database, log.types) for name, log in known._logs.items()}

    @contextlib.contextmanager
    def as_they_are(self) -> Iterator[None]:
        """Forget at the end of a block the logs, and the types of them, that are made within it: for tests."""
        before = dict(self._logs)
        with contextlib.ExitStack() as types:
            for log in before.values():
                types.enter_context(log.types.as_they_are())
            try:
                yield
            finally:
                self._logs = before

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
