"""A table of the user's as the catalog knows it: whether its events can be read, and what it lacks for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rota.errors import ConfigurationError
from rota.postgres.query import Query, Row, identifier, statement

__all__ = ["Mapped", "TableColumns", "check_columns", "find_columns"]

_WHOLE = ("int2", "int4", "int8")
_JSON = ("jsonb", "json", "text", "varchar")
# what a column must be at bottom, by what it is mapped to; any other may be of any type that can be written as text
_TYPES = {
    "position": (_WHOLE, "a whole number that grows: bigint"),
    "xid": (("xid8",), "the id of the transaction: xid8"),
    "version": (_WHOLE, "a whole number"),
    "shape": (_WHOLE, "a whole number"),
    "data": (_JSON, "JSON: jsonb, json or text"),
    "metadata": (_JSON, "JSON: jsonb, json or text"),
    "created_at": (("timestamptz",), "a point in time: timestamptz"),
}
_KINDS = {"r", "p", "v", "m", "f"}  # tables, partitioned or foreign, and views of both kinds
# What of these cannot be read in the order of transactions.
_UNFIT = {"m": "a materialized view", "f": "a foreign table"}

#: columns by what they are mapped to; None for what the table does not say
Mapped = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What the catalog says: the types of the columns by their names, `bases` being what they are at bottom."""

    types: Mapping[str, str]
    bases: Mapping[str, str]
    #: the only column of the primary key
    key: str | None
    partitioned: bool
    is_view: bool = False
    #: materialized views and foreign tables, if it is one, or has them for partitions, or is a view of them: each with what it is
    unfit: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name} ({type_})" for name, type_ in self.types.items())


FIND = statement(
    "find_event_columns",
    """
    with recursive kind as (
        select
            class.oid as table, class.relkind, attribute.attnum, attribute.attname, attribute.atttypid, attribute.atttypmod,
            type.typtype, type.typbasetype, type.typname
        from pg_catalog.pg_class as class
        join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
        join pg_catalog.pg_attribute as attribute on attribute.attrelid = class.oid
        join pg_catalog.pg_type as type on type.oid = attribute.atttypid
        where namespace.nspname = %(schema)s::text
          and class.relname = %(table)s::text
          and class.relkind = any (%(kinds)s::text[])
          and attribute.attnum > 0
          and not attribute.attisdropped
        union all
        select
            kind.table, kind.relkind, kind.attnum, kind.attname, kind.atttypid, kind.atttypmod,
            type.typtype, type.typbasetype, type.typname
        from kind
        join pg_catalog.pg_type as type on type.oid = kind.typbasetype
        where kind.typtype = 'd'
    ), beneath as (
        select distinct kind.table as oid from kind
        union
        select part.oid
        from beneath
        cross join lateral (
            select child.inhrelid as oid
            from pg_catalog.pg_inherits as child
            where child.inhparent = beneath.oid
            union all
            -- what a view reads: on that its rule depends
            select depends.refobjid
            from pg_catalog.pg_rewrite as rule
            join pg_catalog.pg_depend as depends
                on depends.classid = 'pg_catalog.pg_rewrite'::regclass
                and depends.objid = rule.oid
                and depends.refclassid = 'pg_catalog.pg_class'::regclass
            where rule.ev_class = beneath.oid
              -- one that is materialized has its rows, whatever they were made of
              and rule.ev_class in (select class.oid from pg_catalog.pg_class as class where class.relkind = 'v')
        ) as part
    )
    select
        kind.attname::text,
        pg_catalog.format_type(kind.atttypid, kind.atttypmod),
        kind.typname::text,
        kind.relkind = 'p',
        exists (
            select
            from pg_catalog.pg_index as index
            where index.indrelid = kind.table
              and index.indisprimary
              and index.indnkeyatts = 1
              and index.indkey[0] = kind.attnum
        ),
        kind.relkind = 'v',
        (
            select array_agg(array[class.oid::regclass::text, class.relkind::text] order by class.oid)
            from beneath
            join pg_catalog.pg_class as class on class.oid = beneath.oid
            where class.relkind = any (%(unfit)s::text[])
        )
    from kind
    where kind.typtype <> 'd'
    order by kind.attnum
    """,
)


def find_columns(schema: str, table: str) -> Query[TableColumns | None]:
    """What the catalog has of the table; None if it has none of that name."""

    def read(rows: Sequence[Row]) -> TableColumns | None:
        if not rows:
            return None
        return TableColumns(
            types={row[0]: row[1] for row in rows},
            bases={row[0]: row[2] for row in rows},
            key=next((row[0] for row in rows if row[4]), None),
            partitioned=rows[0][3],
            is_view=rows[0][5],
            unfit=[(name, _UNFIT[kind]) for name, kind in rows[0][6] or ()],
        )

    params = {"schema": schema, "table": table, "kinds": sorted(_KINDS), "unfit": sorted(_UNFIT)}
    return FIND.query(params, read=read)


def check_columns(name: str, schema: str, table: str, found: TableColumns | None, mapped: Mapped) -> TableColumns:
    """Whether events can be read from it. Raises ConfigurationError with all that is wrong, and the columns there are."""
    there = known(name, schema, table, found)
    if there.unfit:
        told = " and ".join(f"{each} is {what}" for each, what in there.unfit)
        raise ConfigurationError(
            f"Events cannot be read from {name!r}: {told}. Its rows are those of another moment or of another server, and transaction "
            "ids say nothing there about what is still to be committed: events would be passed over. Adopt the table that they are "
            "written to, in the database that has it."
        )
    problems = []
    for role, column in mapped.items():
        if column is None:
            continue
        bases, what = _TYPES.get(role, ((), ""))
        if column not in there.types:
            hint = f" (`rota projections ddl {name}` prints what adds it)" if role == "xid" else ""
            problems.append(f"{role} is column {column!r}, which does not exist{hint}")
        elif bases and there.bases[column] not in bases:
            problems.append(f"{role} is column {column!r}, which is {there.types[column]}, and must be {what}")
    if problems:
        raise ConfigurationError(
            f"Events cannot be read from {name!r}: {'; '.join(problems)}. The table has {there}. Names are as in the catalog: upper "
            "and lower case are told apart."
        )
    return there


def known(name: str, schema: str, table: str, found: TableColumns | None) -> TableColumns:
    if found is None:
        raise ConfigurationError(
            f"Events cannot be read from {name!r}: there is no table {identifier(table)} in the schema {identifier(schema)} that this "
            "role can see. Names are as in the catalog, upper and lower case are told apart; write 'schema.table' for one that is "
            "not in public."
        )
    return found
