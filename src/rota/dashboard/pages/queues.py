"""Queues: what waits where, and pausing, limiting and weighing them."""

from __future__ import annotations

from typing import Any

from rota.dashboard.page import Look, Page, Region

__all__ = ["PAGE"]


async def _list(look: Look) -> dict[str, Any]:
    known = await look.read("queues", look.looking.queues.list)
    return {"known": known, "queues": known.value}


PAGE = Page(
    "queues",
    "/queues",
    "Queues",
    "queues.html",
    (Region("list", "queues_list.html", _list),),
    actions=("queues.pause", "queues.resume", "queues.limit", "queues.weigh"),
)
