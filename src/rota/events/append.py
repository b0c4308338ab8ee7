"""From what happened to rows, in one statement.

The stream's row is locked by who appends to it, until their transaction ends: so versions have no gaps, an append never fails
for another's, and the events of a stream follow each other as their versions do. The order in which all are read is told in
`read`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.conversion.plain import ANYTHING, Mismatch, Room, TooLarge, brief, dumps, shown
from rota.conversion.shorthand import flat_json
from rota.errors import ConfigurationError, InvalidArguments, PayloadTooLarge, WrongVersion
from rota.postgres.names import check_name
from rota.postgres.query import Query, Row, statement

__all__ = [
    "Appended",
    "NewEvent",
    "append_event",
    "append_events",
    "check_events",
    "check_expected",
    "event_name",
    "plain_json",
]

# bytes of one event's data, and of its metadata: what is larger is better kept elsewhere, with its key in the event
LARGEST = 1_048_576
# what one statement carries: far below its deadline, and below what PostgreSQL takes as one JSON
MOST_EVENTS = 10_000
MOST_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append: what `log.bind(...)` makes. `data` and `metadata` are JSON text."""

    log: str
    stream: str
    type: str
    data: str
    metadata: str | None = None
    shape: int = 1


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an event is: its version in its stream, and its place in the order of the log, which is (order_xid, position)."""

    stream: str
    version: int
    position: int
    order_xid: int


APPEND_ONE = statement(
    "append_event",
    """
    select appended.version, appended.position, appended.order_xid::text::bigint
    from {schema}.append_event(
        %(log)s::text, %(stream)s::text, %(type)s::text, %(shape)s::smallint, %(data)s::text::jsonb,
        %(metadata)s::text::jsonb, %(expected)s::bigint, %(wake)s::boolean
    ) as appended
    """,
)


def append_event(new: NewEvent, expected: int | None, *, wake: bool) -> Query[Appended]:
    """Append one event and return where it is. It is there, and WrongVersion is raised, as with `append_events`."""

    def read(rows: Sequence[Row]) -> Appended:
        version, position, order_xid = rows[0]
        if position is None:
            assert expected is not None
            raise WrongVersion(new.log, new.stream, expected, version)
        return Appended(new.stream, version, position, order_xid)

    params = {
        "log": new.log,
        "stream": new.stream,
        "type": new.type,
        "shape": new.shape,
        "data": new.data,
        "metadata": new.metadata,
        "expected": expected,
        "wake": wake,
    }
    return APPEND_ONE.query(params, read=read)


APPEND = statement(
    "append_events",
    """
    select appended.stream, appended.version, appended.position, appended.order_xid::text::bigint
    from {schema}.append_events(
        %(log)s::text, %(events)s::text::jsonb, %(expected)s::text::jsonb, %(wake)s::boolean
    ) as appended
    """,
)


def append_events(
    log: str, new: Sequence[NewEvent], expected: Mapping[str, int], *, wake: bool
) -> Query[list[Appended]]:
    """Append the events and return where they are, in the order given: all of them, or none.

    They are there once the statement's transaction commits; `wake` also tells projections then. Raises WrongVersion where a stream
    is not at the version `expected` has for it, 0 for one that does not exist yet: the transaction can go on.
    """

    def read(rows: Sequence[Row]) -> list[Appended]:
        for stream, version, position, _ in rows:
            if position is None:
                raise WrongVersion(log, stream, expected[stream], version)
        # which is the order in which they were given
        return sorted((Appended(*row) for row in rows), key=lambda each: each.position)

    written = ",".join(map(_written, new))
    params = {"log": log, "events": f"[{written}]", "expected": dumps(dict(expected)), "wake": wake}
    return APPEND.query(params, read=read)


def _written(new: NewEvent) -> str:
    # data and metadata are JSON already
    metadata = "" if new.metadata is None else f',"metadata":{new.metadata}'
    said = dumps({"stream": new.stream, "type": new.type, "shape": new.shape})
    return f'{said[:-1]},"data":{new.data}{metadata}}}'


def check_events(log: str, new: Iterable[NewEvent]) -> list[NewEvent]:
    """What an append of many takes. Raises InvalidArguments or PayloadTooLarge."""
    refused = f"Nothing was appended to event log {log!r}"
    events = list(new)
    for place, event in enumerate(events):
        if not isinstance(event, NewEvent):
            raise InvalidArguments(
                f"{refused}: append_many takes what bind(...) of the log returns, and item {place} is {shown(event)}. "
                "Write [log.bind(stream, type, data), ...]."
            )
        if event.log != log:
            raise InvalidArguments(f"{refused}: item {place} was made by the event log {event.log!r}. Append it there.")
    size = sum(len(event.data) + len(event.metadata or "") for event in events)
    if len(events) > MOST_EVENTS or size > MOST_BYTES:
        raise PayloadTooLarge(
            f"{refused}: these are {len(events):,} events with {size:,} characters of JSON, and one call takes {MOST_EVENTS:,} "
            f"with {MOST_BYTES:,}. Append them in several calls; with log.on(connection) they are one transaction."
        )
    return events


def check_expected(log: str, expected: Mapping[str, int], new: Sequence[NewEvent]) -> Mapping[str, int]:
    """The versions that streams are expected to have. Raises InvalidArguments."""
    refused = f"Nothing was appended to event log {log!r}"
    for stream, version in expected.items():
        if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**63:
            raise InvalidArguments(
                f"{refused}: the expected version of stream {stream!r} is {shown(version)}. It is the version of its last event, "
                "or 0 if it must not exist yet; leave it out to append whatever the version is."
            )
    if strange := expected.keys() - {event.stream for event in new}:
        raise InvalidArguments(
            f"{refused}: a version is expected of {', '.join(map(repr, sorted(strange)))}, and nothing is to be appended there. "
            "Check the name of the stream."
        )
    return expected


def event_name(what: str, name: Any, longest: int, refused: str) -> str:
    """The name of a stream or a type. Raises InvalidArguments."""
    try:
        return check_name(what, name, longest)
    except ConfigurationError as error:
        raise InvalidArguments(f"{refused}: {error}") from None


def plain_json(value: Any, what: str, refused: str, encode: Any = ANYTHING.encode) -> str:
    """A value as JSON text that can be stored. Raises InvalidArguments or PayloadTooLarge."""
    if encode is ANYTHING.encode and (short := flat_json(value)) is not None:
        return short
    try:
        text = dumps(encode(value, Room(LARGEST)))
    except Mismatch as mismatch:
        raise InvalidArguments(
            f"{refused}: {what}{mismatch.path} {mismatch.problem}. {mismatch.advice or 'Give values as they are stored: plain JSON.'}"
        ) from mismatch.__cause__
    except TooLarge:
        raise _too_large(what, refused) from None
    except Exception as error:  # raised by the value itself: a property, an iterator
        raise InvalidArguments(
            f"{refused}: {what} is {shown(value)}, and reading it failed with {brief(error)}. Give one that can be read to its end."
        ) from error
    if len(text) > LARGEST or (not text.isascii() and len(text.encode()) > LARGEST):
        raise _too_large(what, refused)
    return text


def _too_large(what: str, refused: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{refused}: {what} would take more than {LARGEST:,} bytes as JSON. Store it elsewhere, and its key in the event."
    )
