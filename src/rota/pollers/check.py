"""Whether a table is fit to be polled: what PostgreSQL does to find its due rows, and what it lacks to do that well.

A table that has few rows today is read as a whole whatever indexes it has. So what the planner does at this moment says little;
asked not to scan and not to sort, it shows whether an index leads to the due rows and no others. Nothing is executed, and what is
tried out is undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg.errors
from psycopg.types.json import Jsonb

from rota.errors import ConfigurationError
from rota.pollers.claim import Claims
from rota.pollers.definition import PollerDefinition
from rota.pollers.due import Plan, make_plan
from rota.pollers.index import MissingIndex, Proposal, propose, said
from rota.pollers.plan import plan_of
from rota.pollers.shape import find_shape
from rota.postgres.pool import Database
from rota.postgres.query import Query, Row, Statement, Steps, identifier, nothing, one, statement

__all__ = ["PollerCheck", "check_poller"]

# A table that has fewer rows is read quickly in any way, and PostgreSQL knows that.
_SMALL = 10_000


@dataclass(frozen=True, slots=True)
class PollerCheck:
    """What PostgreSQL makes of a poller. `rows` is an estimate, None where it has never counted.

    `plan` is that of the statement that takes due rows, as it would be carried out now; empty where this role may not run it.
    `scans` says whether all of the table is read by it, which is right for a small one. `index` is the index that leads to due
    rows, `missing` the one that would, and `warnings` are sentences. `partitioned` is for those who make indexes.
    """

    poller: str
    table: str
    partitioned: bool
    rows: int | None
    plan: str
    scans: bool
    index: str | None
    missing: MissingIndex | None
    warnings: tuple[str, ...]

    @property
    def is_fit(self) -> bool:
        """Whether nothing needs to be done."""
        return self.missing is None and bool(self.plan)


@dataclass(frozen=True, slots=True)
class _Table:
    """What the catalog says of a table and its partitions."""

    role: str
    partitioned: bool
    rows: float
    counted: bool
    parts: list[list[str]]
    #: by name: whether it holds a part of the rows only, and how many columns it is on
    indexes: dict[str, tuple[bool, int]]
    invalid: list[str]
    may_enter: bool
    may_select: bool
    may_update: bool
    parked: int


LOOK_UP = statement(
    "look_up_polled_table",
    """
    with recursive named as (
        select class.oid, class.relkind, class.relnamespace
        from pg_catalog.pg_class as class
        join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
        where namespace.nspname = %(schema)s::name
          and class.relname = %(table)s::name
    ), tree as (
        select named.oid from named
        union all
        select child.inhrelid from pg_catalog.pg_inherits as child join tree on tree.oid = child.inhparent
    ), part as (
        select class.oid, namespace.nspname, class.relname, class.relkind, class.reltuples
        from tree
        join pg_catalog.pg_class as class on class.oid = tree.oid
        join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
    ), indexes as (
        select class.relname, index.indrelid, index.indpred is not null as partial, index.indnkeyatts, index.indisvalid
        from pg_catalog.pg_index as index
        join part on part.oid = index.indrelid
        join pg_catalog.pg_class as class on class.oid = index.indexrelid
    )
    select
        current_user::text,
        named.relkind = 'p',
        (select coalesce(sum(greatest(part.reltuples, 0)), 0)::float8 from part where part.relkind = 'r'),
        (select coalesce(bool_and(part.reltuples >= 0), true) from part where part.relkind = 'r'),
        (select jsonb_agg(jsonb_build_array(part.nspname, part.relname)) from part),
        (
            select coalesce(jsonb_object_agg(indexes.relname, jsonb_build_array(indexes.partial, indexes.indnkeyatts)), '{}')
            from indexes
        ),
        (
            select coalesce(jsonb_agg(indexes.relname order by indexes.relname), '[]')
            from indexes
            where not indexes.indisvalid
              and indexes.indrelid = named.oid
        ),
        pg_catalog.has_schema_privilege(named.relnamespace, 'usage'),
        pg_catalog.has_any_column_privilege(named.oid, 'select'),
        pg_catalog.has_any_column_privilege(named.oid, 'update'),
        (
            select count(*)
            from {schema}.poll_claims as claim
            where claim.poller = %(poller)s
              and claim.parked_at is not null
        )
    from named
    """,
)


def _look_up(plan: Plan) -> Query[_Table]:
    params = {"schema": plan.shape.schema, "table": plan.shape.table, "poller": plan.definition.name}
    return LOOK_UP.query(params, read=one(_Table))


async def check_poller(looking: Database, definition: PollerDefinition) -> PollerCheck:
    """Look at how its rows are found. Raises ConfigurationError where the poller does not fit its table at all."""
    denied = None
    try:
        plan = await plan_of(looking, definition)
    except ConfigurationError as error:
        denied = _denied(error)
        if denied is None:
            raise
        plan = make_plan(definition, await looking.run_steps(find_shape(definition.table, poller=definition.name)))
    table = await looking.run(_look_up(plan))
    if denied is not None:
        return _told(plan, table, warnings=[_rights(plan, table, denied)])
    explained, now, able, by_key = await looking.run_steps(_explained(plan), dry_run=True)
    reads = list(_reads(able, table, _LOOKS))
    fit = all(read.bounded and (read.in_order or _sorts(plan)) for read in reads)
    warnings = list(_remarks(plan, table))
    if not all(read.bounded for read in _reads(by_key, table, (None,))):
        warnings.append(
            f"no index leads to a row by its key ({', '.join(definition.key)}), which each stamp needs: make one on it"
        )
    scans = not all(read.bounded for read in _reads(now, table, _LOOKS))
    missing: MissingIndex | None = None
    proposed = await propose(looking, plan, table.partitioned)
    if not fit:
        missing = proposed.index
        warnings += proposed.remarks
    else:
        warnings += _remarks_on_index(plan, table, reads, proposed, scans)
    index = reads[0].index if fit and reads else None
    return _told(plan, table, explained, scans, index, missing, warnings)


def _told(
    plan: Plan,
    table: _Table,
    explained: str = "",
    scans: bool = False,
    index: str | None = None,
    missing: MissingIndex | None = None,
    warnings: Sequence[str] = (),
) -> PollerCheck:
    return PollerCheck(
        poller=plan.definition.name,
        table=str(plan.shape),
        partitioned=table.partitioned,
        rows=round(table.rows) if table.counted else None,
        plan=explained,
        scans=scans,
        index=index,
        missing=missing,
        warnings=tuple(warnings),
    )


def _sorts(plan: Plan) -> bool:
    """Whether all that is due is put in order, since nothing can be both found and read in that order."""
    return plan.definition.order_by is not None and plan.due_since is not None


def _explained(plan: Plan) -> Steps[tuple[str, Any, Any, Any]]:
    """The plan in words; as a tree; as it is where neither a scan nor a sort is wanted; and that of looking for one key."""
    claim = Claims(plan).due(limit=plan.definition.batch, token=0, member=UUID(int=0))
    words: str = yield _explain(claim, "explain", lambda rows: "\n".join(row[0] for row in rows))
    now = yield _explain(claim, _AS_TREE, _tree)
    unwanted = ["enable_seqscan"]
    if not _sorts(plan):
        unwanted += ["enable_bitmapscan", "enable_sort", "enable_incremental_sort"]
    for setting in unwanted:
        yield statement("plan_without", f"set local {setting} to off").query(read=nothing)
    able = yield _explain(claim, _AS_TREE, _tree)
    shape, key = plan.shape, plan.definition.key
    this_row = shape.is_row(key, "(select rota_asked.rota_key from rota_asked)")
    by_key = BY_KEY.composed({"table": shape.sql, "this_row": this_row}).query(
        {"key": Jsonb([None] * len(key))}, read=_tree
    )
    return words, now, able, (yield _explain(by_key, _AS_TREE, _tree))


BY_KEY = statement(
    "find_row_by_key",
    """
    with rota_asked as materialized (select %(key)s::jsonb as rota_key)
    select from {table} where {this_row}
    """,
)
_AS_TREE = "explain (format json, verbose)"


def _explain(query: Query[Any], how: str, read: Any) -> Query[Any]:
    """The plan of a query, which is not executed."""
    asked = query.statement
    return Statement(f"explain:{asked.name}", f"{how} {asked.text}", asked.parts).query(query.params, read=read)


def _tree(rows: Sequence[Row]) -> Any:
    return rows[0][0][0]["Plan"]


#: the parts of a claim that look for due rows; rows whose pace we keep are found by their keys
_LOOKS = ("CTE rota_never", "CTE rota_due")


@dataclass(frozen=True, slots=True)
class _Read:
    """How the table, or a partition of it, is read."""

    index: str | None
    #: no more is read than what the index leads to
    bounded: bool
    in_order: bool


def _reads(node: Any, table: _Table, within: tuple[str | None, ...]) -> Iterator[_Read]:
    """How the user's table is read in these parts of the plan; None is the whole of it, without the author's subselects."""
    if None in within:
        yield from _reads_below(node, table, in_order=True)
        return
    for child in node.get("Plans", ()):
        if child.get("Subplan Name") in within:
            yield from _reads_below(child, table, in_order=True)
        else:
            yield from _reads(child, table, within)


def _reads_below(node: Any, table: _Table, in_order: bool) -> Iterator[_Read]:
    in_order = in_order and node["Node Type"] not in ("Sort", "Incremental Sort")
    if [node.get("Schema"), node.get("Relation Name")] in table.parts:
        walks = [node] if "Index Name" in node else list(_bitmaps(node))
        partial = all(table.indexes.get(walk["Index Name"], (False, 0))[0] for walk in walks)
        bounded = bool(walks) and (partial or all("Index Cond" in walk for walk in walks))
        yield _Read(walks[0]["Index Name"] if walks else None, bounded, in_order)
        return
    for child in node.get("Plans", ()):
        # what the author's SQL looks at besides is theirs, also where it is the same table
        if child.get("Parent Relationship") not in ("InitPlan", "SubPlan"):
            yield from _reads_below(child, table, in_order)


def _bitmaps(node: Any) -> Iterator[Any]:
    for child in node.get("Plans", ()):
        if child["Node Type"] == "Bitmap Index Scan":
            yield child
        elif child["Node Type"] in ("BitmapOr", "BitmapAnd"):
            yield from _bitmaps(child)


def _denied(error: ConfigurationError) -> str | None:
    """What PostgreSQL said if it was about rights."""
    cause = error.__cause__.__cause__ if error.__cause__ is not None else None
    return said(cause) if isinstance(cause, psycopg.errors.InsufficientPrivilege) else None


def _rights(plan: Plan, table: _Table, denied: str) -> str:
    role, shape = identifier(table.role), plan.shape
    needed = [right for right, has in (("select", table.may_select), ("update", table.may_update)) if not has]
    grants = [] if table.may_enter else [f"grant usage on schema {identifier(shape.schema)} to {role}"]
    if needed:
        grants.append(f"grant {', '.join(needed)} on {shape.sql} to {role}")
    todo = f"run `{'; '.join(grants)}`" if grants else "grant it what it lacks"
    return f"the role {table.role} may not poll this table: {denied}; {todo}"


def _remarks(plan: Plan, table: _Table) -> Iterator[str]:
    definition = plan.definition
    if _sorts(plan):
        yield (
            f"order_by={definition.order_by!r} sorts all that is due for each look, so a look takes the longer the more waits; "
            "without it the oldest come first, straight from the index"
        )
    if definition.limit is not None:
        yield (
            f"limit={definition.limit} is exact over all workers, which therefore look one after the other; leave it out where "
            "concurrency= of each worker is enough"
        )
    if table.parked:
        yield (
            f"{table.parked} row(s) are parked and not polled: `rota pollers parked` shows why, `rota pollers release` lets "
            "them be tried again"
        )
    if not table.counted:
        yield f"PostgreSQL has no statistics of this table, and plans blindly: run `analyze {plan.shape.sql}`"
    for name in table.invalid:
        yield (
            f"the index {name} is invalid, as making it was not finished: run `drop index "
            f"{identifier(plan.shape.schema)}.{identifier(name)}`, and make it anew"
        )


def _remarks_on_index(
    plan: Plan, table: _Table, reads: Sequence[_Read], proposed: Proposal, scans: bool
) -> Iterator[str]:
    index = reads[0].index if reads else None
    if index is None:
        return
    partial, columns = table.indexes.get(index, (False, 0))
    if plan.definition.where is not None and proposed.partial and proposed.index and not partial and columns == 1:
        yield (
            f"the index {index} also leads to due rows that where= leaves out, and each look reads past them; if they are many: "
            f"`{proposed.index.statement}`"
        )
    if scans and table.counted and table.rows >= _SMALL:
        yield (
            f"PostgreSQL reads the whole table although the index {index} leads to what is due: its statistics may be old, so "
            f"run `analyze {plan.shape.sql}`"
        )
