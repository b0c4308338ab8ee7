"""The answers to the probes of a web process: those of `runtime/health`, and what only the life of its server knows."""

from __future__ import annotations

from collections.abc import Callable

from rota.app import Rota
from rota.integrations.asgi.lifespan import Life
from rota.runtime.health import Report, health_of
from rota.runtime.lifeline import is_replaced
from rota.service.ending import ENDING

__all__ = ["Probes", "Report"]


class Probes:
    """`app` None: there is no Rota, and the server alone is asked about.

    Who asks by HTTP asks about a port. Several processes may share it, and then it is ready as long as one of them is: one that
    starts beside others, or ends because another is there in its place, must not have a balancer take all of them for gone. With
    `alone` it is this process that is asked about. `expected`: whether it cannot be ready without a life.
    """

    def __init__(
        self,
        app: Rota | None,
        life: Callable[[], Life | None],
        expected: Callable[[], bool] = lambda: False,
        *,
        alone: bool = False,
    ) -> None:
        self._app = app
        self._life = life
        self._expected = expected
        self._alone = alone

    async def ask(self, name: str) -> Report:
        if name == "live":
            return Report(200, {"live": True}) if self._app is None else health_of(self._app).live()
        reason = self._hindrance()
        if name == "startup":
            return await self._startup(reason)
        report = await self._report(name)
        if reason is not None:
            report = Report(503, {**report.body, "ready": False, "reason": reason})
        return report if name == "detail" or not self._others_serve(report) else Report(200, {"ready": True})

    async def _startup(self, reason: str | None) -> Report:
        if reason == "starting":
            return Report(503, {"started": False, "reason": reason})
        return Report(200, {"started": True}) if self._app is None else await health_of(self._app).startup()

    def _others_serve(self, report: Report) -> bool:
        life = self._life()
        reason = report.body.get("reason")
        joins = life is not None and life.joins and reason == "starting"
        return not self._alone and (joins or (is_replaced() and reason == "shutting_down"))

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
            return "starting" if self._expected() else None
        return life.trouble if life.started else "starting"
