"""One projection: where it is and who reads for it, what waits and who holds that up, its builds side by side, and what is parked."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from markupsafe import Markup

from rota.dashboard.charts import Point, Track, line, tracks
from rota.dashboard.page import Look, Page, Region
from rota.dashboard.redaction import Redaction
from rota.errors import ConfigurationError, NotPossible
from rota.postgres.pool import Database
from rota.projections.feed import FeedRow
from rota.projections.inspect import ProjectionStatus, ProjectionView
from rota.projections.parked import ParkedEvent
from rota.projections.projection import Projection

__all__ = ["PAGE", "StoredEvent", "how_far", "own_projection"]

_PARKED = 20
_SECONDS = 3.0  # a look is several statements, and one more for each partition
_STORED_SECONDS = 60.0  # an event does not change
_SAMPLES = 400  # of what waited, while someone looked

# What waited when someone looked: nothing keeps it, so it is known as far back as this process has been asked.
_WAITED: WeakKeyDictionary[Database, dict[tuple[str, int], deque[tuple[datetime, int, float]]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """What an event holds, without what is redacted. `data` is a text where it is no JSON that can be read."""

    position: int
    stream: str | None
    type: str | None
    created_at: datetime | None
    data: Any
    metadata: Any

    @staticmethod
    def of(position: int, row: FeedRow | None, redaction: Redaction) -> StoredEvent:
        """Raises NotPossible when there is no such event any more."""
        if row is None:
            raise NotPossible(f"The event at position {position} is not in its log any more.")
        data, metadata = (redaction.payload(_read(text)) for text in (row.data, row.metadata))
        return StoredEvent(position, row.stream, row.type, row.created_at, data, metadata)


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def own_projection(look: Look, name: str) -> Projection[..., Any]:
    """That of the app of this dashboard, which knows its log. Raises NotPossible."""
    if name not in look.looking.projections:
        raise NotPossible(
            f"The app of this dashboard has no projection {name!r}, so it cannot read its log. Name the app that has it: "
            "`rota dashboard APP`."
        )
    return look.looking.projections[name]


async def _facts(look: Look) -> dict[str, Any]:
    name, version = _asked(look)

    async def read() -> tuple[Sequence[ProjectionView], ProjectionStatus | None]:
        projections = look.looking.projections
        builds = await projections.builds(name, version=version)
        if name not in projections or projections[name].version != builds[0].version:
            return builds, None
        status = await projections[name].status()
        _remember(look.looking.of, name, status)
        return builds, status

    known = await look.read(("projection", name, version), read, fresh=_SECONDS)
    builds, status = known.value
    status = None if status is None else look.redaction.status(status)
    statuses = {} if status is None else _by_build(status)
    waited = _WAITED.get(look.looking.of, {}).get((name, builds[0].version), ())
    return {
        "known": known,
        "view": look.redaction.projection(builds[0]),
        "builds": [look.redaction.projection(each) for each in builds],
        "statuses": statuses,
        "status": status,
        "far": how_far(statuses) if statuses else None,
        "lag": _lag(waited) if len(waited) > 1 else None,
        "is_own": status is not None,
        "takes_build": status is not None and look.looking.projections[name].definition.takes_build,
    }


def _by_build(status: ProjectionStatus) -> dict[int, ProjectionStatus]:
    rest = {} if status.rebuild is None else _by_build(status.rebuild)
    return {status.view.build: status, **rest}


def _remember(database: Database, name: str, status: ProjectionStatus) -> None:
    kept = _WAITED.setdefault(database, {})
    samples = kept.setdefault((name, status.view.version), deque(maxlen=_SAMPLES))
    samples.append((datetime.now(UTC), status.lag.events, status.lag.seconds or 0.0))


def how_far(statuses: Mapping[int, ProjectionStatus]) -> Markup:
    """Each build as a bar of the log: what lies behind it, and what is still to come."""
    data = [
        Track(
            f"build {build}" + (", readers use it" if status.view.live_at else ""),
            status.progress,
            f"{status.progress * 100:.0f} %, {status.lag} event(s) to come",
            "succeeded" if status.caught_up else "running",
        )
        for build, status in statuses.items()
    ]
    return tracks("How much of the log is taken in", data)


def _lag(waited: Sequence[tuple[datetime, int, float]]) -> Markup:
    points = [Point(at, float(events), f"{seconds:.1f} s") for at, events, seconds in waited]
    return line("Events that waited, since someone looked", points, unit="events", also="waits for")


async def _parked(look: Look) -> dict[str, Any]:
    name, version = _asked(look)

    async def read() -> tuple[ProjectionView, Sequence[ParkedEvent]]:
        projections = look.looking.projections
        view = await projections.show(name, version=version)
        return view, await projections.parked(name, version=view.version, limit=_PARKED)

    known = await look.read(("parked events", name, version), read)
    view, events = known.value
    stored = await _stored(look, view, events)
    return {
        "known": known,
        "view": view,
        "events": [(look.redaction.parked_event(event), stored.get(event.position)) for event in events],
    }


async def _stored(look: Look, view: ProjectionView, events: Sequence[ParkedEvent]) -> dict[int, StoredEvent]:
    """What those events hold that can be read here."""
    projections, pairs = look.looking.projections, [event.pair for event in events]
    if not pairs or view.name not in projections or projections[view.name].version != view.version:
        return {}
    key = ("stored events", view.name, tuple(pairs))
    known = await look.read(key, lambda: projections.stored(view.name, pairs), fresh=_STORED_SECONDS)
    return {row.position: StoredEvent.of(row.position, row, look.redaction) for row in known.value if row is not None}


def _asked(look: Look) -> tuple[str, int | None]:
    name = look.param("name")
    if name is None:
        raise ConfigurationError("name is missing: which projection?")
    version = look.whole_number("version")
    if version is not None and version >= 2**31:
        raise ConfigurationError(f"version cannot be {version}: there are not as many.")
    return name, version


PAGE = Page(
    "projection",
    "/projection",
    "Projection",
    "projection.html",
    (Region("facts", "projection_facts.html", _facts), Region("parked", "projection_parked.html", _parked)),
    params=("name", "version"),
    actions=(
        "projections.pause",
        "projections.resume",
        "projections.skip",
        "projections.rewind",
        "projections.rebuild",
        "projections.cancel_rebuild",
        "projections.forget",
        "projections.replay",
        "projections.drop",
    ),
    leave_to={"projections.forget": "projections"},
    within="projections",
)
