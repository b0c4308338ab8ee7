"""The answers to the probes of a web process: those of `runtime/health`, and what only the life of its server knows."""

from __future__ import annotations

from collections.abc import Callable

from rota.app import Rota
from rota.integrations.asgi.lifespan import Life
from rota.runtime.health import Report, health_of
from rota.service.ending import ENDING

__all__ = ["Probes", "Report"]


class Probes:
    """`app` None: there is no Rota, and the server alone is asked about."""

    def __init__(self, app: Rota | None, life: Callable[[], Life | None]) -> None:
        self._app = app
        self._life = life

    async def ask(self, name: str) -> Report:
        if name == "live":
            return Report(200, {"live": True}) if self._app is None else health_of(self._app).live()
        report = await self._report(name)
        reason = self._hindrance()
        return report if reason is None else Report(503, {**report.body, "ready": False, "reason": reason})

    async def _report(self, name: str) -> Report:
        if self._app is None:
            return Report(200, {"ready": True} if name == "ready" else {"live": True, "ready": True})
        health = health_of(self._app)
        return await (health.ready() if name == "ready" else health.detail())

    def _hindrance(self) -> str | None:
        """Why not to send requests here, whatever the database says."""
        if ENDING.begun:
            return "shutting_down"
        life = self._life()
        if life is None:
            return None
        return life.trouble if life.started else "starting"
