"""The index that leads to the due rows of a table: whether there can be one, and the statement that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import psycopg.errors

from rota.errors import DatabaseUnavailable, RotaError
from rota.pollers.due import Plan
from rota.postgres.pool import Database
from rota.postgres.query import Query, Steps, identifier, nothing, scalar, statement

__all__ = ["MissingIndex", "Proposal", "name_within", "propose", "said"]

_LONGEST_NAME = 63
_NAMES_TRIED = 20


@dataclass(frozen=True, slots=True)
class MissingIndex:
    """An index that would lead to due rows, and the statement that makes it, which runs outside a transaction."""

    name: str
    statement: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The index that would be fit, if there can be one, and what is to be said of it."""

    index: MissingIndex | None
    #: whether it leaves out what the poller's `where` does
    partial: bool
    remarks: tuple[str, ...]


async def propose(looking: Database, plan: Plan, partitioned: bool) -> Proposal:
    """Try it on an empty copy: only PostgreSQL knows what it takes into an index."""
    where = plan.definition.where
    try:
        refused = await _refused(looking, plan, where)
    except _Untried as error:
        return await _proposal(
            looking, plan, partitioned, where, f"whether this index can be made was not tried: {error}"
        )
    if not refused:
        return await _proposal(looking, plan, partitioned, where)
    if where is None or plan.due_since is None:  # without its condition it would lead to all rows
        return Proposal(None, False, (_no_index(plan, refused),))
    if again := await _refused(looking, plan, None):
        return Proposal(None, False, (_no_index(plan, again),))
    remark = (
        f"the index is without where={where!r} (of that, PostgreSQL says {refused!r}): each look reads past due rows that "
        "where= leaves out"
    )
    return await _proposal(looking, plan, partitioned, None, remark)


class _Untried(Exception):
    """This role may not make a copy of the table."""


async def _refused(looking: Database, plan: Plan, predicate: str | None) -> str:
    """What PostgreSQL has against such an index; empty for nothing."""
    try:
        await looking.run_steps(_tried(plan, predicate), dry_run=True)
    except DatabaseUnavailable:
        raise
    except RotaError as error:
        words = said(error.__cause__ or error)
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise _Untried(words) from error
        return words
    return ""


# Of the same name, as the author's SQL may use it.
COPY = statement("copy_polled_table", "create temporary table {name} (like {table} including generated)")
TRY_INDEX = statement("try_poller_index", "create index on pg_temp.{name} ({on}) {where}")


def _tried(plan: Plan, predicate: str | None) -> Steps[None]:
    parts = {"name": identifier(plan.shape.table), "table": plan.shape.sql, "on": _on(plan)}
    yield COPY.composed(parts).query(read=nothing)
    yield TRY_INDEX.composed(parts | {"where": _where(predicate)}).query(read=nothing)


def _on(plan: Plan) -> str:
    on = ", ".join(plan.index_on)
    for text in (plan.definition.due, plan.definition.order_by):
        if text is not None and "--" not in text:  # there is no comment that a line break must end
            on = on.replace(f"{text}\n", text)
    return on


def _where(predicate: str | None) -> str:
    if predicate is None:
        return ""
    # a comment of the author's must not swallow the bracket
    return f"where ({predicate}\n)" if "--" in predicate else f"where ({predicate})"


async def _proposal(looking: Database, plan: Plan, partitioned: bool, predicate: str | None, *remarks: str) -> Proposal:
    shape = plan.shape
    name = await looking.run(_free_name(plan, f"{shape.table}_{plan.definition.name}_due"))
    # a partitioned table can have one in no other way
    how = "create index" if partitioned else "create index concurrently"
    text = f"{how} {identifier(name)} on {shape.sql} ({_on(plan)}) {_where(predicate)}".rstrip()
    return Proposal(MissingIndex(name, text), predicate is not None, remarks)


FREE_NAME = statement(
    "free_index_name",
    """
    select given.name
    from unnest(%(names)s::text[]) with ordinality as given (name, at)
    where not exists (
        select
        from pg_catalog.pg_class as class
        join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
        where namespace.nspname = %(schema)s::name
          and class.relname = given.name::name
    )
    order by given.at
    limit 1
    """,
)


def _free_name(plan: Plan, wanted: str) -> Query[str]:
    names = [name_within(wanted), *(name_within(f"{wanted}_{at}") for at in range(2, _NAMES_TRIED))]
    return FREE_NAME.query({"names": names, "schema": plan.shape.schema}, read=scalar)


def name_within(wanted: str) -> str:
    """A name that PostgreSQL does not cut short, and that stays different from others."""
    if len(wanted.encode()) <= _LONGEST_NAME:
        return wanted
    ending = f"_{blake2b(wanted.encode(), digest_size=5).hexdigest()}"
    return wanted.encode()[: _LONGEST_NAME - len(ending)].decode(errors="ignore") + ending


def _no_index(plan: Plan, refused: str) -> str:
    definition = plan.definition
    if plan.due_since is None:
        return (
            f"no index can lead to the rows that fit where={definition.where!r} in their order (PostgreSQL says {refused!r}): each "
            "look may read all rows before it finds one; compare columns with constants, or keep the time in a column and name it "
            "with due="
        )
    return (
        f"no index can be made on {_on(plan)} (PostgreSQL says {refused!r}), so each look reads the whole table: "
        "keep the time in a column of its own"
    )


def said(error: BaseException) -> str:
    """What PostgreSQL said, in one line."""
    diag = getattr(error, "diag", None)
    return str(getattr(diag, "message_primary", None) or error).splitlines()[0]
