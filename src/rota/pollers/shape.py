"""A table of the user's as the catalog knows it: what can be claimed of it, and how its names are written.

The catalog is the only source of truth: a name reaches a statement only after the catalog has it, and always quoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

from rota.errors import ConfigurationError
from rota.postgres.query import Query, Steps, identifier, nothing, one, one_or_none, statement

__all__ = ["Column", "Shape", "TableMark", "can_be_key", "find_shape", "key_value", "mark_table"]

# How a value of a key's column goes into JSON and comes back the same, whatever the session's settings are.
_AS_IT_IS = ("to_jsonb({column})", "({value})::{type}")
_AS_TEXT = ("to_jsonb({column}::text)", "({value})::{type}")
_KEY_TYPES = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "bool"), _AS_IT_IS),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid", "enum", "inet", "cidr", "macaddr"), _AS_TEXT),
    # no float has all its digits, and those who write 1.0 and 1.00 mean the same
    "numeric": ("to_jsonb(trim_scale({column})::text)", "({value})::{type}"),
    # the same in upper and lower case
    "citext": ("to_jsonb(lower({column}::text))", "({value})::{type}"),
    "date": _AS_IT_IS,
    "timestamp": _AS_IT_IS,
    "timestamptz": ("to_jsonb({column} at time zone 'UTC')", "({value})::timestamp at time zone 'UTC'"),
    "bytea": ("to_jsonb(encode({column}, 'hex'))", "decode({value}, 'hex')"),
}
_KINDS = {
    "v": "a view: a row of it cannot be locked. Poll the table that it shows, with its condition as where=...",
    "m": "a materialized view, which nobody can write to. Poll the table that it was made from",
    "f": "a foreign table, whose rows cannot be locked. Poll it in the database where it lives",
    "S": "a sequence",
    "temporary": "a temporary table, which only the session that made it can read",
    "inherited": "a table that others inherit from, where the same key may be once more. Poll each of those that inherit from it",
}


@dataclass(frozen=True, slots=True)
class Column:
    """`type` is written with its schema; `base` is the plain name of what it is at bottom: `enum` for any enum."""

    name: str
    type: str
    #: the type without what limits its length, to which a value could be cut
    unlimited: str
    base: str
    nullable: bool
    generated: bool

    @property
    def is_whole(self) -> bool:
        """Whether it holds whole numbers only."""
        return self.base in ("int2", "int4", "int8") or self.type.endswith(",0)")

    @property
    def sql(self) -> str:
        return identifier(self.name)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table that can be polled."""

    schema: str
    table: str
    columns: Mapping[str, Column]
    #: the sets of columns that no two rows have alike, none of them null; the primary key first
    unique: tuple[frozenset[str], ...]
    rows: float

    @property
    def sql(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.table)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    def column(self, name: str) -> str:
        """The column, as it is written where other tables have columns too."""
        return f"{identifier(self.table)}.{identifier(name)}"

    def key_of(self, key: Sequence[str]) -> str:
        """The key of a row as JSON."""
        parts = (_KEY_TYPES[self.columns[name].base][0].format(column=self.column(name)) for name in key)
        return f"jsonb_build_array({', '.join(parts)})"

    def key_from(self, key: Sequence[str], typed: str) -> str:
        """The same of the texts in `typed`, an SQL expression of JSON: as people write values of these types."""
        parts = []
        for at, name in enumerate(key):
            column = self.columns[name]
            text = f"({typed} ->> {at})"
            # bytes are written as they are shown, and a time may say its zone
            value = f"decode({text}, 'hex')" if column.base == "bytea" else f"({text}::{column.type})"
            parts.append(_KEY_TYPES[column.base][0].format(column=value))
        return f"jsonb_build_array({', '.join(parts)})"

    def is_row(self, key: Sequence[str], given: str) -> str:
        """The condition for the row that has the key `given`, an SQL expression of JSON."""
        return " and ".join(
            f"{self.column(name)} = "
            + _KEY_TYPES[self.columns[name].base][1].format(
                value=f"{given} ->> {at}", type=self.columns[name].unlimited
            )
            for at, name in enumerate(key)
        )


# Names without a schema are found as in a session of the user's.
AS_THE_USER = statement("poller_search_path", "set local search_path to default")
FIND_TABLE = statement(
    "find_poller_table",
    """
    select
        class.oid::bigint, namespace.nspname, class.relname, class.reltuples,
        case
            when class.relpersistence = 't' then 'temporary'
            when class.relkind = 'r' and exists (
                select from pg_catalog.pg_inherits where pg_inherits.inhparent = class.oid
            ) then 'inherited'
            else class.relkind::text
        end
    from pg_catalog.pg_class as class
    join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
    where class.relname = %(table)s
      and case
          when %(schema)s::text is null then pg_catalog.pg_table_is_visible(class.oid)
          else namespace.nspname = %(schema)s
      end
      and class.relkind not in ('i', 'I', 't', 'c')
    """,
)
# So that the name of each type is written with its schema.
AS_NOBODY = statement("poller_no_search_path", "set local search_path to pg_catalog")
FIND_COLUMNS = statement(
    "find_poller_columns",
    """
    with recursive kind as (
        select attribute.attnum, type.oid, type.typtype, type.typbasetype, type.typname
        from pg_catalog.pg_attribute as attribute
        join pg_catalog.pg_type as type on type.oid = attribute.atttypid
        where attribute.attrelid = %(table)s::bigint::oid
          and attribute.attnum > 0
          and not attribute.attisdropped
        union all
        select kind.attnum, type.oid, type.typtype, type.typbasetype, type.typname
        from kind
        join pg_catalog.pg_type as type on type.oid = kind.typbasetype
        where kind.typtype = 'd'
    )
    select
        attribute.attname,
        pg_catalog.format_type(attribute.atttypid, attribute.atttypmod),
        pg_catalog.format_type(attribute.atttypid, -1),
        case kind.typtype when 'e' then 'enum' else kind.typname::text end,
        not attribute.attnotnull,
        attribute.attgenerated <> '' or attribute.attidentity = 'a'
    from pg_catalog.pg_attribute as attribute
    join kind on kind.attnum = attribute.attnum and kind.typtype <> 'd'
    where attribute.attrelid = %(table)s::bigint::oid
    order by attribute.attnum
    """,
)
FIND_UNIQUE = statement(
    "find_poller_keys",
    """
    select array_agg(attribute.attname::text)
    from pg_catalog.pg_index as index
    cross join lateral unnest(index.indkey::smallint[]) with ordinality as part (attnum, at)
    join pg_catalog.pg_attribute as attribute
        on attribute.attrelid = index.indrelid and attribute.attnum = part.attnum
    where index.indrelid = %(table)s::bigint::oid
      and index.indisunique
      and index.indisvalid
      and index.indimmediate
      and index.indpred is null
      and index.indexprs is null
      and part.at <= index.indnkeyatts
    group by index.indexrelid, index.indisprimary, index.indnkeyatts
    -- two rows may both have null there
    having bool_and(attribute.attnotnull)
    order by index.indisprimary desc, index.indexrelid
    """,
)


def find_shape(table: str | tuple[str | None, str], *, poller: str) -> Steps[Shape]:
    """Read the table from the catalog. Raises ConfigurationError where it cannot be polled."""
    schema, name = table if isinstance(table, tuple) else (None, table)
    yield AS_THE_USER.query(read=nothing)
    found: tuple[int, str, str, float, str] | None = yield _find_table(schema, name)
    if found is None and schema is not None and len(f"{schema}.{name}".encode()) <= 63:
        found = yield _find_table(None, f"{schema}.{name}")  # its name may hold a dot
    said = name if schema is None else f"{schema}.{name}"
    if found is None:
        where = "in the schemas that are searched" if schema is None else f"in the schema {schema!r}"
        raise ConfigurationError(
            f"Poller {poller!r} cannot poll {said!r}: there is no such table {where}. Names are as in the catalog, upper and lower "
            "case are told apart; write table='schema.table' for one elsewhere."
        )
    oid, schema, name, rows, kind = found
    if kind not in ("r", "p"):
        raise ConfigurationError(f"Poller {poller!r} cannot poll {said!r}: it is {_KINDS.get(kind, 'no table')}.")
    yield AS_NOBODY.query(read=nothing)
    columns: list[Column] = yield FIND_COLUMNS.query({"table": oid}, read=lambda rows: [Column(*row) for row in rows])
    unique: list[frozenset[str]] = yield FIND_UNIQUE.query(
        {"table": oid}, read=lambda rows: [frozenset(row[0]) for row in rows]
    )
    return Shape(schema, name, {column.name: column for column in columns}, tuple(unique), max(0.0, rows))


def _find_table(schema: str | None, table: str) -> Query[tuple[int, str, str, float, str] | None]:
    return FIND_TABLE.query({"schema": schema, "table": table}, read=one_or_none(lambda *row: row))


class TableMark(NamedTuple):
    """By what one sees that a table is not what it was, and whether someone has declared its poller."""

    digest: str | None
    declared: bool


MARK_TABLE = statement(
    "mark_poller_table",
    """
    select
        pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(
            ' ', class.oid, class.relnamespace, class.relkind, class.relhassubclass,
            (
                select pg_catalog.string_agg(pg_catalog.concat_ws(
                    ' ', attribute.attname, attribute.atttypid, attribute.atttypmod, attribute.attnotnull,
                    attribute.attgenerated, attribute.attidentity
                ), ',' order by attribute.attnum)
                from pg_catalog.pg_attribute as attribute
                where attribute.attrelid = class.oid
                  and attribute.attnum > 0
                  and not attribute.attisdropped
            ),
            (
                select pg_catalog.string_agg(index.indexrelid::text, ',' order by index.indexrelid)
                from pg_catalog.pg_index as index
                where index.indrelid = class.oid
                  and index.indisunique
                  and index.indisvalid
            )
        ), ';' order by class.oid)),
        exists (select from {schema}.pollers as poller where poller.name = %(poller)s)
    from pg_catalog.pg_class as class
    join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
    where class.relname in (%(table)s, %(dotted)s)
      and (pg_catalog.pg_table_is_visible(class.oid) or namespace.nspname = %(schema)s)
    """,
)


def mark_table(table: tuple[str | None, str], *, poller: str) -> Query[TableMark]:
    """What would change with anything that `find_shape` reads, in one statement."""
    schema, name = table
    params = {"schema": schema, "table": name, "dotted": f"{schema}.{name}", "poller": poller}
    return MARK_TABLE.query(params, read=one(TableMark))


def key_value(given: Any) -> Any:
    """A value of a key, as someone gives it, in the form that it has in a claim's key."""
    if isinstance(given, Enum):
        return key_value(given.value)
    if isinstance(given, datetime):
        utc = given if given.tzinfo is None else given.astimezone(UTC).replace(tzinfo=None)
        # as PostgreSQL writes it
        return utc.isoformat().rstrip("0") if utc.microsecond else utc.isoformat()
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given).hex()
    if isinstance(given, Decimal | float):
        number = Decimal(str(given))
        return f"{number.normalize():f}" if number.is_finite() else str(given)
    return given if isinstance(given, bool | int | str) else str(given)


def can_be_key(column: Column) -> bool:
    """Whether a value of it can be told again from its JSON."""
    return column.base in _KEY_TYPES
