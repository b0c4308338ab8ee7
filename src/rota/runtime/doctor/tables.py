"""Rota's own tables: whether they are there, whose they are, and what the role that is logged in may do with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rota.errors import ForeignDatabase, SchemaMismatch, SchemaMissing
from rota.postgres.identity import check_identity, compare_identity
from rota.postgres.query import Query, identifier, one, statement
from rota.postgres.roles import table_rights
from rota.postgres.schema import applied_migrations, check_schema, migration_files, render
from rota.runtime.doctor.finding import Finding, note, ok, problem
from rota.runtime.doctor.patient import Patient

__all__ = ["grants", "identity", "indexes", "schema"]


def schema(patient: Patient) -> Finding:
    """Are the tables those this release works with?"""
    known = migration_files()
    try:
        applied = patient.ask(applied_migrations())
        check_schema(applied, known, patient.schema)
    except SchemaMissing as error:
        return problem(str(error), "Nothing of Rota runs here until then.", patient.command("migrate"))
    except SchemaMismatch as error:
        return problem(
            str(error), "This release does not work on it.", "install the release of Rota that made this schema"
        )
    newer = [done for done in applied if done.number > known[-1].number]
    if newer:
        return note(
            f"migration {newer[-1].number:04} {newer[-1].name} of a newer release is applied, which this one can live with",
            "So it is in the middle of a deployment.",
            "finish the roll-out of the newer release",
        )
    return ok(f"{patient.schema}, at migration {known[-1].number:04} {known[-1].name}")


def identity(patient: Patient) -> Finding:
    """Is this the database it was, or a copy?"""
    found = patient.ask(compare_identity())
    try:
        check_identity(found, patient.app.settings.environment)
    except ForeignDatabase as error:
        return problem(str(error), "Workers refuse it until someone says that it is meant.", patient.command("adopt"))
    environment = found.recorded_environment if found else None
    return ok("adopted" + (f", as {environment}" if environment else ""))


class _Rights(NamedTuple):
    role: str
    enters: bool
    lacks: Mapping[str, Sequence[str]]
    functions: bool
    puts: bool
    groups: Sequence[str]


FIND_RIGHTS = statement(
    "find_rights",
    """
    with needed as (
        select needed.part, needed.relation, needed.privilege, class.oid
        from unnest(%(parts)s::text[], %(relations)s::text[], %(privileges)s::text[]) as needed(part, relation, privilege)
        left join pg_namespace as namespace on namespace.nspname = %(schema)s
        left join pg_class as class on class.relnamespace = namespace.oid and class.relname = needed.relation
    )
    select
        current_user,
        coalesce((select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = %(schema)s), false),
        (
            select coalesce(jsonb_object_agg(lack.part, lack.rights), '{}')
            from (
                select part, jsonb_agg(privilege || ' on ' || relation order by relation, privilege) as rights
                from needed
                where not coalesce(has_table_privilege(oid, privilege), false)
                group by part
            ) as lack
        ),
        (
            select coalesce(bool_and(has_function_privilege(function.oid, 'execute')), false)
            from pg_proc as function
            join pg_namespace as namespace on namespace.oid = function.pronamespace
            where namespace.nspname = %(schema)s
        ),
        (
            select coalesce(bool_or(has_function_privilege(function.oid, 'execute')), false)
            from pg_proc as function
            join pg_namespace as namespace on namespace.oid = function.pronamespace
            where namespace.nspname = %(schema)s
              and function.proname = 'put_jobs'
        ),
        array(
            select part
            from unnest(array['worker', 'enqueue', 'read']) as part
            join pg_roles as role on role.rolname = %(schema)s || '_' || part
            where pg_has_role(role.oid, 'usage')
        )
    """,
)


def _find_rights(schema: str) -> Query[_Rights]:
    needed = [(part, *right) for part in ("worker", "enqueue") for right in table_rights(part)]
    return FIND_RIGHTS.query(
        {
            "schema": schema,
            "parts": [part for part, _, _ in needed],
            "relations": [relation for _, relation, _ in needed],
            "privileges": [privilege for _, _, privilege in needed],
        },
        read=one(_Rights),
    )


def grants(patient: Patient) -> Finding:
    """May the role that is logged in work, or enqueue, or only look?"""
    rights = patient.ask(_find_rights(patient.schema))
    make = patient.command("migrate", "--roles")
    lacks_to_work = [] if rights.enters else ["usage on the schema"]
    lacks_to_work += rights.lacks.get("worker", ())
    lacks_to_work += [] if rights.functions else ["execute on its functions"]
    if not lacks_to_work:
        return ok(f"role {rights.role} may work")

    def grant(part: str) -> str:
        return f"grant {identifier(f'{patient.schema}_{part}')} to {identifier(rights.role)};"

    lacking = f"it lacks {_some(lacks_to_work)}"
    if "worker" in rights.groups:
        return problem(
            f"role {rights.role} is a member of {patient.schema}_worker and still may not work: {lacking}",
            "The roles were not renewed after the last migration.",
            make,
        )
    if rights.enters and rights.puts and "enqueue" not in rights.lacks:
        return note(
            f"role {rights.role} may enqueue and not work: {lacking}",
            "Right for a process that only enqueues. A worker needs more:",
            make,
            grant("worker"),
        )
    if "read" in rights.groups:
        return note(
            f"role {rights.role} may look and change nothing",
            "Right for reports. To enqueue, or to work, it needs more:",
            make,
            grant("enqueue"),
            grant("worker"),
        )
    return problem(
        f"role {rights.role} may neither work nor enqueue: {lacking}",
        "PostgreSQL refuses what Rota does for it.",
        make,
        f"{grant('worker')}   -- or {patient.schema}_enqueue for those who only enqueue",
    )


def _some(things: Sequence[str]) -> str:
    return ", ".join(things[:4]) + (f" and {len(things) - 4} more" if len(things) > 4 else "")


class _Indexes(NamedTuple):
    there: Sequence[str]
    invalid: Sequence[str]


FIND_INDEXES = statement(
    "find_indexes",
    """
    select
        coalesce(array_agg(class.relname::text), '{}'),
        coalesce(array_agg(class.relname::text order by class.relname) filter (where not index.indisvalid), '{}')
    from pg_index as index
    join pg_class as class on class.oid = index.indexrelid
    join pg_namespace as namespace on namespace.oid = class.relnamespace
    where namespace.nspname = %(schema)s
    """,
)

_MAKES_INDEX = re.compile(r"^create (?:unique )?index (\w+) on [^;]+;", re.M)


def indexes(patient: Patient) -> Finding:
    """Are all indexes of our tables there, and whole?"""
    found = patient.ask(FIND_INDEXES.query({"schema": patient.schema}, read=one(_Indexes)))
    wanted = {
        made[1]: " ".join(made[0].split())
        for migration in migration_files()
        for made in _MAKES_INDEX.finditer(render(migration, patient.schema))
    }
    missing = [name for name in wanted if name not in found.there]
    if missing or found.invalid:
        told = [f"{name} is missing" for name in missing] + [f"{name} is invalid" for name in found.invalid]
        rebuild = [
            f"reindex index concurrently {identifier(patient.schema)}.{identifier(name)};" for name in found.invalid
        ]
        return problem(
            ", ".join(told),
            "Statements that walk it read whole tables instead, the slower the more jobs there are.",
            *(wanted[name] for name in missing),
            *rebuild,
        )
    return ok(f"all {len(wanted)} are there")
