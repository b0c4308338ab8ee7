"""What can be done with projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rota.app import Rota
from rota.dashboard.acting.action import NAME, Action, Preview, Values
from rota.dashboard.drawing import seconds_in_words
from rota.dashboard.fields import Field
from rota.dashboard.page import Look
from rota.errors import ConfigurationError, NotPossible

__all__ = ["PROJECTION_ACTIONS"]

_VERSION = {"version": Field("number", "which version of it; by default that of this app, or the last", fixed=True)}
_PART = {
    "build": Field("number", "which build of it; by default the one that readers use", fixed=True),
    "partition": Field("number", "which partition of it, from 0 on; by default all"),
}
_POSITIONS = {"positions": Field("list", "positions of parked events, as strings; by default all", fixed=True)}


def _which(values: Values) -> Mapping[str, Any]:
    """Of what is said, what the functions take alike."""
    return {name: values[name] for name in ("version", "build", "partition") if name in values}


def _own(app: Rota, name: str, verb: str) -> None:
    if name not in app.projections:
        raise NotPossible(
            f"The app of this dashboard has no projection {name!r}, so it does not know its log or its tables. Name the app: "
            f"`rota dashboard APP`, or `rota projections {verb} {name} --app APP`."
        )


async def _skip_event(app: Rota, values: Values, by: str) -> Any:
    _own(app, values["name"], "skip")
    part = {name: value for name, value in _which(values).items() if name != "version"}
    return await app.projections.skip(values["name"], by=by, **part)


def _place(values: Values) -> Mapping[str, Any]:
    """Where a rewind leads to."""
    return {name: values[name] for name in ("position", "since") if name in values}


async def _preview_rewind(look: Look, values: Values) -> Preview:
    again = await look.looking.projections.preview_rewind(values["name"], **_place(values), **_which(values))
    start = "the first event" if again.position is None else f"the event at position {again.position}"
    if again.events is None:
        return Preview(
            f"Everything from {start} on is read again; how many events that is can only be told by an app that has the projection."
        )
    count = f"{again.events:,}{' or more' if again.more else ''}"
    age = "" if again.seconds is None else f", the oldest of which is {seconds_in_words(again.seconds)} old"
    return Preview(
        f"From {start} on, {count} event(s) are read again{age}. What the handler has written stays: pause the projection and make "
        "room first, if it would be written twice."
    )


async def _rebuild(app: Rota, values: Values, by: str) -> Any:
    _own(app, values["name"], "rebuild")
    return await app.projections.rebuild(values["name"], by=by)


async def _preview_rebuild(look: Look, values: Values) -> Preview:
    name = values["name"]
    _own(look.app, name, "rebuild")
    # refused for the same reasons, and taken back
    view = await look.app.projections.rebuild(name, dry_run=True)
    status = await look.looking.projections[name].status()
    under_way = (
        "" if status.rebuild is None else f" Build {status.rebuild.view.build}, which is under way, is given up."
    )
    return Preview(
        f"Build {view.build} of version {view.version} takes in all events from the first on, beside what readers use, and they are "
        f"given it when it has caught up.{under_way}"
    )


async def _cancel_rebuild(app: Rota, values: Values, by: str) -> Any:
    _own(app, values["name"], "rebuild")
    return await app.projections.rebuild(values["name"], cancel=True, by=by)


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
        {**NAME, **_VERSION, **_PART},
        lambda app, values, by: app.projections.pause(values["name"], by=by, **_which(values)),
        lambda view, values: f"Projection {view.name} is paused.",
    ),
    Action(
        "projections.resume",
        "Have a projection go on, be it paused or stopped.",
        {**NAME, **_VERSION, **_PART},
        lambda app, values, by: app.projections.resume(values["name"], by=by, **_which(values)),
        lambda view, values: f"Projection {view.name} goes on.",
    ),
    Action(
        "projections.skip",
        "Pass over the event that comes next, such as the one that a projection stopped at.",
        {**NAME, **_PART},
        _skip_event,
        lambda row, values: f"Projection {values['name']} passes over the event at {row.position}.",
    ),
    Action(
        "projections.rewind",
        "Have a projection read again from the event at a position, from the first since a time, or from the first.",
        {
            **NAME,
            **_VERSION,
            **_PART,
            "position": Field("id", "the position of the event to begin with, as a string"),
            "since": Field("moment", "a time instead: the first event that was stored then or later"),
        },
        lambda app, values, by: app.projections.rewind(values["name"], by=by, **_place(values), **_which(values)),
        lambda view, values: (
            f"Projection {view.name} reads again from "
            + ("the first event on." if view.position is None else f"behind position {view.position} on.")
        ),
        preview=_preview_rewind,
        typed=lambda values: values.get("name"),
    ),
    Action(
        "projections.rebuild",
        "Have all events taken in anew beside what readers use, and readers given the result when it has caught up.",
        NAME,
        _rebuild,
        lambda view, values: f"Build {view.build} of projection {view.name} begins with the first event.",
        preview=_preview_rebuild,
        typed=lambda values: values.get("name"),
    ),
    Action(
        "projections.cancel_rebuild",
        "Give up the rebuild that is under way; what readers use stays.",
        NAME,
        _cancel_rebuild,
        lambda view, values: f"The rebuild of projection {view.name} is given up.",
        needs="projections.rebuild",
        typed=lambda values: values.get("name"),
    ),
    Action(
        "projections.forget",
        "Forget a version that is no longer in any code, with its checkpoint and what is parked.",
        {**NAME, **_VERSION},
        lambda app, values, by: app.projections.forget(values["name"], version=values.get("version"), by=by),
        lambda view, values: f"Version {view.version} of projection {view.name} is forgotten.",
        typed=lambda values: values.get("name"),
    ),
    Action(
        "projections.replay",
        "Have parked events taken in by whoever reads for the projection.",
        {**NAME, **_VERSION, **_PART, **_POSITIONS},
        lambda app, values, by: app.projections.replay(values["name"], _positions(values), by=by, **_which(values)),
        lambda count, values: f"{count} event(s) are taken in again.",
    ),
    Action(
        "projections.drop",
        "Give parked events up.",
        {**NAME, **_VERSION, **_PART, **_POSITIONS},
        lambda app, values, by: app.projections.drop(values["name"], _positions(values), by=by, **_which(values)),
        lambda count, values: f"{count} event(s) are given up.",
        typed=lambda values: None if values.get("positions") else values.get("name"),
    ),
)
