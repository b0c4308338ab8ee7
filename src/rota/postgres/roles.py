"""The three roles with least privilege: who enqueues, who works, who looks.

Group roles without login, named after the schema (`rota_enqueue`, `rota_worker`, `rota_read`); grant them to the roles
your programs log in as. Idempotent; run again after each migration.
"""

from __future__ import annotations

import re
from typing import Literal

import psycopg

from rota.postgres.connection import Connector, translated
from rota.postgres.query import identifier

__all__ = ["grant_roles", "roles_sql", "table_rights"]

_CREATE = """
do $rota_roles$
begin
    if not exists (select from pg_roles where rolname = {literal}) then
        create role {role} nologin;
    end if;
end
$rota_roles$;
grant usage on schema {schema} to {role};
"""

# may add a job and learn its id, or an event and learn its place; cannot read anyone's arguments or data
_ENQUEUE = """
grant insert on {schema}.jobs to {role};
grant select (id, queue, task, state, priority, created_at, due_at) on {schema}.jobs to {role};
grant execute on function
    {schema}.now(),
    {schema}.notify(text, text),
    {schema}.put_jobs(jsonb, jsonb),
    {schema}.start_batches(jsonb),
    {schema}.close_batches(integer, integer, integer),
    {schema}.emit(text, jsonb, jsonb),
    {schema}.append_event(text, text, text, smallint, jsonb, jsonb, bigint, boolean),
    {schema}.append_events(text, jsonb, jsonb, boolean),
    {schema}.enqueue(text, jsonb, text, integer, timestamptz, text[], text, text, integer)
to {role};
grant usage on sequence {schema}.jobs_id_seq to {role};
"""

_WORKER = """
grant select, insert, update, delete on {schema}.jobs, {schema}.members to {role};
grant select, insert, update, delete on {schema}.history, {schema}.attempts, {schema}.dead, {schema}.uniques to {role};
grant select, insert, update, delete on {schema}.leases, {schema}.terms, {schema}.standbys, {schema}.wishes to {role};
grant select, insert, update, delete on {schema}.schedules, {schema}.schedule_parents, {schema}.schedule_feed to {role};
grant select, insert, update, delete on {schema}.slots, {schema}.schedule_ends to {role};
grant select, insert, update, delete on {schema}.pollers, {schema}.poll_claims, {schema}.poll_intervals to {role};
grant select, insert, update, delete on {schema}.projections, {schema}.parked_events to {role};
grant select, insert, update, delete on {schema}.lines, {schema}.limits to {role};
grant select, insert, update, delete on {schema}.tallies, {schema}.depths, {schema}.tallied to {role};
grant select, insert, update, delete on {schema}.bulks, {schema}.bulk_jobs to {role};
grant select, insert, delete on {schema}.logs to {role};
grant select, insert, update on {schema}.queues to {role};
grant select on {schema}.batches, {schema}.closings to {role};
grant select on {schema}.streams, {schema}.events to {role};
grant usage on sequence {schema}.jobs_id_seq, {schema}.log_ids to {role};
grant select, insert, update on {schema}.retention to {role};
grant select, insert on {schema}.audit to {role};
grant select on {schema}.meta, {schema}.migrations to {role};
grant execute on all functions in schema {schema} to {role};
"""

_READ = """
grant select on all tables in schema {schema} to {role};
grant execute on function {schema}.now() to {role};
"""


def roles_sql(schema: str) -> str:
    """The statements that create the roles of this schema and give them what they need."""
    parts = (("enqueue", _ENQUEUE), ("worker", _WORKER), ("read", _READ))
    return "".join(_named(_CREATE + grants, schema, f"{schema}_{name}") for name, grants in parts).lstrip()


_ON_TABLES = re.compile(r"^grant ([a-z, ]+) on ((?:\{schema\}\.\w+(?:, )?)+) to \{role\};$", re.M)


def table_rights(part: Literal["enqueue", "worker"]) -> list[tuple[str, str]]:
    """What one of the roles is granted on whole tables: the name of each table, and the right."""
    return [
        (table.removeprefix("{schema}."), right)
        for rights, tables in _ON_TABLES.findall(_ENQUEUE if part == "enqueue" else _WORKER)
        for table in tables.split(", ")
        for right in rights.split(", ")
    ]


def _named(sql: str, schema: str, role: str) -> str:
    literal = "'" + role.replace("'", "''") + "'"
    names = {"{role}": identifier(role), "{literal}": literal, "{schema}": identifier(schema)}
    # in one go: a schema may be called anything, even {role}
    return re.sub(r"\{(?:role|literal|schema)\}", lambda found: names[found[0]], sql)


def grant_roles(connector: Connector, schema: str) -> None:
    """Create the roles and grant them what they need; needs the right to create roles."""
    with connector.connect_sync() as connection:
        try:
            with connection.transaction():
                connection.execute(roles_sql(schema), prepare=False)
        except psycopg.Error as error:
            raise translated(error, connector.dsn) from error
