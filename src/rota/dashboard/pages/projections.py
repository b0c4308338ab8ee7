"""Projections: where they are, what waits for them, and who holds that up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.projections.inspect import ProjectionStatus, ProjectionView
from rota.projections.parked import ParkedEvent

__all__ = ["PAGE"]

_PARKED = 20

Key = tuple[str, int]


async def _list(look: Look) -> dict[str, Any]:
    async def read() -> tuple[Sequence[ProjectionView], dict[Key, ProjectionStatus], dict[Key, Sequence[ParkedEvent]]]:
        projections = look.looking.projections
        views = await projections.list()
        declared = {(each.name, each.version) for each in views}
        known = [each for each in projections.values() if (each.name, each.version) in declared]
        statuses = {(each.name, each.version): await each.status() for each in known}
        parked = {
            (each.name, each.version): await projections.parked(each.name, version=each.version, limit=_PARKED)
            for each in views
            if each.parked
        }
        return views, statuses, parked

    known = await look.read("projections", read)
    views, statuses, parked = known.value
    return {
        "known": known,
        "views": [look.redaction.projection(each) for each in views],
        "statuses": {key: look.redaction.status(each) for key, each in statuses.items()},
        "parked": {key: [look.redaction.parked_event(each) for each in events] for key, events in parked.items()},
        "own": set(look.app.projections),
    }


PAGE = Page(
    "projections",
    "/projections",
    "Projections",
    "projections.html",
    (Region("list", "projections_list.html", _list),),
    actions=(
        "projections.pause",
        "projections.resume",
        "projections.skip",
        "projections.replay",
        "projections.drop",
    ),
)
