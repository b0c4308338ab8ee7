"""Who is let in: nobody from elsewhere unless told, whoever knows a password or token, or whom the host application knows."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rota.dashboard.attempts import Attempts
from rota.dashboard.rights import Rights, User, check_rights
from rota.errors import ConfigurationError

__all__ = ["Door", "Refused", "door_of", "is_loopback"]

#: Given a request, tells who it is; answers in the page's stead if a response is returned, and refuses if nothing is.
Door = Callable[[Request], Awaitable[User | Response | None]]

# What a proxy adds. Where there is one, that it is on this machine says nothing about who asks.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_SHORTEST = 8  # characters of a password or token: it can be tried some thousand times a day from each address


class Refused(Exception):
    """Not let in. `challenge` when a credential would help; `wait` is how many seconds until one is looked at."""

    def __init__(self, why: str, *, challenge: bool, wait: int = 0) -> None:
        super().__init__(why)
        self.challenge = challenge
        self.wait = wait


def door_of(auth: Any) -> Door:
    """What `auth=` says. Raises ConfigurationError for what cannot be a credential."""
    if auth is None:
        return _only_from_here
    if callable(auth):
        return _as_host_says(auth)
    if isinstance(auth, str):
        return _with_credentials({auth: "all"})
    if isinstance(auth, Mapping):
        return _with_credentials(auth)
    if isinstance(auth, Sequence):
        return _with_credentials(dict.fromkeys(auth, "all"))
    raise ConfigurationError(
        f'auth cannot be {type(auth).__name__}: it is "user:password", a token, several of these, a mapping of them to rights, or '
        "a function that is given the request and returns a rota.dashboard.User."
    )


def is_loopback(host: str) -> bool:
    """Whether this is an address, or the name, of the machine for itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def _only_from_here(request: Request) -> User:
    """Without credentials: who is on this machine, and asked for it by a name of this machine, which a page from elsewhere whose
    name was made to lead here did not."""
    client = request.client.host if request.client is not None else ""
    asked_for = request.headers.get("host", "").rsplit("]", 1)
    name = f"{asked_for[0]}]" if len(asked_for) == 2 else asked_for[0].rsplit(":", 1)[0]
    if not is_loopback(client) or not is_loopback(name) or any(each in request.headers for each in _FORWARDED):
        raise Refused(
            "This dashboard has no credentials, so it answers only on its own machine, by the name localhost. To open it to others, "
            'give it some: app.dashboard(auth="user:password"), or --auth.',
            challenge=False,
        )
    return User(f"someone at {client}", "all")


def _as_host_says(auth: Callable[[Request], Any]) -> Door:
    async def door(request: Request) -> User | Response | None:
        found = auth(request)
        if inspect.isawaitable(found):
            found = await found
        if found is not None and not isinstance(found, User | Response):
            raise ConfigurationError(
                f"The function that auth= names returned {type(found).__name__}: it returns a rota.dashboard.User, None to refuse, or "
                "a response such as a redirect to your log-in."
            )
        return found

    return door


def _with_credentials(rights: Mapping[str, Rights]) -> Door:
    passwords: list[tuple[str, bytes, User]] = []
    tokens: list[tuple[bytes, User]] = []
    for credential, what in rights.items():
        name, colon, password = credential.partition(":") if isinstance(credential, str) else ("", "", "")
        secret = password if colon else name
        if len(secret) < _SHORTEST or (colon and not name):
            raise ConfigurationError(
                f'auth needs a password or token of {_SHORTEST} characters or more: "user:password", or a token without a colon. For '
                "one: python -c 'import secrets; print(secrets.token_urlsafe())'."
            )
        if colon:
            passwords.append((name, _digest(password), User(name, check_rights(what))))
        else:
            tokens.append((_digest(secret), User("token", check_rights(what))))
    if not passwords and not tokens:
        raise ConfigurationError('auth names nobody: give a "user:password" or a token, or leave auth out.')

    attempts = Attempts()

    async def door(request: Request) -> User:
        given = request.headers.get("authorization", "")
        address = request.client.host if request.client is not None else ""
        scheme, _, rest = given.partition(" ")
        found: User | None = None
        if scheme.lower() == "bearer":
            found = _known_token(tokens, rest.strip())
        elif scheme.lower() == "basic":
            name, password = _read_basic(rest)
            # a browser asks for a name and a password only: a token may be given as the latter
            found = _known_password(passwords, name, password) or _known_token(tokens, password)
        wait = attempts.wait(address) if given else 0
        if wait and not (found is not None and attempts.was_let_in(address, found.name)):
            # whether it was right is not told: then trying would be worth it
            raise Refused(
                f"There were too many wrong tries from this address. The next one is looked at in {wait} s.",
                challenge=False,
                wait=wait,
            )
        if found is None:
            if given:
                attempts.failed(address)
            raise Refused(
                "Say who you are: a user name and password, or a token as Authorization: Bearer.", challenge=True
            )
        attempts.succeeded(address, found.name)
        return found

    return door


def _known_password(known: Sequence[tuple[str, bytes, User]], name: str, password: str) -> User | None:
    found, digest = None, _digest(password)
    for user, secret, who in known:  # all of them, and each in constant time: how long it takes tells nothing
        matches = hmac.compare_digest(secret, digest)
        if hmac.compare_digest(_digest(user), _digest(name)) and matches:
            found = who
    return found


def _known_token(known: Sequence[tuple[bytes, User]], token: str) -> User | None:
    found, digest = None, _digest(token)
    for secret, who in known:
        if hmac.compare_digest(secret, digest):
            found = who
    return found


def _read_basic(text: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return "", ""
    return name, password


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
