"""The app config: checks, tables that come with `manage.py migrate`, and the modules that declare tasks."""

from __future__ import annotations

import sys
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from rota.errors import ConfigurationError
from rota.integrations.django.checks import check_database, check_schema, check_settings
from rota.integrations.django.project import project_app, rota_settings

__all__ = ["RotaConfig"]


class RotaConfig(AppConfig):
    name = "rota.integrations.django"
    label = "rota"
    verbose_name = "Rota"

    def ready(self) -> None:
        checks.register(check_settings)
        checks.register(check_database)
        checks.register(check_schema, checks.Tags.database)
        post_migrate.connect(make_tables, sender=self)
        try:
            project_app()
        except (ConfigurationError, ImportError):
            return  # told by a check, with all else that is wrong
        autodiscover_modules(*rota_settings()["DISCOVER"])


def make_tables(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Create or update Rota's tables after those of Django, in test databases too."""
    app = project_app()
    if using != app.alias or not rota_settings()["MIGRATE"]:
        return
    for migration in app.migrate_sync():
        if verbosity >= 1:
            (stdout or sys.stdout).write(f"  Applied rota.{migration.number:04}_{migration.name}\n")
