"""The ASGI application: its routes, and what every request goes through."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from rota.app import Rota
from rota.dashboard.actions import ACTIONS
from rota.dashboard.api.routes import api_routes
from rota.dashboard.asked import TYPED, Asked, check_typed
from rota.dashboard.assets import Assets
from rota.dashboard.doors import Refused, door_of
from rota.dashboard.drawing import Drawing, digest
from rota.dashboard.fields import read_form
from rota.dashboard.guard import CSRF_COOKIE, Hardened, Tokens, comes_from_elsewhere
from rota.dashboard.live import live_stream
from rota.dashboard.looking import Looking, Readings
from rota.dashboard.page import Drawn, Look, Page, Region
from rota.dashboard.pages import MENU, PAGES
from rota.dashboard.problems import problem, status_of
from rota.dashboard.redaction import Redaction
from rota.dashboard.rights import User
from rota.errors import ConfigurationError, DatabaseUnavailable, RotaError, SchemaMismatch
from rota.integrations.asgi.drain import Asgi
from rota.release import RELEASE

__all__ = ["Dashboard", "check_mount", "make_dashboard", "mount"]


_SAID_COOKIE = "rota_said"
_LONGEST_FORM = 64 * 1024
_LONGEST_SAID = 1000


def make_dashboard(app: Rota, *, auth: Any, read_only: bool, redact: Sequence[str]) -> Asgi:
    """What `app.dashboard()` returns."""
    return Hardened(Dashboard(app, auth=auth, read_only=read_only, redact=redact).application)


def check_mount(path: str) -> None:
    """Refuse what is no path. Raises ConfigurationError."""
    if not isinstance(path, str) or not path.startswith("/") or not path.strip("/"):
        raise ConfigurationError(
            f'dashboard cannot be {path!r}: it is the path under which the page is found, such as "/rota". To have it as the whole '
            "application, serve app.dashboard()."
        )


def mount(api: Any, path: str, dashboard: Asgi) -> None:
    """Put it before the other routes, one of which may take every path."""
    check_mount(path)
    folder = path.rstrip("/")

    async def into_folder(_: Request) -> Response:
        # addresses are relative to a folder
        return RedirectResponse(f"{folder.rsplit('/', 1)[-1]}/", 308)

    api.router.routes[:0] = [
        Mount(folder, dashboard, name="rota-dashboard"),
        Route(folder, into_folder, include_in_schema=False),
    ]


class Dashboard:
    """Needs no lifespan: whoever mounts an application does not tell it of its start."""

    def __init__(self, app: Rota, *, auth: Any = None, read_only: bool = False, redact: Sequence[str] = ()) -> None:
        self.app = app
        self.read_only = read_only
        self._door = door_of(auth)
        self._redaction = Redaction(redact)
        self._drawing = Drawing()
        self._assets = Assets()
        # those of an app that is pointed elsewhere are made anew; readings belong to the loop that reads
        self._looking: Looking | None = None
        self._readings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Readings] = weakref.WeakKeyDictionary()
        dsn = app.settings.dsn
        self._tokens = Tokens((dsn.conninfo if dsn is not None else "", app.settings.schema, *_seeds(auth)))
        self.application = Starlette(
            routes=[
                Route("/static/{digest}/{name}", self._admitted(self._asset), methods=["GET"]),
                *api_routes(self),
                *(
                    Route(page.path, self._admitted(self._endpoint(page)), methods=["GET", "POST"], name=page.name)
                    for page in PAGES
                ),
            ],
            exception_handlers={HTTPException: self._on_http, RotaError: self._on_error},
        )
        # an absolute address, which Starlette would send, may be wrong behind a proxy
        self.application.router.redirect_slashes = False

    def look(self, request: Request, user: User, page: Page | None = None) -> Look:
        """What a request sees."""
        if self._looking is None or self._looking.of is not self.app.database:
            self._looking = Looking(self.app)
        loop = asyncio.get_running_loop()
        readings = self._readings.setdefault(loop, Readings())
        return Look(
            request,
            app=self.app,
            looking=self._looking,
            readings=readings,
            user=user,
            redaction=self._redaction,
            page=page,
        )

    async def admit(self, request: Request) -> User | Response:
        """Who it is, with what they may do here; or what to answer instead."""
        try:
            found = await self._door(request)
        except Refused as refused:
            if refused.wait:
                return self.refuse(request, 429, str(refused), {"retry-after": str(refused.wait)})
            headers = {"www-authenticate": 'Basic realm="Rota", charset="UTF-8"'} if refused.challenge else {}
            return self.refuse(request, 401 if refused.challenge else 403, str(refused), headers)
        if found is None:
            return self.refuse(request, 403, "The application that this dashboard is part of does not let you in.")
        if isinstance(found, User) and self.read_only:
            return User(found.name, "read")
        return found

    def refuse(self, request: Request, status: int, why: str, headers: dict[str, str] | None = None) -> Response:
        if _is_api(request):
            return problem(status, why, headers)
        return PlainTextResponse(f"{why}\n", status, headers)

    def changed(self) -> None:
        """Something was changed here: whoever looks next sees it."""
        for readings in self._readings.values():
            readings.forget()

    def _admitted(
        self, endpoint: Callable[[Request, User], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            user = await self.admit(request)
            return user if isinstance(user, Response) else await endpoint(request, user)

        return answer

    async def _asset(self, request: Request, _: User) -> Response:
        return await self._assets.serve(request)

    def _endpoint(self, page: Page) -> Callable[[Request, User], Awaitable[Response]]:
        async def endpoint(request: Request, user: User) -> Response:
            if not request.scope["path"].removeprefix(request.scope.get("root_path", "")):
                # mounted by something that does not see to it: addresses are relative to a folder
                return RedirectResponse(request.scope["path"].rsplit("/", 1)[-1] + "/", 308)
            look = self.look(request, user, page)
            if request.method == "POST":
                return await self._act(look, page)
            if "_live" in request.query_params and page.live:
                return live_stream(lambda: self._digests(look, page), look.until_paid)
            if (name := request.query_params.get("_fragment")) is not None:
                return await self._fragment(look, page, name)
            return await self._whole(look, page)

        return endpoint

    async def _whole(self, look: Look, page: Page, asked: Asked | None = None, status: int = 200) -> Response:
        """The page; with what a form of it asked for, if that is not done yet."""
        cookie, new = self._tokens.cookie_of(look.request)
        token = self._tokens.token(cookie, look.user)
        # what was typed is given back, also where there is nothing else to show any more
        fatal = (RotaError,) if asked is None else ()
        drawn = await asyncio.gather(*(self._region(look, region, token, fatal) for region in page.regions))
        if status == 200 and all(each.is_missing for each in drawn):
            status = 503  # a program that asks need not read the words
        said = look.request.cookies.get(_SAID_COOKIE)
        values = {
            **self._values(look, token),
            "page": page,
            "menu": MENU,
            "regions": {each.name: each for each in drawn},
            "said": _read_said(said),
            "asked": asked,
            "theme": _one_of(look.request.cookies.get("rota_theme"), ("light", "dark")),
            "zone": _one_of(look.request.cookies.get("rota_zone"), ("ago", "utc", "local")) or "ago",
            "asset": lambda name: look.to(self._assets.path(name)),
            "release": RELEASE,
            "read_only": self.read_only or look.user.rights == "read",
        }
        response = HTMLResponse(self._drawing.draw(page.template, values), status)
        if new:
            _set_cookie(response, look.request, CSRF_COOKIE, cookie)
        if said is not None:
            response.delete_cookie(_SAID_COOKIE, path="/", httponly=True, samesite="lax")
        return response

    async def _fragment(self, look: Look, page: Page, name: str) -> Response:
        region = next((each for each in page.regions if each.name == name), None)
        if region is None:
            raise HTTPException(404, f"This page has no region {name[:50]!r}.")
        cookie, _ = self._tokens.cookie_of(look.request)
        drawn = await self._region(look, region, self._tokens.token(cookie, look.user))
        return HTMLResponse(drawn.html, headers={"x-rota-digest": drawn.digest})

    async def _digests(self, look: Look, page: Page) -> dict[str, str]:
        cookie, _ = self._tokens.cookie_of(look.request)
        token = self._tokens.token(cookie, look.user)
        return {region.name: (await self._region(look, region, token)).digest for region in page.regions}

    async def _region(
        self, look: Look, region: Region, token: str, fatal: tuple[type[RotaError], ...] = (RotaError,)
    ) -> Drawn:
        """The region; or, if what it shows cannot be had at all, why. Raises what is `fatal`, but for what passes by itself."""
        try:
            told = await region.read(look)
            html = self._drawing.draw(region.template, {**self._values(look, token), **told})
        except RotaError as error:
            if isinstance(error, fatal) and not isinstance(error, DatabaseUnavailable | SchemaMismatch):
                raise
            html = self._drawing.draw("trouble.html", {"trouble": str(error)})
            return Drawn(region.name, html, digest(html), is_missing=True)
        return Drawn(region.name, html, digest(html))

    def _values(self, look: Look, token: str) -> dict[str, Any]:
        return {"look": look, "to": look.to, "here": look.here, "may": look.may, "token": token, "params": look.params}

    async def _act(self, look: Look, page: Page) -> Response:
        """Do what a form of this page asks for, and come back to the page; or give it back with what was typed, and why not."""
        if comes_from_elsewhere(look.request):
            raise HTTPException(403, "This was sent by a page of another site, so nothing was done.")
        form = await _read_body(look.request)
        if not self._tokens.fits(look.request, look.user, form.get("_token", "")):
            raise HTTPException(
                403, "The token of this form is missing, or is not yours: load the page again. Nothing was done."
            )
        name = form.get("action", "")
        if name not in page.actions:
            raise HTTPException(400, "This page has no such action. Nothing was done.")
        action = ACTIONS[name]
        if not look.may(action.right):
            raise HTTPException(403, f"You may not do this: it needs the right {action.right}. Nothing was done.")
        try:
            values = read_form(name, action.fields, form)
            if action.check is not None:
                action.check(look, values)
            if "_preview" in form or (TYPED not in form and action.typed(values) is not None):
                told = None if action.preview is None else await action.preview(look, values)
                return await self._whole(look, page, Asked(action, form, preview=told))
            check_typed(action, values, form)
            done = await action.do(self.app, values, look.user.name)
        except RotaError as error:
            self.changed()
            return await self._whole(look, page, Asked(action, form, error), status_of(error))
        self.changed()
        left_to = page.leave_to.get(name) if action.lead is None else action.lead(done)
        onwards = action.then(look, values) if action.then else look.here() if left_to is None else look.to(left_to)
        response = RedirectResponse(onwards, 303)
        said = action.said(done, values)[:_LONGEST_SAID]
        _set_cookie(response, look.request, _SAID_COOKIE, quote(f"ok:{said}"), seconds=60)
        return response

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if _is_api(request):
            # what there is and what not is nobody's business who is not let in
            user = await self.admit(request)
            return user if isinstance(user, Response) else problem(error.status_code, error.detail, headers)
        return await self._trouble(request, error.status_code, error.detail, headers)

    async def _on_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RotaError)
        if _is_api(request):
            return problem(status_of(error), str(error))
        return await self._trouble(request, status_of(error), str(error))

    async def _trouble(
        self, request: Request, status: int, why: str, headers: dict[str, str] | None = None
    ) -> Response:
        """A page that says what is wrong, for who may see pages at all."""
        user = await self.admit(request)
        if isinstance(user, Response):
            return user
        look = self.look(request, user)
        values = {
            **self._values(look, ""),
            "page": None,
            "menu": MENU,
            "said": None,
            "asked": None,
            "status": status,
            "trouble": why,
            "theme": _one_of(request.cookies.get("rota_theme"), ("light", "dark")),
            "zone": "ago",
            "asset": lambda name: look.to(self._assets.path(name)),
            "release": RELEASE,
            "read_only": self.read_only,
        }
        return HTMLResponse(self._drawing.draw("error.html", values), status, headers)


def _seeds(auth: Any) -> Sequence[str]:
    """What of it every process with the same settings has alike, which a function has not."""
    return () if callable(auth) or auth is None else (auth,) if isinstance(auth, str) else sorted(auth)


def _is_api(request: Request) -> bool:
    path: str = request.scope["path"].removeprefix(request.scope.get("root_path", "").rstrip("/"))
    return path.startswith("/api/")


def _one_of(value: str | None, choices: Sequence[str]) -> str | None:
    return value if value in choices else None


async def _read_body(request: Request) -> dict[str, str]:
    """The fields of a form; the first of each."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form of this page sends application/x-www-form-urlencoded. Nothing was done.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            raise HTTPException(
                413, f"That is more than the {_LONGEST_FORM:,} bytes that a form may have. Nothing was done."
            )
    form: dict[str, str] = {}
    try:
        for name, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict"):
            form.setdefault(name, value)
    except ValueError as error:
        raise HTTPException(400, "That is no form. Nothing was done.") from error
    return form


def _read_said(cookie: str | None) -> tuple[str, str] | None:
    kind, _, text = unquote(cookie or "").partition(":")
    return (kind, text) if kind in ("ok", "trouble") and text else None


def _set_cookie(response: Response, request: Request, name: str, value: str, seconds: int | None = None) -> None:
    response.set_cookie(
        name, value, max_age=seconds, path="/", httponly=True, samesite="lax", secure=request.url.scheme == "https"
    )
