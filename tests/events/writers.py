"""Writers that hold transactions open, take them back and prepare them, in an order drawn from a seed; and what must be read.

All of it runs in one thread: a writer takes no stream that another one holds, so nobody ever waits.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psycopg
from tests.events.reading import Reader

from rota import EventLog

STREAMS = [f"s{n}" for n in range(8)]


@dataclass
class Writer:
    number: int
    connection: psycopg.Connection[Any]
    open: bool = False
    prepared: str | None = None
    #: what its transaction has appended, and the streams it holds
    appended: list[tuple[str, int]] = field(default_factory=list)
    holds: set[str] = field(default_factory=set)


class Writers:
    """So many writers to one log, and one reader of it."""

    def __init__(self, dsn: str, log: EventLog, seed: int, count: int = 6) -> None:
        self._log = log
        self._random = random.Random(seed)
        self._writers = [Writer(number, psycopg.connect(dsn)) for number in range(count)]
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._admin.execute("create table if not exists public.elsewhere (n int)")
        self._transactions = 0
        self.committed: list[tuple[str, int]] = []
        self.reader = Reader(log)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._random.random() < 0.25:
                self.reader.read(limit=self._random.choice([1, 2, 5, 100]))
            else:
                self._step(self._random.choice(self._writers))
        for writer in self._writers:
            if writer.open or writer.prepared:
                self._end(writer, commit=True)
        while self.reader.read(limit=7):
            pass

    def check(self) -> None:
        """Every event that was committed was seen, once, and those of a stream in order and without gaps."""
        seen = [(event.stream, event.version) for event in self.reader.seen]
        pairs = [(event.order_xid, event.position) for event in self.reader.seen]
        assert Counter(seen) == Counter(self.committed)
        assert pairs == sorted(set(pairs))
        for stream in STREAMS:
            versions = [version for of, version in seen if of == stream]
            assert versions == list(range(1, len(versions) + 1))

    def close(self) -> None:
        for writer in self._writers:
            writer.connection.close()
        self._admin.close()

    def _step(self, writer: Writer) -> None:
        if writer.prepared:
            self._end(writer, commit=self._random.random() < 0.7)
        elif not writer.open:
            # some have their number long before they append
            writer.open = True
            if self._random.random() < 0.5:
                writer.connection.execute("insert into public.elsewhere values (1)")
            else:
                self._append(writer)
        else:
            self._random.choice([self._append, self._append, self._take_back, self._prepare, self._commit, self._undo])(
                writer
            )

    def _append(self, writer: Writer) -> None:
        free = [
            each for each in STREAMS if not any(each in other.holds for other in self._writers if other is not writer)
        ]
        if not free:
            return
        on = self._log.on(writer.connection, wake=False)
        streams = self._random.sample(free, self._random.randint(1, min(3, len(free))))
        appended = on.append_many_sync([on.bind(stream, "Changed", {"by": writer.number}) for stream in streams])
        writer.holds |= set(streams)
        writer.appended += [(each.stream, each.version) for each in appended]

    def _take_back(self, writer: Writer) -> None:
        """Append in a savepoint that is rolled back."""
        writer.connection.execute("savepoint before")
        before = list(writer.appended)
        holds = set(writer.holds)
        self._append(writer)
        writer.connection.execute("rollback to savepoint before")
        writer.appended, writer.holds = before, holds

    def _prepare(self, writer: Writer) -> None:
        self._transactions += 1
        name = f"t{self._transactions}"
        writer.connection.execute(f"prepare transaction '{name}'")
        writer.open, writer.prepared = False, name

    def _commit(self, writer: Writer) -> None:
        self._end(writer, commit=True)

    def _undo(self, writer: Writer) -> None:
        self._end(writer, commit=False)

    def _end(self, writer: Writer, *, commit: bool) -> None:
        if writer.prepared:
            self._admin.execute(f"{'commit' if commit else 'rollback'} prepared '{writer.prepared}'")
        elif commit:
            writer.connection.commit()
        if not writer.prepared and not commit:
            writer.connection.rollback()
        if commit:
            self.committed += writer.appended
        writer.open, writer.prepared, writer.appended, writer.holds = False, None, [], set()
