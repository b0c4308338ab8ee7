"""Queues: what waits where, and pausing, limiting, weighing and relaxing them."""

from __future__ import annotations

from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.dashboard.pages.pictures import depth_sparks, drains

__all__ = ["PAGE"]

_DEPTH_SECONDS = 15.0  # there is a sample a minute


async def _list(look: Look) -> dict[str, Any]:
    known = await look.read("queues", look.looking.queues.list)
    depths = await look.read("depths", lambda: look.looking.trends.depths("1h"), fresh=_DEPTH_SECONDS)
    return {
        "known": known,
        "queues": known.value,
        "sparks": depth_sparks(depths.value),
        "drains": drains(depths.value),
    }


PAGE = Page(
    "queues",
    "/queues",
    "Queues",
    "queues.html",
    (Region("list", "queues_list.html", _list),),
    actions=("queues.pause", "queues.resume", "queues.limit", "queues.weigh", "queues.relax", "queues.tighten"),
)
