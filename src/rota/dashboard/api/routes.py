"""The API as routes: reading by GET, each action by a POST of JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rota.app import Rota
from rota.dashboard.actions import ACTIONS, Action
from rota.dashboard.api.endpoints import ENDPOINTS, Endpoint, seen
from rota.dashboard.api.openapi import document
from rota.dashboard.api.values import as_json
from rota.dashboard.fields import read_object
from rota.dashboard.guard import comes_from_elsewhere
from rota.dashboard.looking import bounded
from rota.dashboard.page import Look, Page
from rota.dashboard.rights import User
from rota.errors import ConfigurationError

__all__ = ["BASE", "api_routes"]

BASE = "/api/v1"
_LONGEST_BODY = 64 * 1024


class Site(Protocol):
    """The dashboard, as the API knows it."""

    app: Rota

    async def admit(self, request: Request) -> User | Response: ...

    def look(self, request: Request, user: User, page: Page | None = None) -> Look: ...

    def changed(self) -> None: ...


Answer = Callable[[Look], Awaitable[Any]]


def api_routes(site: Site) -> list[Route]:
    def route(path: str, method: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            user = await site.admit(request)
            if isinstance(user, Response):
                return user
            return _json(await answer(site.look(request, user)))

        return Route(f"{BASE}{path}", endpoint, methods=[method])

    async def described(_: Look) -> Any:
        return document()

    return [
        route("/openapi.json", "GET", described),
        *(route(each.path.replace("{id}", "{id:int}"), "GET", _reading(each)) for each in ENDPOINTS),
        *(route(f"/actions/{each.name}", "POST", _acting(site, each)) for each in ACTIONS.values()),
        *(route(f"/previews/{each.name}", "POST", _previewing(each)) for each in ACTIONS.values() if each.preview),
    ]


def _reading(endpoint: Endpoint) -> Answer:
    async def answer(look: Look) -> Any:
        query = look.request.query_params
        if unknown := set(query) - endpoint.params.keys():
            names = ", ".join(sorted(name[:50] for name in unknown))
            raise ConfigurationError(
                f"There is no parameter {names}: there are {', '.join(endpoint.params) or 'none'}."
            )
        missing = [name for name, param in endpoint.params.items() if param.required and name not in query]
        if missing:
            raise ConfigurationError(f"{', '.join(missing)} is missing.")
        values = {
            name: endpoint.params[name].read(name, text) for name, text in query.items()
        } | look.request.path_params
        found = seen(look, await bounded(endpoint.read(look, values)))
        if not endpoint.is_page:
            return as_json(found)
        return {"items": as_json(list(found)), "next": _next(endpoint, found, values)}

    return answer


def _next(endpoint: Endpoint, found: Any, values: Any) -> str | None:
    """Where the next page begins; None when this one was not full."""
    if not endpoint.cursor or len(found) < values.get("limit", 50):
        return None
    return str(getattr(found[-1], endpoint.cursor))


async def _asked(look: Look, action: Action) -> dict[str, Any]:
    """The fields that were sent, by someone who may."""
    if comes_from_elsewhere(look.request):
        raise HTTPException(403, "This was sent by a page of another site, so nothing was done.")
    if not look.may(action.right):
        raise HTTPException(403, f"You may not do this: it needs the right {action.right}. Nothing was done.")
    values = read_object(action.name, action.fields, await _read_body(look.request))
    if action.check is not None:
        action.check(look, values)
    return values


def _previewing(action: Action) -> Answer:
    async def answer(look: Look) -> Any:
        values = await _asked(look, action)
        assert action.preview is not None, "there is no such path"
        return as_json(await action.preview(look, values))

    return answer


def _acting(site: Site, action: Action) -> Answer:
    async def answer(look: Look) -> Any:
        values = await _asked(look, action)
        try:
            done = await action.do(site.app, values, look.user.name)
        finally:
            site.changed()
        return {"said": action.said(done, values), "result": _result(look, action, done)}

    return answer


def _result(look: Look, action: Action, done: Any) -> Any:
    if action.name == "projections.skip":  # what is in the event is nobody's business here
        return {"position": str(done.position), "type": done.type, "stream": done.stream}
    if action.name == "dead.retry_group":
        return [str(job) for job in done]
    return as_json(seen(look, done))


async def _read_body(request: Request) -> Any:
    # a form, which any page may send anywhere, has another type
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Send the fields as a JSON object, as application/json. Nothing was done.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_BODY:
            raise HTTPException(
                413, f"That is more than the {_LONGEST_BODY:,} bytes that may be sent. Nothing was done."
            )
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "That is no JSON. Nothing was done.") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")


def _json(value: Any) -> Response:
    return Response(json.dumps(value, ensure_ascii=True, default=str), media_type="application/json")
