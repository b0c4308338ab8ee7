"""Pollers over tables of the user's: what they hold, and what is parked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.pollers.inspect import ParkedRow, PollerView

__all__ = ["PAGE"]

_PARKED = 20


async def _list(look: Look) -> dict[str, Any]:
    async def read() -> tuple[Sequence[PollerView], dict[str, Sequence[ParkedRow]]]:
        pollers = await look.looking.pollers.list()
        parked = {
            each.name: await look.looking.pollers.parked(each.name, limit=_PARKED) for each in pollers if each.parked
        }
        return pollers, parked

    known = await look.read("pollers", read)
    pollers, parked = known.value
    shown = {name: [look.redaction.parked_row(row) for row in rows] for name, rows in parked.items()}
    return {"known": known, "pollers": pollers, "parked": shown}


PAGE = Page(
    "pollers",
    "/pollers",
    "Pollers",
    "pollers.html",
    (Region("list", "pollers_list.html", _list),),
    actions=("pollers.pause", "pollers.resume", "pollers.release"),
)
