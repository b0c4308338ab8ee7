"""What `@app.poller(...)` accepts: everything that can be known of a poller without asking the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from rota.clock import Duration, duration, seconds
from rota.errors import ConfigurationError
from rota.pollers.adaptive import LONGEST, Adaptive
from rota.pollers.rows import RowReader, reader_of
from rota.postgres.names import check_name, read_table_name
from rota.postgres.query import identifier
from rota.retry import Retry

__all__ = ["CountedFrom", "PollerDefinition", "Unit", "define"]

CountedFrom = Literal["end", "start"]
Unit = Literal["millisecond", "second", "minute", "hour", "day", "week"]

_UNIT_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
_MOST_ROWS = 10_000
# what PostgreSQL cannot be sent
_NOT_SQL = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class PollerDefinition:
    """A poller, checked as far as that is possible without its table."""

    name: str
    handler: Callable[..., Any]
    reader: RowReader
    table: tuple[str | None, str]
    key: tuple[str, ...]
    last: str | None
    due: str | None
    #: a duration for all rows, or the column that has each row's own
    interval: timedelta | str | None
    #: seconds that a number in that column counts for; None when it is an interval
    unit: float | None
    where: str | None
    done: str | None
    order_by: str | None
    counted_from: CountedFrom
    batch: int
    concurrency: int
    limit: int | None
    retry: Retry
    timeout: float | None
    adaptive: Adaptive | None
    idle: float

    @property
    def form(self) -> Literal["last", "due", "state"]:
        """How it is told that a row is due."""
        return "last" if self.last is not None and self.due is None else "due" if self.due is not None else "state"

    @property
    def clock(self) -> str | None:
        """The column, or SQL, that has the time which tells whether a row is due."""
        return self.due if self.form == "due" else self.last

    @property
    def own_pace(self) -> bool:
        """Whether the pace of each row is kept in a table of Rota's."""
        return self.adaptive is not None and not isinstance(self.interval, str)

    def told(self) -> dict[str, Any]:
        """What people are shown of it who do not have this app."""
        schema, table = self.table
        given: Mapping[str, Any] = {
            # a pair where it could not be told from the text what the schema is
            "table": table if schema is None else [schema, table] if "." in schema else f"{schema}.{table}",
            "key": list(self.key),
            "last": self.last,
            "due": self.due,
            "interval": str(self.interval) if self.interval is not None else None,
            "where": self.where,
            "done": self.done,
            "order_by": self.order_by,
            "counted_from": self.counted_from,
            "batch": self.batch,
            "concurrency": self.concurrency,
            "limit": self.limit,
            "attempts": self.retry.attempts,
            "adaptive": None if self.adaptive is None else [str(self.adaptive.shortest), str(self.adaptive.longest)],
        }
        return {name: value for name, value in given.items() if value is not None}


def define(
    handler: Callable[..., Any],
    *,
    name: str | None,
    table: Any,
    key: Any,
    last: str | None,
    due: str | None,
    interval: Duration | None,
    unit: Unit | None,
    where: str | None,
    done: str | None,
    order_by: str | None,
    counted_from: CountedFrom,
    batch: int,
    concurrency: int,
    limit: int | None,
    retry: Retry | int | None,
    timeout: Duration | None,
    adaptive: Any,
    idle: Duration,
) -> PollerDefinition:
    """Check the options, and raise ConfigurationError with all that is wrong with them."""
    if not callable(handler) or isinstance(handler, type):
        raise ConfigurationError(f"{handler!r} cannot be a poller: it is a function, async or not, that takes a row.")
    told = name if name is not None else getattr(handler, "__qualname__", type(handler).__name__)
    checked = check_name("a poller's name", told.rpartition("<locals>.")[2] if isinstance(told, str) else told, 200)
    problems: list[str] = []

    def noted(check: Callable[[], Any]) -> Any:
        try:
            return check()
        except ConfigurationError as error:
            problems.append(str(error).rstrip("."))

    keys = noted(lambda: _columns("key", key))
    place = noted(lambda: read_table_name(table))
    if last is not None:
        noted(lambda: _column("last", last))
    for what, text in (("where", where), ("done", done), ("order_by", order_by), ("due", due)):
        if text is not None and (not isinstance(text, str) or not text.strip() or _NOT_SQL.search(text)):
            problems.append(f"{what} is {text!r}; it is SQL text")
    read = noted(lambda: _interval(interval, unit))
    every, each = read if read is not None else (None, None)
    if last is None and due is None:
        if where is None:
            problems.append(
                "nothing says when a row is due: give last= with interval=, due=, or where= for rows in a certain state"
            )
        if interval is not None or adaptive is not None:
            problems.append("interval= and adaptive= need last= or due=, the column that they are counted from")
    if last is not None and due is None and interval is None and adaptive is None:
        problems.append("last= says when a row was polled, and interval= is missing, which says how soon it is again")
    if adaptive is not None and not isinstance(adaptive, Adaptive):
        problems.append(f"adaptive is {adaptive!r}; it is rota.Adaptive(min=..., max=...)")
    if adaptive is not None and due is not None and not isinstance(every, str):
        problems.append("adaptive= with due= needs interval= to name the column that has each row's interval")
    if counted_from not in get_args(CountedFrom):
        problems.append(f"counted_from is {counted_from!r}; it is 'end' or 'start'")
    elif counted_from == "start" and adaptive is not None:
        problems.append("counted_from='start' keeps a row to one pace, which adaptive= changes: leave one of them out")
    for what, number, most in (
        ("batch", batch, _MOST_ROWS),
        ("concurrency", concurrency, _MOST_ROWS),
        ("limit", limit, None),
    ):
        if (what != "limit" or number is not None) and not _is_count(number, most):
            problems.append(
                f"{what} is {number!r}; it is a whole number, 1 or more" + (f", at most {most:,}" if most else "")
            )
    limit_of_time = None if timeout is None else noted(lambda: _positive("timeout", timeout))
    pause = noted(lambda: _positive("idle", idle))
    policy = noted(lambda: _retry(retry))
    reader = noted(lambda: reader_of(handler, checked))
    if problems:
        raise ConfigurationError(f"Poller {checked!r} cannot work: {'; '.join(problems)}.")
    return PollerDefinition(
        name=checked,
        handler=handler,
        reader=reader,
        table=place,
        key=keys,
        last=last,
        due=due,
        interval=every,
        unit=each,
        where=where,
        done=done,
        order_by=order_by,
        counted_from=counted_from,
        batch=batch,
        concurrency=concurrency,
        limit=limit,
        retry=policy,
        timeout=limit_of_time,
        adaptive=adaptive,
        idle=pause,
    )


def _columns(what: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    for name in names:
        identifier(name)
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"{what} is {given!r}; it is the name of a column, or a list of different ones")
    return names


def _column(what: str, given: Any) -> str:
    if not isinstance(given, str):
        raise ConfigurationError(f"{what} is {given!r}; it is the name of a column")
    identifier(given)
    return given


def _interval(interval: Duration | None, unit: Unit | None) -> tuple[timedelta | str | None, float | None]:
    """A duration or a column, and what a number in it counts for."""
    if unit is not None:
        if not isinstance(unit, str) or unit not in _UNIT_SECONDS:
            raise ConfigurationError(f"unit is {unit!r}; it is one of {', '.join(_UNIT_SECONDS)}")
        if not isinstance(interval, str):
            raise ConfigurationError("unit= is for an interval= that names a column of numbers")
        return _column("interval", interval), _UNIT_SECONDS[unit]
    if interval is None:
        return None, None
    try:
        every = duration(interval, "interval")
    except ConfigurationError:
        if isinstance(interval, str):  # no duration, so the name of a column
            return _column("interval", interval), None
        raise
    if not timedelta(0) < every <= LONGEST:
        raise ConfigurationError(
            f"interval is {interval!r}; it is more than nothing, and at most {LONGEST.days:,} days"
        )
    return every, None


def _positive(what: str, value: Duration) -> float:
    given = seconds(value, what)
    if given <= 0:
        raise ConfigurationError(f"{what} is {value!r}; it is more than nothing")
    return given


def _retry(retry: Retry | int | None) -> Retry:
    policy = retry if isinstance(retry, Retry) else Retry(attempts=1 if retry is None else retry)
    if policy.losses is not None:
        raise ConfigurationError("Retry(losses=...) is for tasks: a row that was lost with three processes is parked")
    return policy


def _is_count(number: Any, most: int | None) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1 and (most is None or number <= most)
