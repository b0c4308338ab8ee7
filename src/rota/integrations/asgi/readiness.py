"""Whether this process wants requests: what can be told from here, until `runtime/health` tells more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rota.app import Rota
from rota.clock import boottime
from rota.errors import RotaError, SchemaMismatch
from rota.integrations.asgi.lifespan import Life
from rota.service.ending import ENDING

__all__ = ["Probes", "Report"]

# A probe is answered within this time, whatever the database does; and the database is asked once in it, however many probe.
_PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    status: int
    body: dict[str, Any]


class Probes:
    def __init__(self, app: Rota | None, life: Callable[[], Life | None]) -> None:
        self._app = app
        self._life = life
        self._asking: asyncio.Task[str | None] | None = None
        self._known: tuple[float, str | None] | None = None

    async def ask(self, name: str) -> Report:
        if name == "live":
            return Report(200, {"live": True})
        reason = await self._reason()
        ready = {"ready": True} if reason is None else {"ready": False, "reason": reason}
        return Report(200 if reason is None else 503, ready if name == "ready" else {"live": True, **ready})

    async def _reason(self) -> str | None:
        if ENDING.begun:
            return "shutting_down"
        life = self._life()
        if life is not None and not life.started:
            return "starting"
        if life is not None and life.trouble is not None:
            return life.trouble
        return None if self._app is None else await self._database(self._app)

    async def _database(self, app: Rota) -> str | None:
        if self._known is not None and boottime() - self._known[0] < _PATIENCE_SECONDS:
            return self._known[1]
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._check(app))
        done, _ = await asyncio.wait([self._asking], timeout=_PATIENCE_SECONDS)
        return self._asking.result() if done else "database"

    async def _check(self, app: Rota) -> str | None:
        try:
            await app.check()
            found = None
        except SchemaMismatch:
            found = "schema"
        except RotaError:
            found = "database"
        self._known = (boottime(), found)
        return found
