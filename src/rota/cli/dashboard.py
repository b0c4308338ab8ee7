"""`rota dashboard`: the web page alone."""

from __future__ import annotations

import importlib.util
import os
import socket

import click

from rota.cli.logs import log_options
from rota.cli.output import say
from rota.cli.serve import bound, run_attached
from rota.cli.target import database_options, open_app
from rota.errors import ConfigurationError
from rota.integrations.asgi.attach import Attached
from rota.runtime.budgets import read_budgets
from rota.runtime.process import leaving_by_signals

__all__ = ["dashboard", "free_port", "is_installed"]

PORT = 8200


def is_installed() -> bool:
    """Whether what it needs is here."""
    return all(importlib.util.find_spec(name) for name in ("starlette", "jinja2", "uvicorn"))


def free_port() -> int:
    """Ours, if nobody has it; else 0, for any that is free."""
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT


def _who_may_look(host: str, closed: bool, read_only: bool) -> str:
    may = "look" if read_only else "look and change things"
    if closed:
        return f"open to who knows a credential of it: they may {may}. Serve it over HTTPS where others can listen"
    return f"open to everybody on this machine: they may {may}. Nobody else is let in; --host and --auth would"


@click.command()
@click.argument("app", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--auth",
    multiple=True,
    metavar="CREDENTIAL",
    help="Who may come in: user:password, or a token. May be given several times. [env: ROTA_DASHBOARD_AUTH, which "
    "others on this machine cannot read as they can a command]",
)
@click.option("--read-only", is_flag=True, help="Nobody changes anything here.")
@click.option("--redact", multiple=True, metavar="NAME", help="An argument that nobody is to see; '*' for all of them.")
@click.option("--beside", is_flag=True, hidden=True, help="Whoever started it says how to end it.")
@click.option("--mark", hidden=True, help="By which whoever started it would find its membership, if it had one.")
@log_options
@database_options
def dashboard(
    app: str | None,
    host: str,
    port: int,
    auth: tuple[str, ...],
    read_only: bool,
    redact: tuple[str, ...],
    beside: bool,
    mark: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Serve the dashboard, and the JSON API under /api/v1.

    With APP, payloads are shown as that app reads them, without what its tasks redact. On this machine's own address it is open;
    on any other it refuses to start without --auth.
    """
    try:
        from rota.dashboard.doors import is_loopback
    except ImportError as error:
        raise ConfigurationError("`rota dashboard` needs its extra: pip install 'rota[dashboard]'.") from error
    given = auth or tuple(filter(None, [os.environ.get("ROTA_DASHBOARD_AUTH")]))
    if not given and not is_loopback(host):
        raise ConfigurationError(
            f"Nobody is asked who they are, and {host} can be reached from other machines: whoever finds it could read and change "
            "every job. Give --auth user:password, or ROTA_DASHBOARD_AUTH; or leave --host out."
        )
    with leaving_by_signals():
        shown = open_app(dsn, schema, app)
        page = shown.dashboard(auth=given or None, read_only=read_only, redact=redact)
        # nobody balances load here: who asks it to end waits for that
        attached = Attached(page, shown, worker=None, budgets=read_budgets(0, None))
        attached.leaves = True
        listening = bound(host, port)
        say(f"dashboard on http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/")
        if not beside:
            say(_who_may_look(host, bool(given), read_only))
            say("Ctrl-C ends it")
        run_attached(attached, listening)
