"""Who changed what by hand."""

from __future__ import annotations

from typing import Any

from rota.dashboard.filters import when
from rota.dashboard.page import Look, Page, Region

__all__ = ["PAGE"]

_SIZE = 100


async def _list(look: Look) -> dict[str, Any]:
    filters: dict[str, Any] = {name: look.param(name) for name in ("actor", "action", "about")}
    since, after = look.param("since"), look.whole_number("after")
    known = await look.read(
        ("audit", *filters.values(), since, after),
        lambda: look.looking.audit.list(
            **filters, since=None if since is None else when("since", since), after=after, limit=_SIZE
        ),
    )
    return {"known": known, "found": known.value, "full": _SIZE}


PAGE = Page(
    "audit",
    "/audit",
    "Audit",
    "audit.html",
    (Region("list", "audit_list.html", _list),),
    params=("actor", "action", "about", "since", "after"),
)
