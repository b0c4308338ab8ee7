"""The command's trunk: the groups that hang on it are imported when they are used, so that `rota --help` is quick."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from rota.errors import RotaError
from rota.release import RELEASE

__all__ = ["main", "rota"]

# name → (module, attribute, help); the help stands here so that listing it imports nothing
_COMMANDS = {
    "demo": ("rota.cli.demo", "demo", "A live tour on the embedded server: several worker processes at work."),
    "dev": ("rota.cli.dev", "dev", "Server, schema and worker for an app, restarted when its code changes."),
    "worker": ("rota.cli.worker", "worker", "Run the jobs of an app in this process."),
    "serve": ("rota.cli.serve", "serve", "Serve an ASGI application, and end it without a failed request."),
    "dashboard": (
        "rota.cli.dashboard",
        "dashboard",
        "Look at everything in a browser, and change what may be changed.",
    ),
    "health": ("rota.cli.health", "health", "Ask a running process how it is: for probes that are commands."),
    "migrate": ("rota.cli.migrate", "migrate", "Create or update Rota's tables."),
    "doctor": (
        "rota.cli.doctor",
        "doctor",
        "What is wrong with this database, this app and this machine, and what mends it.",
    ),
    "vitals": ("rota.cli.vitals", "vitals", "How the database is: tables, transactions, connections."),
    "jobs": ("rota.cli.jobs", "jobs", "Look at jobs, retry, cancel, erase and enqueue them."),
    "dead": ("rota.cli.dead", "dead", "Look at dead letters, retry and acknowledge them."),
    "bulk": ("rota.cli.bulk", "bulk", "Change many jobs at once, see how far that is, stop it, undo it."),
    "queues": ("rota.cli.queues", "queues", "Look at queues, pause and resume them, limit, weigh and relax them."),
    "trends": ("rota.cli.trends", "trends", "How much was done when, how long it took, and what waited."),
    "batches": ("rota.cli.batches", "batches", "Look at batches of jobs, and cancel what is left of one."),
    "schedules": ("rota.cli.schedules", "schedules", "Look at schedules, put, pause, trigger and backfill them."),
    "pollers": (
        "rota.cli.pollers",
        "pollers",
        "Look at pollers, check their tables, poll by hand, pause them and release rows.",
    ),
    "projections": (
        "rota.cli.projections",
        "projections",
        "Look at projections, pause and resume them, move their checkpoints and replay what is parked.",
    ),
    "leaders": (
        "rota.cli.leaders",
        "leaders",
        "Look at who leads what, have a leader step down, run a program as leader.",
    ),
    "audit": ("rota.cli.audit", "audit", "Who changed what by hand."),
    "members": ("rota.cli.members", "members", "Look at the processes that hold work, and have one rest or end."),
    "postgres": ("rota.cli.postgres", "postgres", "The embedded PostgreSQL server."),
    "bench": ("rota.cli.bench", "bench", "Throughput and latency on this database."),
    "adopt": ("rota.cli.adopt", "adopt", "Accept a restored or copied database as this one."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """A RotaError becomes a message and its exit code, also under the command of another; the rest shows its trace."""
        try:
            return super().invoke(ctx)
        except RotaError as error:
            click.echo(f"rota: {error}", err=True)
            ctx.exit(error.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(RELEASE, prog_name="rota")
def rota() -> None:
    """Any number of Python processes share work safely, with nothing but PostgreSQL between them."""


def main(
    arguments: list[str] | None = None, *, program: str = "rota", defaults: Mapping[str, Any] | None = None
) -> Any:
    """Run the command.

    `defaults` are values by command and parameter for those that are not given, from whoever hands on to us.
    """
    return rota.main(args=arguments, prog_name=program, default_map=defaults)
