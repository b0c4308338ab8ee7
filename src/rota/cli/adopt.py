"""`rota adopt`: say that a copied or restored database is the one to work on."""

from __future__ import annotations

import click

from rota.app import Rota
from rota.cli.output import say
from rota.cli.target import database_options
from rota.errors import ForeignDatabase
from rota.postgres.identity import check_identity, compare_identity

__all__ = ["adopt"]


@click.command()
@click.option("--environment", help="Label this database, such as production or staging. [env: ROTA_ENVIRONMENT]")
@click.option("--dry-run", is_flag=True, help="Change nothing; say whether it must be adopted.")
@database_options
def adopt(environment: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Accept a restored or copied database as this one. Its jobs will run here."""
    with Rota(dsn, schema=schema, environment=environment) as app:
        try:
            check_identity(app.database.run_sync(compare_identity()), app.settings.environment)
            say("this database is adopted already")
        except ForeignDatabase as error:
            say(str(error))
        if not dry_run:
            app.adopt_sync()
            say("adopted")
