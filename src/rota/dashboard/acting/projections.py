"""What can be done with projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.app import Rota
from rota.dashboard.acting.action import NAME, Action, Values
from rota.dashboard.fields import Field
from rota.errors import ConfigurationError, NotPossible

__all__ = ["PROJECTION_ACTIONS"]

_VERSION = {"version": Field("number", "which version of it; by default that of this app, or the last", fixed=True)}
_POSITIONS = {"positions": Field("list", "positions of parked events, as strings; by default all", fixed=True)}


async def _skip_event(app: Rota, values: Values, by: str) -> Any:
    if values["name"] not in app.projections:
        raise NotPossible(
            f"The app of this dashboard has no projection {values['name']!r}, so it cannot tell which event comes next. Name the app: "
            f"`rota dashboard APP`, or `rota projections skip {values['name']} --app APP`."
        )
    return await app.projections.skip(values["name"], by=by)


def _positions(values: Values) -> Sequence[int] | None:
    given = values.get("positions")
    if given is None:
        return None
    if not all(isinstance(each, str) and each.lstrip("-").isdigit() and len(each) < 20 for each in given):
        raise ConfigurationError("positions cannot be that: it is a list of positions, each as a string of digits.")
    return [int(each) for each in given]


PROJECTION_ACTIONS = (
    Action(
        "projections.pause",
        "Have nobody read for a projection, until it is resumed.",
        {**NAME, **_VERSION},
        lambda app, values, by: app.projections.pause(values["name"], version=values.get("version"), by=by),
        lambda view, values: f"Projection {view.name} is paused.",
    ),
    Action(
        "projections.resume",
        "Have a projection go on, be it paused or stopped.",
        {**NAME, **_VERSION},
        lambda app, values, by: app.projections.resume(values["name"], version=values.get("version"), by=by),
        lambda view, values: f"Projection {view.name} goes on.",
    ),
    Action(
        "projections.skip",
        "Pass over the event that comes next, such as the one that a projection stopped at.",
        NAME,
        _skip_event,
        lambda row, values: f"Projection {values['name']} passes over the event at {row.position}.",
    ),
    Action(
        "projections.replay",
        "Have parked events taken in by whoever reads for the projection.",
        {**NAME, **_VERSION, **_POSITIONS},
        lambda app, values, by: app.projections.replay(
            values["name"], _positions(values), version=values.get("version"), by=by
        ),
        lambda count, values: f"{count} event(s) are taken in again.",
    ),
    Action(
        "projections.drop",
        "Give parked events up.",
        {**NAME, **_VERSION, **_POSITIONS},
        lambda app, values, by: app.projections.drop(
            values["name"], _positions(values), version=values.get("version"), by=by
        ),
        lambda count, values: f"{count} event(s) are given up.",
        typed=lambda values: None if values.get("positions") else values.get("name"),
    ),
)
