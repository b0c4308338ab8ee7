"""What a poller would have of its table, as SQL for whoever may change it: an index, and a trigger that wakes idle workers."""

from __future__ import annotations

from dataclasses import dataclass

from rota.pollers.check import check_poller
from rota.pollers.definition import PollerDefinition
from rota.pollers.index import name_within
from rota.pollers.shape import Shape, find_shape
from rota.postgres.pool import Database
from rota.postgres.query import Query, identifier, one, statement

__all__ = ["ddl_of"]


async def ddl_of(looking: Database, definition: PollerDefinition, *, notify: bool) -> str:
    """The index if it is missing, and with `notify` the trigger if it is; what is there already is told in a comment."""
    check = await check_poller(looking, definition)
    shape = await looking.run_steps(find_shape(definition.table, poller=definition.name))
    lines = []
    if check.missing is not None:
        lines += [
            _comment(f"leads to the due rows of poller {definition.name}")
            + ("" if check.partitioned else "; not inside a transaction"),
            f"{check.missing.statement};",
            f"analyze {shape.sql};",
            _comment(f"to undo it: drop index {identifier(shape.schema)}.{identifier(check.missing.name)};"),
        ]
    elif check.index is not None:
        lines.append(_comment(f"the index {check.index} leads to the due rows of poller {definition.name}"))
    lines += [_comment(warning) for warning in check.warnings]
    if notify:
        trigger = await looking.run(_find_trigger(shape, definition.name, looking.schema))
        lines += ["", *_trigger(shape, definition, trigger, looking.schema)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Triggers:
    """That which wakes this poller, if it is there, and the names that are taken."""

    waking: str | None
    names: list[str]


FIND_TRIGGER = statement(
    "find_poller_trigger",
    """
    select
        min(trigger.tgname::text) filter (
            where waking.nspname = %(rota)s::name
              and function.proname = 'wake_poller'
              and trigger.tgargs = convert_to(%(poller)s, pg_catalog.getdatabaseencoding()) || '\\x00'::bytea
        ),
        coalesce(jsonb_agg(trigger.tgname), '[]')
    from pg_catalog.pg_trigger as trigger
    join pg_catalog.pg_class as class on class.oid = trigger.tgrelid
    join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
    join pg_catalog.pg_proc as function on function.oid = trigger.tgfoid
    join pg_catalog.pg_namespace as waking on waking.oid = function.pronamespace
    where namespace.nspname = %(schema)s::name
      and class.relname = %(table)s::name
      and not trigger.tgisinternal
    """,
)


def _find_trigger(shape: Shape, poller: str, rota: str) -> Query[_Triggers]:
    params = {"schema": shape.schema, "table": shape.table, "poller": poller, "rota": rota}
    return FIND_TRIGGER.query(params, read=one(_Triggers))


def _trigger(shape: Shape, definition: PollerDefinition, there: _Triggers, rota: str) -> list[str]:
    if there.waking is not None:
        return [_comment(f"the trigger {there.waking} wakes poller {definition.name}"), _undo(there.waking, shape)]
    wanted = f"rota_wake_{definition.name}"
    names = (name_within(wanted if at == 1 else f"{wanted}_{at}") for at in range(1, len(there.names) + 2))
    name = next(name for name in names if name not in there.names)
    stamped = _stamped(definition)
    # a stamp of ours is no reason to look again
    columns = [column.sql for column in shape.columns.values() if column.name not in stamped and not column.generated]
    update = f" or update of {', '.join(columns)}" if columns else ""
    told = ", ".join(sorted(stamped & set(shape.columns)))
    return [
        _comment(
            f"wakes idle workers of poller {definition.name}"
            + (f", but not for changes of {told} alone" if told else "")
        ),
        _comment(
            f"whoever makes it needs: grant execute on function {identifier(rota)}.wake_poller() to the owner of the table"
        ),
        f"create trigger {identifier(name)} after insert{update} on {shape.sql}",
        f"    for each statement execute function {identifier(rota)}.wake_poller({_literal(definition.name)});",
        _undo(name, shape),
    ]


def _stamped(definition: PollerDefinition) -> set[str]:
    adapted = definition.interval if definition.adaptive is not None and isinstance(definition.interval, str) else None
    return {name for name in (definition.last, definition.due, adapted) if name is not None}


def _undo(trigger: str, shape: Shape) -> str:
    return _comment(f"to undo it: drop trigger {identifier(trigger)} on {shape.sql};")


def _comment(text: str) -> str:
    """Names may hold line breaks, and what follows one must not become a statement."""
    return "\n".join(f"-- {line}" for line in text.splitlines())


def _literal(text: str) -> str:
    quoted = text.replace("'", "''")
    # whatever standard_conforming_strings says
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in quoted else f"'{quoted}'"
