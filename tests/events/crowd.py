"""Many who write to one log at the same time, in threads: transactions that stay open, savepoints, and ends of both kinds."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from tests.events.reading import Reader

from rota import EventLog

STREAMS = [f"s{n}" for n in range(24)]


class Crowd:
    """So many writers, and a reader that reads while they write."""

    def __init__(self, dsn: str, log: EventLog, *, writers: int, transactions: int, events: int, seed: int) -> None:
        self._dsn = dsn
        self._log = log
        self._writers = writers
        self._transactions = transactions
        self._events = events
        self._seed = seed
        self._written = threading.Event()
        self.committed: Counter[tuple[str, int]] = Counter()
        self.reader = Reader(log)
        #: looks that found something although others were still writing
        self.looks = 0

    def run(self) -> None:
        with ThreadPoolExecutor(self._writers + 1) as threads:
            reading = threads.submit(self._read)
            writing = [threads.submit(self._write, number) for number in range(self._writers)]
            try:
                for each in writing:
                    self.committed += each.result()
            finally:
                self._written.set()
            reading.result()
        self.reader.read_until(self.committed.total())

    def check(self) -> None:
        seen = [(event.stream, event.version) for event in self.reader.seen]
        pairs = [(event.order_xid, event.position) for event in self.reader.seen]
        assert Counter(seen) == self.committed
        assert pairs == sorted(set(pairs))
        for stream in STREAMS:
            versions = [version for of, version in seen if of == stream]
            assert versions == list(range(1, len(versions) + 1))

    def _read(self) -> None:
        while not self._written.is_set():
            self.looks += bool(self.reader.read(limit=200))

    def _write(self, number: int) -> Counter[tuple[str, int]]:
        chance = random.Random(self._seed * 1000 + number)
        committed: Counter[tuple[str, int]] = Counter()
        with psycopg.connect(self._dsn) as connection:
            done = 0
            while done < self._transactions or not self.looks:  # until someone has read beside us
                committed += self._transaction(connection, chance)
                done += 1
        return committed

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random) -> Counter[tuple[str, int]]:
        appended: Counter[tuple[str, int]] = Counter()
        connection.execute("select 1")  # the blocks below are savepoints in one transaction
        if chance.random() < 0.5:
            # it has its number now, and others go on for a while
            connection.execute("select pg_current_xact_id(), pg_sleep(%s)", (chance.random() / 200,))
        # in one order, so that nobody waits in a circle
        for stream in sorted(chance.sample(STREAMS, chance.randint(1, 3))):
            with connection.transaction() as block:
                on = self._log.on(connection)
                new = on.append_many_sync([on.bind(stream, "Changed")] * chance.randint(1, self._events))
                if chance.random() < 0.2:
                    raise psycopg.Rollback(block)
                appended += Counter((each.stream, each.version) for each in new)
        if chance.random() < 0.2:
            connection.rollback()
            return Counter()
        connection.commit()
        return appended
