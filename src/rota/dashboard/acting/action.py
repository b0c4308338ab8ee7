"""What an action is: its name, the right it needs, the fields it takes, and what it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.app import Rota
from rota.dashboard.fields import Field, Fields
from rota.dashboard.page import Look

__all__ = ["ID", "NAME", "REASON", "Action", "Preview", "Values"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preview:
    """What an action would do: in words, and as a table of samples."""

    said: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Action:
    """`name` is how it is asked for, and unless said otherwise the right that it needs."""

    name: str
    about: str
    fields: Fields
    do: Callable[[Rota, Values, str], Awaitable[Any]]
    #: what to tell whoever did it, from what came of it and what was asked
    said: Callable[[Any, Values], str]
    needs: str = ""
    #: what it would do, for whoever wants to know first; it changes nothing, and needs the same right
    preview: Callable[[Look, Values], Awaitable[Preview]] | None = None
    #: what is to be typed on a page before it is done, as it cannot be taken back; None if nothing
    typed: Callable[[Values], str | None] = lambda values: None
    #: refuses what may not be asked for by whoever looks, such as a search for what they may not see
    check: Callable[[Look, Values], None] | None = None
    #: the page that shows what was begun, from what came of it
    lead: Callable[[Any], str] | None = None
    #: the page to go to when it is done, where that is not the one it was asked for on
    then: Callable[[Look, Values], str] | None = None

    @property
    def right(self) -> str:
        return self.needs or self.name


ID = {"id": Field("id", "the job", required=True, fixed=True)}
NAME = {"name": Field("text", "its name", required=True, fixed=True)}
REASON = {"reason": Field("text", "why, for whoever looks at it later")}
