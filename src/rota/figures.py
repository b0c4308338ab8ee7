"""The numbers that a process shows of itself: memory, event loop, slots, connections. Asks nobody for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rota.facts import Facts
from rota.leases.condition import resident_bytes
from rota.service.watchdog import watchdogs

__all__ = ["Figures"]

# What a busy machine costs any loop now and then; less is no news.
_LAG_SECONDS = 0.05


class Occupied(Protocol):
    """A worker: how many of its slots are taken."""

    @property
    def slots(self) -> int: ...

    @property
    def running(self) -> int: ...


class Figures:
    """Of one app in this process. Safe from any thread."""

    def __init__(
        self,
        facts: Facts,
        workers: Callable[[], tuple[Occupied, ...]],
        pools: Callable[[], Mapping[str, Mapping[str, int]]],
    ) -> None:
        self._facts = facts
        self._workers = workers
        self._pools = pools
        self._waited: dict[str, tuple[int, int]] = {}

    def look(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if (memory := resident_bytes()) is not None:
            told["rss"] = memory
        if lags := [watchdog.lag.longest for watchdog in watchdogs(self._facts)]:
            told["lag"] = 0 if max(lags) < _LAG_SECONDS else round(max(lags), 2)
        if workers := self._workers():
            told["running"] = sum(worker.running for worker in workers)
            told["slots"] = sum(worker.slots for worker in workers)
        told["pools"] = {name: self._pool(name, pool) for name, pool in self._pools().items()}
        return told

    def _pool(self, name: str, pool: Mapping[str, int]) -> dict[str, int]:
        """`wait_ms` is over those that had to wait since the last look."""
        queued, waited = pool.get("requests_queued", 0), pool.get("requests_wait_ms", 0)
        before = self._waited.get(name, (0, 0))
        self._waited[name] = (queued, waited)
        size = pool.get("pool_size", 0)
        return {
            "size": size,
            "most": pool.get("pool_max", 0),
            "used": max(0, size - pool.get("pool_available", 0)),
            "waiting": pool.get("requests_waiting", 0),
            "wait_ms": round(max(0, waited - before[1]) / (queued - before[0])) if queued > before[0] else 0,
        }
