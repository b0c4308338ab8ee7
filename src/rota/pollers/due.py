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

__all__ = ["NOW", "Plan", "bounds_in_column", "make_plan", "order_of"]

Named = Callable[[str], str]

_NUMBERS = ("int2", "int4", "int8", "float4", "float8", "numeric")
# What one row may have without an addition that fails, and with it the claim of all rows.
_MOST_YEARS = 1000
_MOST_SECONDS = _MOST_YEARS * 365 * 86400
_LONGEST = f"interval '{_MOST_YEARS} years'"
_LATEST = "timestamp '10000-01-01'"
_FIRST_DAY = "timestamptz '0001-01-01 00:00:00+00'"
_LAST_DAY = "timestamptz '9999-12-31 00:00:00+00'"
#: Each statement begins with the time, so that all of it goes by one.
NOW = "(select rota_clock.rota_now from rota_clock)"
_UTC = "'UTC'"
# Where the pace of each row is in a table of ours.
_PACED_DUE_AT = """coalesce((
            select rota_pace.due_at
            from {schema}.poll_intervals as rota_pace
            where rota_pace.poller = %(poller)s
              and rota_pace.key = {key}
        ), {due_at})"""
_NOW_UTC = f"({NOW} at time zone {_UTC})"
_CLAIMED_UTC = f"(rota_held.rota_claimed_at at time zone {_UTC})"


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
            "never": self.never or "false",
            "due_since": self.due_since or "",
            "by": self.by,
            "due_at": self.due_at or "null::timestamptz",
        }

    @property
    def when(self) -> tuple[str, str]:
        """Whether a row is due, and since when, whatever it takes to find out: text that the parts still have to go into."""
        due_at, due = "{due_at}", "true" if self.due_since is None else "{due_since} <= {by}"
        if self.definition.own_pace:
            due_at, due = _PACED_DUE_AT, f"{_PACED_DUE_AT} <= {NOW}"
        if self.never is not None:
            due, due_at = f"({{never}} or {due})", f"case when {{never}} then null else {due_at} end"
        return due, due_at


def make_plan(
    definition: PollerDefinition, shape: Shape, *, naive_due: bool = False, problems: Sequence[str] = ()
) -> Plan:
    """Fit the poller to its table. Raises ConfigurationError with all that does not fit, and the problems found before.

    `naive_due` says of `due`, if it is an expression, that it gives a time without a time zone.
    """
    found = [problem for problem in _misfits(definition, shape) if problem] + list(problems)
    columns: tuple[str, ...] = ()
    try:
        columns = columns_for(definition.reader, list(shape.columns), poller=definition.name, table=str(shape))
    except ConfigurationError as error:
        found.append(str(error).rstrip("."))
    if found:
        raise ConfigurationError(
            f"Poller {definition.name!r} cannot poll {shape}: {'; '.join(found)}. "
            f"The table has {', '.join(shape.columns) or 'no columns'}."
        )
    clock = definition.clock
    column = None if clock is None else shape.columns.get(clock)
    naive = naive_due if column is None else column.base == "timestamp"
    never, due_since, by, due_at = _when(definition, shape, shape.column, naive)
    return Plan(
        definition=definition,
        shape=shape,
        columns=columns,
        never=never,
        due_since=due_since,
        by=by,
        due_at=due_at,
        occurrence="''" if clock is None else f"coalesce(extract(epoch from {_named(shape, clock)})::text, 'never')",
        stamp=_stamp(definition, shape),
        index_on=_index_on(definition, shape, naive),
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
    if definition.due is not None and definition.due not in shape.columns:
        if definition.interval is not None:
            problems.append(
                "due is an expression, which interval= cannot move on: name a column, or leave interval= out"
            )
        elif definition.done is None and definition.last is None:
            problems.append(
                "due is an expression, so done= must say what is written when a row is done, or last= what is stamped"
            )
    elif (
        definition.due is not None
        and definition.done is None
        and definition.interval is None
        and not shape.columns[definition.due].nullable
    ):
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
    if definition.adaptive is not None and column.generated:
        return [f"the column {name!r}, named by interval, is generated, and adaptive= cannot move it"]
    return []


def _named(shape: Shape, name: str, named: Named | None = None) -> str:
    """A column, or SQL of the author's that stands in for one."""
    return (named or shape.column)(name) if name in shape.columns else f"({name}\n)"


def _literal(pace: timedelta) -> str:
    return f"interval '{pace // timedelta(microseconds=1)} microseconds'"


def _pace(definition: PollerDefinition, shape: Shape, named: Named) -> str | None:
    """The interval of a row; never null, and never such that it could not be added to a time: one row would stop them all.

    What is less than nothing counts as nothing, so that such a row waits behind all that are due. What is missing, or no number,
    counts as the longest there is: that row is not polled again.
    """
    interval = definition.interval
    if isinstance(interval, timedelta):
        return _literal(interval)
    if interval is None:
        return None
    column = named(interval)
    if definition.unit is None:
        # parts of an interval may have different signs, and add up to little while each of them is too much
        return (
            f"case when extract(year from {column}) between -{_MOST_YEARS} and {_MOST_YEARS} "
            f"then greatest(interval '0', least({column}, {_LONGEST})) else {_LONGEST} end"
        )
    return f"({_number(definition, shape, named)} * interval '{definition.unit:g} seconds')"


def _number(definition: PollerDefinition, shape: Shape, named: Named) -> str:
    """The number in a row's interval column, within bounds, as one that intervals can be multiplied by."""
    assert isinstance(definition.interval, str)
    assert definition.unit is not None
    within = f"greatest(0, least({named(definition.interval)}, {round(_MOST_SECONDS / definition.unit)}))"
    # one that is as good as nothing cannot become a float as it is
    return (
        f"round({within}, 12)::float8" if shape.columns[definition.interval].base == "numeric" else f"{within}::float8"
    )


def _when(
    definition: PollerDefinition, shape: Shape, named: Named, naive: bool
) -> tuple[str | None, str | None, str, str | None]:
    """Which rows were never polled, since when the others are due, by when that must be, and the same as a point in time."""
    clock = definition.clock
    if clock is None:
        return None, None, "", None
    column = _named(shape, clock, named)
    at_utc = f" at time zone {_UTC}" if naive else ""
    # within what Python's datetime can hold
    instant = f"greatest({_FIRST_DAY}, least({_LAST_DAY}, {f'{column} at time zone {_UTC}' if naive else column}))"
    if definition.form == "due":
        # one that is to be polled once has nothing planned where there is no time; one that goes on has not begun
        never = f"{column} is null" if definition.interval is not None else None
        return never, column, f"{NOW}{at_utc}", instant
    pace = _pace(definition, shape, named)
    if isinstance(definition.interval, str):
        utc = column if naive else f"({column} at time zone {_UTC})"
        # a time that nothing can be added to is far away as it is
        since = f"(case when {utc} < {_LATEST} then {utc} + {pace} else {utc} end)"
        due_at = f"greatest({_FIRST_DAY}, least({_LAST_DAY}, {since} at time zone {_UTC}))"
        return f"{since} is null", since, f"{NOW} at time zone {_UTC}", due_at
    if definition.adaptive is not None:
        # the table of paces says when; what it does not know of is due when no pace could be slower
        pace = _literal(definition.adaptive.longest)
    return f"{column} is null", column, f"({NOW} - {pace}){at_utc}", f"({instant} + {pace})"


def _stamp(definition: PollerDefinition, shape: Shape) -> str | None:
    """What a row that was polled is given: the time, the next time, and what the author says."""
    sets = []
    pace = _pace(definition, shape, shape.column)
    if isinstance(definition.interval, str) and definition.adaptive is not None:
        pace, value = _adapted(definition, shape)
        sets.append(f"{identifier(definition.interval)} = {value}")
    if definition.last is not None:
        last = definition.last
        # from the start: the moment at which it was due, so that neither the poll nor its waiting moves the next one
        utc = (
            f"coalesce({_slot(shape, last, pace, 'max', '<=')}, {_CLAIMED_UTC})"
            if definition.counted_from == "start" and definition.form == "last" and pace is not None
            else _NOW_UTC
        )
        sets.append(f"{identifier(last)} = {_in_column(shape, last, utc)}")
    if definition.due is not None and definition.due in shape.columns:
        due = definition.due
        if pace is not None:
            utc = (
                f"coalesce({_slot(shape, due, pace, 'min', '>')}, {_CLAIMED_UTC} + {pace})"
                if definition.counted_from == "start"
                else f"{_NOW_UTC} + {pace}"
            )
            sets.append(f"{identifier(due)} = {_in_column(shape, due, utc)}")
        elif definition.done is None:
            sets.append(f"{identifier(due)} = null")
    if definition.done is not None:
        sets.append(f"{definition.done}\n")
    return ", ".join(sets) or None


def _in_column(shape: Shape, name: str, utc: str) -> str:
    return utc if shape.columns[name].base == "timestamp" else f"({utc}) at time zone {_UTC}"


def _slot(shape: Shape, name: str, pace: str, which: str, side: str) -> str:
    """Of the times that are whole intervals after the one in the column, the one next to now on this side; null if there is none.

    Months are not all as long, so how many have passed can only be estimated, and the neighbours are looked at as well. They are
    as long as on average in 48 of them.
    """
    since = (
        shape.column(name) if shape.columns[name].base == "timestamp" else f"({shape.column(name)} at time zone {_UTC})"
    )
    length = f"nullif(extract(epoch from timestamp '2000-01-01' + {pace} * 48 - timestamp '2000-01-01') / 48, 0)"
    steps = f"case when isfinite({since}) then floor(extract(epoch from {_NOW_UTC} - {since}) / {length}) end"
    near = f"from (select {steps} as rota_passed, generate_series(-1, 2) as rota_near) as rota_steps"
    slot = f"{since} + {pace} * (rota_steps.rota_passed + rota_steps.rota_near)"
    return f"(select {which}({slot}) {near} where {slot} {side} {_NOW_UTC})"


def _adapted(definition: PollerDefinition, shape: Shape) -> tuple[str, str]:
    """The new interval of a row, and how it is written into the user's column."""
    assert isinstance(definition.interval, str)
    assert definition.adaptive is not None
    column, adaptive = shape.columns[definition.interval], definition.adaptive
    low, high = bounds_in_column(definition)
    factor = f"case when rota_held.rota_changed then {adaptive.faster!r} else {adaptive.slower!r} end"
    if definition.unit is None:
        value = f"greatest({low}, least({high}, {_pace(definition, shape, shape.column)} * {factor}))"
        return value, value
    moved = f"{_number(definition, shape, shape.column)} * {factor}"
    if column.is_whole:
        # a whole number moves by one at least
        low, high = f"ceil({low})", f"greatest(floor({high}), ceil({low}))"
        moved = f"case when rota_held.rota_changed then floor({moved}) else ceil({moved}) end"
    moved = f"greatest({low}, least({high}, {moved}))::float8"
    return f"({moved} * interval '{definition.unit:g} seconds')", f"({moved})::{column.type}"


def bounds_in_column(definition: PollerDefinition) -> tuple[str, str]:
    """The shortest and the longest interval of a poller that adapts, as they are written in the column of intervals."""
    assert definition.adaptive is not None
    bounds = (definition.adaptive.shortest, definition.adaptive.longest)
    if definition.unit is None:
        return _literal(bounds[0]), _literal(bounds[1])
    return str(bounds[0].total_seconds() / definition.unit), str(bounds[1].total_seconds() / definition.unit)


def _index_on(definition: PollerDefinition, shape: Shape, naive: bool) -> tuple[str, ...]:
    """What an index must be on to find due rows without reading the others; written without the table's name."""
    _, due_since, _, _ = _when(definition, shape, identifier, naive)
    if due_since is not None:
        return (due_since,)
    key = tuple(identifier(name) for name in definition.key)
    # with the key, as it decides among equals: without it all of them would be sorted
    return key if definition.order_by is None else (f"{definition.order_by}\n", *key)


def order_of(plan: Plan, since: str) -> str:
    """The author's order first, then this."""
    given = plan.definition.order_by
    return f"{given}\n, {since}" if given else since
