"""`manage.py rota ...`: the `rota` command with the project's app and database."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError, CommandParser

from rota.cli.main import main, rota
from rota.integrations.django.project import project_app

__all__ = ["Command"]

APP = "rota.integrations.django:app"


class Command(BaseCommand):
    help = "Rota's command line with this project's app and database: worker, migrate, jobs, dead, schedules and so on."

    def run_from_argv(self, argv: list[str]) -> None:
        # its options are click's to read
        self._hand_on(argv[2:], f"{os.path.basename(argv[0])} {argv[1]}")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        self._hand_on(["--help"], f"{os.path.basename(prog_name)} {subcommand}")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs="...", help="What the rota command takes.")

    def handle(self, *args: Any, **options: Any) -> None:
        """For `call_command("rota", "migrate")`."""
        try:
            self._hand_on(options["arguments"], "manage.py rota")
        except SystemExit as end:
            if end.code:
                raise CommandError(f"rota ended with {end.code}", returncode=end.code) from end

    def _hand_on(self, arguments: Sequence[str], program: str) -> None:
        self.check()
        # processes that this one starts find the project's modules as it does, whatever folder it was started in
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path[:1]), *_python_path()]))
        main(list(arguments), program=program, defaults=_defaults(arguments))


def _python_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """For each command under the first word, what stands for an app or an address that is not given."""
    words = [word for word in arguments if not word.startswith("-")]
    command = rota.get_command(click.Context(rota), words[0]) if words else None
    return {} if command is None else {words[0]: _defaults_of(command)}


def _defaults_of(command: click.Command) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _defaults_of(each) for name, each in command.commands.items()}
    names = {parameter.name for parameter in command.params}
    for_app = names & {"app", "app_path"}
    if for_app:
        return dict.fromkeys(for_app, APP)
    app = project_app()
    known = {"dsn": app.database.dsn.conninfo, "schema": app.settings.schema}
    return {name: value for name, value in known.items() if name in names}
