"""`rota postgres`: the embedded server by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rota import embedded
from rota.errors import EmbeddedError, PostgresNotFound

with_data: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of the server; .rota/postgres here unless ROTA_POSTGRES_DATA says otherwise.",
)


@click.group()
def postgres() -> None:
    """Start, stop and look at the PostgreSQL that Rota brings along."""


@postgres.command()
@with_data
def start(data: Path | None) -> None:
    """Start the server and leave it running until `rota postgres stop`. Prints its URL."""
    with embedded.EmbeddedServer(data):
        embedded.pin(data)
        found = embedded.status(data)
    click.echo(f"PostgreSQL {found.version} is running, with its data in {found.home}.", err=True)
    click.echo("Look inside with `rota postgres psql`; end it with `rota postgres stop`.", err=True)
    click.echo(found.url)


@postgres.command()
@with_data
@click.option("--force", is_flag=True, help="Also when others use it; their connections end.")
def stop(data: Path | None, force: bool) -> None:
    """Stop the server."""
    stopped = embedded.stop(data, force=force)
    click.echo("Stopped." if stopped else "No server was running.", err=True)


@postgres.command()
@with_data
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(data: Path | None, as_json: bool) -> None:
    """Tell what runs. The exit code is 0 when the server runs and 6 when it does not."""
    found = embedded.status(data)
    click.echo(json.dumps(asdict(found), indent=2) if as_json else in_words(found))
    if not found.running:
        raise click.exceptions.Exit(6)  # as any check that finds something down


def in_words(found: embedded.Status) -> str:
    if found.keeper is None:
        return f"stopped   data in {found.home}"
    users = ", ".join(map(str, found.users)) or "none"
    lines = [
        f"{found.state}   PostgreSQL {found.version}, pid {found.postmaster}, since {found.started_at}",
        f"url       {found.url}",
        f"data      {found.home}",
        f"programs  {found.binaries}",
        f"users     {users}{', and kept running by `rota postgres start`' if found.pinned else ''}",
    ]
    return "\n".join(lines)


@postgres.command()
@with_data
def url(data: Path | None) -> None:
    """Print the URL of the running server."""
    found = embedded.status(data)
    if not found.running:
        raise EmbeddedError(f"No server is running in {found.home}. Start one with `rota postgres start`.")
    click.echo(found.url)


@postgres.command(context_settings={"ignore_unknown_options": True})
@with_data
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(data: Path | None, arguments: tuple[str, ...]) -> None:
    """Open psql on the server, which is started for the while if it is not running. ARGUMENTS are psql's own."""
    server = embedded.EmbeddedServer(data)
    address = server.start()
    running = embedded.status(data)
    program = embedded.Binaries(Path(running.binaries or ""), running.version or "", "").psql
    if not program.exists():
        server.close()
        raise PostgresNotFound(f"There is no psql in {running.binaries} and none on PATH. Any client can use {address}")
    server.outlive_exec()
    os.execv(program, ["psql", address, *arguments])  # noqa: S606
