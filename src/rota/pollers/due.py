"""When a row is due, and what its stamp writes: the parts of a poller's statements that depend on its table.

Times are compared and written in UTC, whatever the session's time zone is: a `timestamp` column is taken to hold UTC. An
interval of each row's own is added to the column as a `timestamp`, since PostgreSQL can put that, and only that, into an index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rota.errors import ConfigurationError
from rota.pollers.definition import PollerDefinition
from rota.pollers.rows import columns_for
from rota.pollers.shape import Shape, can_be_key
from rota.postgres.query import identifier

__all__ = ["Plan", "make_plan", "order_of"]

Named = Callable[[str], str]

_NUMBERS = ("int2", "int4", "int8", "float4", "float8", "numeric")
# Intervals that one row may have without an addition that fails, and with it the claim of all rows.
_LONGEST = "interval '1000 years'"
_SMALL = {"int2": 2**15, "int4": 2**31}
_MOST_SECONDS = 1000 * 365 * 86400.0
# Each statement begins with the time, so that all of it goes by one.
_NOW = "(select rota_clock.rota_now from rota_clock)"
_UTC = "'UTC'"


@dataclass(frozen=True, slots=True)
class Plan:
    """A poller and its table. All texts are SQL; those with `rota_` in them fit into the statements that have such names."""

    definition: PollerDefinition
    shape: Shape
    columns: tuple[str, ...]
    #: the rows that were never polled, if that can be told; and since when the others are due
    never: str | None
    due_since: str | None
    #: by which time that must be
    by: str
    #: the moment from which a row is due, as a point in time
    due_at: str | None
    #: what the poll of a row stands for: the same in each attempt
    occurrence: str
    #: what a row that was polled is given; None where nothing is
    stamp: str | None
    #: what the index that finds due rows is on
    index_on: tuple[str, ...]

    @property
    def parts(self) -> dict[str, str]:
        """What all statements about this table have in common."""
        definition, shape = self.definition, self.shape
        return {
            "table": shape.sql,
            "key": shape.key_of(definition.key),
            "keys": ", ".join(shape.column(name) for name in definition.key),
            "where": definition.where or "true",
            "columns": ", ".join(f"{shape.column(name)} as rota_{at}" for at, name in enumerate(self.columns)),
            "occurrence": self.occurrence,
        }


def make_plan(definition: PollerDefinition, shape: Shape) -> Plan:
    """Fit the poller to its table. Raises ConfigurationError with all that does not fit."""
    problems = [problem for problem in _misfits(definition, shape) if problem]
    columns: tuple[str, ...] = ()
    try:
        columns = columns_for(definition.reader, list(shape.columns), poller=definition.name, table=str(shape))
    except ConfigurationError as error:
        problems.append(str(error).rstrip("."))
    if problems:
        raise ConfigurationError(
            f"Poller {definition.name!r} cannot poll {shape}: {'; '.join(problems)}. "
            f"The table has {', '.join(shape.columns)}."
        )
    pace = _pace(definition, shape, shape.column)
    clock = definition.due if definition.form == "due" else definition.last
    never, due_since, by, due_at = _when(definition, shape, shape.column)
    return Plan(
        definition=definition,
        shape=shape,
        columns=columns,
        never=never,
        due_since=due_since,
        by=by,
        due_at=due_at,
        occurrence="''" if clock is None else f"coalesce(extract(epoch from {_named(shape, clock)})::text, 'never')",
        stamp=_stamp(definition, shape, pace),
        index_on=_index_on(definition, shape),
    )


def _misfits(definition: PollerDefinition, shape: Shape) -> list[str | None]:
    def missing(what: str, name: str) -> str | None:
        return None if name in shape.columns else f"the column {name!r}, named by {what}, does not exist"

    problems = [missing("key", name) for name in definition.key]
    keys = [shape.columns[name] for name in definition.key if name in shape.columns]
    problems += [
        f"the column {column.name!r} of the key is of the type {column.type}, whose values are not the same for everyone"
        for column in keys
        if not can_be_key(column)
    ]
    if len(keys) == len(definition.key) and not any(unique <= set(definition.key) for unique in shape.unique):
        problems.append(
            f"two rows may have the same {', '.join(definition.key)}, or none: the key must be a primary key, or unique and not null"
        )
    for what, name in (("last", definition.last), ("due", definition.due)):
        if name is None:
            continue
        column = shape.columns.get(name)
        if column is None:
            problems.append(missing(what, name) if what == "last" or name.isidentifier() else None)
        elif column.base not in ("timestamp", "timestamptz"):
            problems.append(
                f"the column {name!r}, named by {what}, is of the type {column.type}; it must be a timestamp, with or without "
                "time zone"
            )
        elif column.generated:
            problems.append(f"the column {name!r}, named by {what}, is generated, and cannot be stamped")
    problems += _misfits_of_pace(definition, shape)
    if definition.form == "due" and definition.done is None and definition.interval is None:
        column = shape.columns.get(str(definition.due))
        if column is None:
            problems.append("due is an expression, so done= must say what is written when a row is done")
        elif not column.nullable:
            problems.append(
                f"the column {definition.due!r} cannot be emptied when a row is done: give interval= for the next time, or done="
            )
    return problems


def _misfits_of_pace(definition: PollerDefinition, shape: Shape) -> list[str | None]:
    name = definition.interval
    if not isinstance(name, str):
        return []
    column = shape.columns.get(name)
    if column is None:
        return [f"the column {name!r}, named by interval, does not exist (and it is no duration such as '5m')"]
    if definition.unit is None and column.base in _NUMBERS:
        return [f"the column {name!r}, named by interval, has numbers: say of what, with unit='minute' or the like"]
    if definition.unit is not None and column.base not in _NUMBERS:
        return [f"the column {name!r}, named by interval, is of the type {column.type}, and unit= is for numbers"]
    if definition.unit is None and column.base != "interval":
        return [
            f"the column {name!r}, named by interval, is of the type {column.type}: neither an interval nor a number"
        ]
    return []


def _named(shape: Shape, name: str, named: Named | None = None) -> str:
    """A column, or SQL of the author's that stands in for one."""
    return (named or shape.column)(name) if name in shape.columns else f"({name}\n)"


def _literal(pace: timedelta) -> str:
    return f"interval '{pace // timedelta(microseconds=1)} microseconds'"


def _pace(definition: PollerDefinition, shape: Shape, named: Named) -> str | None:
    """The interval of a row."""
    interval = definition.interval
    if isinstance(interval, timedelta):
        return _literal(interval)
    if interval is None:
        return None
    column = named(interval)
    if definition.unit is None:
        return f"least({column}, {_LONGEST})"
    each = f"interval '{definition.unit:g} seconds'"
    if _SMALL.get(shape.columns[interval].base, 2**63) * definition.unit <= _MOST_SECONDS * 5:
        return f"({column} * {each})"
    return f"(least({column}::float8, {_MOST_SECONDS / definition.unit!r}::float8) * {each})"


def _when(definition: PollerDefinition, shape: Shape, named: Named) -> tuple[str | None, str | None, str, str | None]:
    """Which rows were never polled, since when the others are due, by when that must be, and the same as a point in time."""
    clock = definition.due if definition.form == "due" else definition.last
    if clock is None:
        return None, None, "", None
    column = _named(shape, clock, named)
    naive = clock in shape.columns and shape.columns[clock].base == "timestamp"
    at_utc = f" at time zone {_UTC}" if naive else ""
    instant = f"({column} at time zone {_UTC})" if naive else column
    if definition.form == "due":
        # one that is to be polled once has nothing planned where there is no time; one that goes on has not begun
        never = f"{column} is null" if definition.interval is not None else None
        return never, column, f"{_NOW}{at_utc}", instant
    pace = _pace(definition, shape, named)
    if isinstance(definition.interval, str):
        since = f"({column if naive else f'({column} at time zone {_UTC})'} + {pace})"
        never = f"{since} is null and {column} is null"
        return never, since, f"{_NOW} at time zone {_UTC}", f"({since} at time zone {_UTC})"
    if definition.adaptive is not None:
        # the table of paces says when; what it does not know of is due when no pace could be slower
        pace = _literal(definition.adaptive.longest)
    return f"{column} is null", column, f"({_NOW} - {pace}){at_utc}", f"({instant} + {pace})"


def _stamp(definition: PollerDefinition, shape: Shape, pace: str | None) -> str | None:
    """What a row that was polled is given: the time, the next time, and what the author says."""
    sets = []
    if isinstance(definition.interval, str) and definition.adaptive is not None:
        pace, value = _adapted(definition, shape)
        sets.append(f"{identifier(definition.interval)} = {value}")
    if definition.last is not None:
        sets.append(f"{identifier(definition.last)} = {_last_stamp(definition, shape, pace)}")
    if definition.due is not None and definition.due in shape.columns:
        if pace is not None:
            sets.append(f"{identifier(definition.due)} = {_due_stamp(definition, shape, pace)}")
        elif definition.done is None:
            sets.append(f"{identifier(definition.due)} = null")
    if definition.done is not None:
        sets.append(f"{definition.done}\n")
    return ", ".join(sets) or None


def _in_column(shape: Shape, name: str, instant: str) -> str:
    return f"({instant}) at time zone 'UTC'" if shape.columns[name].base == "timestamp" else instant


def _instant(shape: Shape, name: str) -> str:
    column = shape.column(name)
    return f"({column} at time zone 'UTC')" if shape.columns[name].base == "timestamp" else column


def _steps(since: str, pace: str) -> str:
    """How many whole intervals have passed since then."""
    return f"floor(extract(epoch from {_NOW} - {since}) / nullif(extract(epoch from {pace}), 0))::float8"


def _last_stamp(definition: PollerDefinition, shape: Shape, pace: str | None) -> str:
    assert definition.last is not None
    if definition.counted_from == "end" or definition.form == "due" or pace is None:
        return _in_column(shape, definition.last, _NOW)
    # the moment at which it was due, so that neither the poll nor its waiting moves the next one
    last = _instant(shape, definition.last)
    slot = f"{last} + {pace} * {_steps(last, pace)}"
    return _in_column(shape, definition.last, f"coalesce({slot}, rota_held.rota_claimed_at)")


def _due_stamp(definition: PollerDefinition, shape: Shape, pace: str) -> str:
    assert definition.due is not None
    following = f"{_NOW} + {pace}"
    if definition.counted_from == "start":
        due = _instant(shape, definition.due)
        following = (
            f"coalesce({due} + {pace} * ({_steps(due, pace)} + 1), rota_held.rota_claimed_at + {pace}, {following})"
        )
    return _in_column(shape, definition.due, following)


def _adapted(definition: PollerDefinition, shape: Shape) -> tuple[str, str]:
    """The new interval of a row, and how it is written into the user's column."""
    assert isinstance(definition.interval, str)
    adaptive = definition.adaptive
    assert adaptive is not None
    column = shape.column(definition.interval)
    changed = "rota_held.rota_changed"
    if definition.unit is None:
        low, high = _literal(adaptive.shortest), _literal(adaptive.longest)
        moved = (
            f"coalesce({column}, {high}) * case when {changed} then {adaptive.faster!r} else {adaptive.slower!r} end"
        )
        value = f"greatest({low}, least({high}, {moved}))"
        return value, value
    low, high = (str(bound.total_seconds() / definition.unit) for bound in (adaptive.shortest, adaptive.longest))
    number = f"coalesce({column}::float8, {high})"
    faster, slower = f"{number} * {adaptive.faster!r}", f"{number} * {adaptive.slower!r}"
    if shape.columns[definition.interval].base.startswith("int"):
        # a whole number moves by one at least
        low, high = f"ceil({low})", f"greatest(floor({high}), ceil({low}))"
        faster, slower = f"floor({faster})", f"ceil({slower})"
    moved = f"greatest({low}, least({high}, case when {changed} then {faster} else {slower} end))"
    value = f"({moved})::{shape.columns[definition.interval].type}"
    return f"({moved}::float8 * interval '{definition.unit:g} seconds')", value


def _index_on(definition: PollerDefinition, shape: Shape) -> tuple[str, ...]:
    """What an index must be on to find due rows without reading the others; written without the table's name."""
    _, due_since, _, _ = _when(definition, shape, identifier)
    if due_since is not None:
        return (due_since,)
    key = tuple(identifier(name) for name in definition.key)
    # with the key, as it decides among equals: without it all of them would be sorted
    return key if definition.order_by is None else (f"{definition.order_by}\n", *key)


def order_of(plan: Plan, since: Sequence[str]) -> str:
    """The author's order first, then these."""
    given = plan.definition.order_by
    return ", ".join([*([f"{given}\n"] if given else []), *since])
