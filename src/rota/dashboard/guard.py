"""What stands before every page: headers that a browser obeys, who it is that asks, and that a change was meant by them.

A change is a POST that our own page sent. A browser says where a request comes from (Sec-Fetch-Site, else Origin), and that must
be here; and the form carries a token that only a page of ours could have read: it is made of a cookie and the user's name under a
key that all processes with the same settings share, so it holds whichever of them answers. A request to the API is no form: its body
is JSON, which no page from elsewhere can send without being asked about, and that is refused to all.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import Request

from rota.dashboard.rights import User
from rota.integrations.asgi.drain import Asgi, Message, Receive, Scope, Send

__all__ = ["CSRF_COOKIE", "Hardened", "Tokens", "comes_from_elsewhere"]

CSRF_COOKIE = "rota_csrf"
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Hardened:
    """Puts the headers on every answer, also on errors; what may be kept says so itself."""

    def __init__(self, inner: Asgi) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_HEADERS]
                if not any(name.lower() == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        await self._inner(scope, receive, say)


class Tokens:
    """The tokens that forms carry. `seeds` are what all processes with the same settings know, and nobody else."""

    def __init__(self, seeds: Iterable[str]) -> None:
        self._key = hashlib.sha256("\0".join(("rota dashboard", *seeds)).encode()).digest()

    def cookie_of(self, request: Request) -> tuple[str, bool]:
        """The cookie that the token is made of, and whether it is new."""
        given = request.cookies.get(CSRF_COOKIE, "")
        return (given, False) if _COOKIE.fullmatch(given) else (secrets.token_urlsafe(32), True)

    def token(self, cookie: str, user: User) -> str:
        return hmac.new(self._key, f"{cookie}\0{user.name}".encode(), hashlib.sha256).hexdigest()

    def fits(self, request: Request, user: User, token: str) -> bool:
        cookie, new = self.cookie_of(request)
        # as bytes: what was sent may hold anything
        return not new and hmac.compare_digest(self.token(cookie, user).encode(), token.encode(errors="replace"))


def comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser says that a page of another site sent this. One that says nothing is no browser of this decade."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return False
    # a proxy may have put its own name in Host; no page from elsewhere can set either of these
    here = {request.headers.get("host"), request.headers.get("x-forwarded-host")} - {None}
    return urlsplit(origin).netloc not in here
