"""A statement and its parameters as a value, run by one of two runners.

A module writes each statement right above the function that gives it its parameters; whether that value is run by an
async or a sync caller is decided elsewhere. The statement's name travels to the server in a comment, so that what an
operator sees in `pg_stat_activity` is what a developer searches for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent
from typing import Any, Generic, NamedTuple, TypeVar

from rota.errors import ConfigurationError

__all__ = [
    "Copy",
    "CopySteps",
    "Query",
    "Row",
    "Statement",
    "Steps",
    "Unreadable",
    "identifier",
    "many",
    "nothing",
    "one",
    "one_or_none",
    "scalar",
    "statement",
]

T = TypeVar("T")
_PART = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"%(?:\((\w+)\)s|%)")
Row = tuple[Any, ...]


def identifier(name: str) -> str:
    """The name quoted for SQL. Refuses what PostgreSQL would cut short or cannot hold."""
    if (
        not isinstance(name, str)
        or not name
        or "\0" in name
        or len(name.encode("utf-8", "surrogatepass")) > 63
        or _has_surrogate(name)
    ):
        raise ConfigurationError(
            f"{name!r} cannot name anything in PostgreSQL: a name has 1 to 63 bytes of UTF-8 and no NUL character."
        )
    return '"' + name.replace('"', '""') + '"'


def _has_surrogate(text: str) -> bool:
    return re.search(r"[\ud800-\udfff]", text) is not None


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with `{schema}` as the only thing composed in, always as a quoted identifier.

    `parts` are what is composed in beside it where a statement works on a table of the user's: names quoted by `identifier`, or
    SQL that the author of the application wrote. Nothing is looked for within them.
    """

    name: str
    text: str
    parts: tuple[tuple[str, str], ...] = ()

    def query(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        read: Callable[[Sequence[Row]], T],
        values_apart: bool = False,
        binary: bool = False,
    ) -> Query[T]:
        # never without parameters: the driver would then take a doubled percent sign as it stands
        return Query(self, params or {}, read, values_apart, binary)

    def sql(self, schema: str) -> str:
        return _rendered(self.name, self.text, schema, self.parts)

    def numbered(self, schema: str) -> tuple[bytes, tuple[str, ...]]:
        """The same with parameters by number, as PostgreSQL has them, and their names in that order.

        The driver would find that out each time for a statement of more than 4,096 characters, and take longer for it than the
        server for the statement.
        """
        return _numbered(self.sql(schema))

    def composed(self, parts: Mapping[str, str]) -> Statement:
        """The same with these in the places of `{name}`."""
        return Statement(self.name, self.text, tuple(parts.items()))


@lru_cache(maxsize=2048)
def _rendered(name: str, text: str, schema: str, parts: tuple[tuple[str, str], ...]) -> str:
    given = {"schema": identifier(schema), **dict(parts)}
    # what is composed in may hold a percent sign, which the driver would take for a parameter; and all in one go, as it may also
    # hold what looks like another part
    # and the name may be the user's: nothing in it ends the comment, begins another, or is a parameter
    told = name.replace("*", "?").replace("%", "%%")
    return f"/* rota:{told} */ " + _PART.sub(
        lambda found: given[found[1]].replace("%", "%%") if found[1] in given else found[0], text
    )


@lru_cache(maxsize=2048)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[1] is None else f"${names.setdefault(found[1], len(names) + 1)}"

    return _PARAMETER.sub(number, sql).encode(), tuple(names)


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """A statement with its parameters, and how to read what comes back."""

    statement: Statement
    params: Mapping[str, Any]
    read: Callable[[Sequence[Row]], T]
    #: a value that Python cannot hold is an Unreadable in its place, and does not keep the others from being read
    values_apart: bool = False
    #: long arrays are written and read in half the time this way, a few values in no less
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows that are copied into a table, in a form that COPY knows: piece by piece, and each is made when those before are on
    their way, so that the server is at them meanwhile."""

    statement: Statement
    rows: Iterable[bytes]


class Unreadable(NamedTuple):
    """Stands for a value that Python cannot hold, such as a date before Christ."""

    why: str


#: Several queries that make one step, mostly in one transaction: yields each query and receives what it read.
Steps = Generator[Query[Any], Any, T]
#: The same, on a connection of ours, where rows may be copied as well.
CopySteps = Generator[Query[Any] | Copy, Any, T]


def statement(name: str, text: str) -> Statement:
    return Statement(name, dedent(text).strip())


def many(build: Callable[..., T]) -> Callable[[Sequence[Row]], list[T]]:
    return lambda rows: [build(*row) for row in rows]


def one(build: Callable[..., T]) -> Callable[[Sequence[Row]], T]:
    return lambda rows: build(*rows[0])


def one_or_none(build: Callable[..., T]) -> Callable[[Sequence[Row]], T | None]:
    return lambda rows: build(*rows[0]) if rows else None


def scalar(rows: Sequence[Row]) -> Any:
    return rows[0][0] if rows else None


def nothing(rows: Sequence[Row]) -> None:
    return None
