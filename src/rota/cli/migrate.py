"""`rota migrate`: Rota's tables, from nothing or from an older release."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from rota.app import Rota
from rota.cli.output import say
from rota.cli.target import database_options, open_app
from rota.errors import SchemaMissing
from rota.postgres.roles import roles_sql
from rota.postgres.schema import (
    Migration,
    applied_migrations,
    make_migrations_table,
    make_schema,
    migration_files,
    pending,
    render,
)

__all__ = ["migrate"]


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 5 if something is to be applied.")
@click.option("--sql", is_flag=True, help="Change nothing; print the SQL of all migrations, for those with a DBA.")
@click.option("--to", type=click.IntRange(min=0), help="Apply up to this number only.")
@click.option("--roles", is_flag=True, help="Also create the roles <schema>_enqueue, _worker and _read.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be applied.")
@database_options
def migrate(
    check: bool, sql: bool, to: int | None, roles: bool, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Create or update Rota's tables. Safe to run any number of times, from any number of places, under load."""
    with open_app(dsn, schema) as app:
        if sql:
            _print_sql(app.settings.schema, to, roles)
            return
        if check or dry_run:
            _report(_pending(app, to), sys.exit if check else None)
            return
        applied = app.migrate_sync(to=to, roles=roles, waiting=_say_once())
        for migration in applied:
            say(f"applied {migration.number:04} {migration.name}")
        if not applied:
            say("nothing to apply")
        if roles:
            say(
                f"roles {app.settings.schema}_enqueue, {app.settings.schema}_worker and {app.settings.schema}_read are ready"
            )


def _say_once() -> Callable[[str], None]:
    said: set[str] = set()

    def waiting(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return waiting


def _print_sql(schema: str, to: int | None, roles: bool) -> None:
    click.echo(f"begin;\n\n{make_schema(schema)}{make_migrations_table(schema)}")
    for migration in migration_files():
        if to is None or migration.number <= to:
            click.echo(render(migration, schema))
    click.echo("commit;")
    if roles:
        click.echo(f"\n{roles_sql(schema)}")


def _pending(app: Rota, to: int | None) -> list[Migration]:
    try:
        applied = app.database.run_sync(applied_migrations())
    except SchemaMissing:
        applied = []
    return [migration for migration in pending(applied, migration_files()) if to is None or migration.number <= to]


def _report(missing: list[Migration], leave: object) -> None:
    for migration in missing:
        say(f"to apply: {migration.number:04} {migration.name}")
    if not missing:
        say("nothing to apply")
    elif leave is not None:
        raise SystemExit(SchemaMissing.exit_code)
