"""What a page is made of, and one request for it.

A page has regions. Each is read on its own and drawn by a template of its own, so that it can be drawn anew while the rest of
the page, and what someone types into it, stays. To add a page: a module in `pages/` with a `Page`, a template for it and one for
each of its regions, and its name in `pages/__init__`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request

from rota.app import Rota
from rota.dashboard.looking import Known, Looking, Readings, paid_after
from rota.dashboard.redaction import Redaction
from rota.dashboard.rights import User
from rota.errors import ConfigurationError

__all__ = ["Look", "Page", "Region"]

T = TypeVar("T")

_LONGEST = 500  # characters of a filter: nothing that it is compared with is longer


@dataclass(frozen=True)
class Region:
    """A part of a page that changes. `read` returns what its template draws."""

    name: str
    template: str
    read: Callable[[Look], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Page:
    """`path` is below the dashboard; `params` are the filters that its address may have; `actions` what its forms may ask for."""

    name: str
    path: str
    title: str
    template: str
    regions: tuple[Region, ...]
    params: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    #: where one is after an action that leaves nothing to show here
    leave_to: Mapping[str, str] = field(default_factory=dict)
    #: the page whose entry of the menu leads here, if it is not its own
    within: str | None = None
    #: whether it is worth drawing anew every second
    live: bool = True


class Look:
    """One request for a page: who looks, at what, and what they may see."""

    def __init__(
        self,
        request: Request,
        *,
        app: Rota,
        looking: Looking,
        readings: Readings,
        user: User,
        redaction: Redaction,
        page: Page | None,
    ) -> None:
        self.request = request
        self.app = app
        self.looking = looking
        self.user = user
        self.redaction = redaction
        self.page = page
        self._readings = readings
        self._owed = 0
        # the script of an open page asks for these by itself
        self._paced = not {"_live", "_fragment"}.isdisjoint(request.query_params)
        known = () if page is None else page.params
        self.params = {name: value for name in known if (value := request.query_params.get(name, "").strip())}
        for name, value in self.params.items():
            if len(value) > _LONGEST or "\0" in value:
                raise ConfigurationError(f"{name} cannot be that: it is a text of up to {_LONGEST} characters.")

    @property
    def depth(self) -> int:
        """How many folders below the dashboard this page is."""
        return max(0, self._path.count("/") - 1)

    @property
    def _path(self) -> str:
        path: str = self.request.scope["path"]
        return path.removeprefix(self.request.scope.get("root_path", "").rstrip("/"))

    def param(self, name: str) -> str | None:
        return self.params.get(name)

    def whole_number(self, name: str) -> int | None:
        """A filter that is a number. Raises ConfigurationError for what is none."""
        text = self.params.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            raise ConfigurationError(f"{name} cannot be {text!r}: it is a whole number.")
        return int(text)

    def may(self, right: str) -> bool:
        return self.user.may(right)

    def to(self, path: str, /, **query: Any) -> str:
        """A relative address of a page, so that it does not matter under which path the dashboard is found."""
        asked = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
        where = "../" * self.depth + "/".join(quote(part, safe="") for part in path.split("/"))
        return (where or "./") + (f"?{urlencode(asked)}" if asked else "")

    def here(self, **changes: Any) -> str:
        """This page with some filters changed."""
        return self.to(self._path.lstrip("/"), **{**self.params, **changes})

    async def read(self, key: Hashable, function: Callable[[], Awaitable[T]], fresh: float | None = None) -> Known[T]:
        """Read for a region: under a deadline, no more than about once a second, or in `fresh` seconds for what is dear, and as it
        was known last if need be. An open page reads no more than it may."""
        known = await self._readings.read((self.looking.of, key), function, fresh, paced=self._paced)
        self._owed += known.statements
        return known

    def until_paid(self) -> float:
        """How many seconds to wait before looking again, for what was read since this was asked last."""
        owed, self._owed = self._owed, 0
        return paid_after(owed)


@dataclass
class Drawn:
    """A region as it is now. `digest` changes with what there is to see. One that `is_missing` tells only why."""

    name: str
    html: str
    digest: str
    is_missing: bool = False
