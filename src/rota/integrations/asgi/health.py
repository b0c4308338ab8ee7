"""The probes by HTTP, and the endpoint for preStop. Plain ASGI, so that they answer under any framework.

GET  /health/live  (/livez)     the process makes progress
GET  /health/ready (/readyz)    it wants requests
GET  /startupz                  its start is over
GET  /health                    both, in detail
POST /health/drain              begin to end, without the exit; only where a token is set, and for who knows it

They ask for no credentials, and tell no secrets. The paths are those of the application, below its root path.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rota.app import Rota
from rota.integrations.asgi.drain import Receive, Scope, Send, closing
from rota.integrations.asgi.lifespan import Life, life_of
from rota.integrations.asgi.readiness import Probes, Report
from rota.service.ending import ENDING

__all__ = ["HealthRoutes", "health_router"]

_PATHS = {
    "/health/live": "live",
    "/livez": "live",
    "/health/ready": "ready",
    "/readyz": "ready",
    "/startupz": "startup",
    "/health": "detail",
    "/health/drain": "drain",
}


class HealthRoutes:
    """An ASGI application for the paths that `handles` names. `life` gives the present life of the process, if any."""

    def __init__(
        self,
        app: Rota | None,
        life: Callable[[], Life | None],
        drain_token: str | None = None,
        expected: Callable[[], bool] = lambda: False,
    ) -> None:
        self._life = life
        self._token = drain_token or os.environ.get("ROTA_DRAIN_TOKEN") or None
        self._probes = Probes(app, life, expected)

    def handles(self, scope: Scope) -> bool:
        return scope["type"] == "http" and self._name(scope) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._name(scope)
        allowed = ("POST",) if name == "drain" else ("GET", "HEAD")
        if name is None:
            report = Report(404, {"error": "not found"})
        elif scope["method"] not in allowed:
            report = Report(405, {"error": f"use {allowed[0]}"})
        else:
            report = self._drain(scope) if name == "drain" else await self._probes.ask(name)
        await self._answer(report, scope, send, allowed)

    def _name(self, scope: Scope) -> str | None:
        path, root = scope["path"], scope.get("root_path", "")
        name = _PATHS.get(path.removeprefix(root.rstrip("/")))
        return None if name == "drain" and self._token is None else name

    def _drain(self, scope: Scope) -> Report:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        assert self._token is not None
        # in constant time: how long it takes tells nothing of how much was right
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            return Report(401, {"error": "send the drain token as Authorization: Bearer"})
        began = ENDING.begin("the drain endpoint", exits=False)
        return Report(202, {"draining": True, "began": began})

    async def _answer(self, report: Report, scope: Scope, send: Send, allowed: Sequence[str]) -> None:
        body = json.dumps(report.body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        life = self._life()
        if report.status == 405:
            headers.append((b"allow", ", ".join(allowed).encode()))
        if report.status == 503:
            # when to ask again: by then this process is gone, or has tried again
            headers.append((b"retry-after", str(max(1, math.ceil(life.window() if life else 1))).encode()))
        start: dict[str, Any] = {"type": "http.response.start", "status": report.status, "headers": headers}
        if ENDING.begun and scope.get("http_version", "1.1").startswith("1"):
            start = dict(closing(start))
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def health_router(app: Rota, drain_token: str | None = None) -> Any:
    """The same as routes of the framework that is there: `api.include_router(app.health_router())`, and for Starlette
    `Starlette(routes=app.health_router().routes)`."""
    from starlette.routing import Route, Router

    answer = HealthRoutes(app, lambda: life_of(app), drain_token)
    routes = [Route(path, answer, include_in_schema=False) for path in _PATHS]
    # FastAPI includes routers of its own kind only; who calls include_router has imported it
    fastapi = sys.modules.get("fastapi")
    return Router(routes) if fastapi is None else fastapi.APIRouter(routes=routes)
