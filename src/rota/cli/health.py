"""`rota health`: asks a process that runs how it is, for probes that are commands."""

from __future__ import annotations

import json
import socket
import sys
from typing import NoReturn
from urllib.parse import urlsplit

import click

from rota.errors import ConfigurationError

__all__ = ["health"]

_UNHEALTHY = 6


@click.command()
@click.option("--live", "what", flag_value="live", help="Whether it makes progress; never a question of the database.")
@click.option("--ready", "what", flag_value="ready", help="Whether to give it work. [default]")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    envvar="ROTA_HEALTH_PORT",
    show_envvar=True,
    help="Its --health-port, on this machine.",
)
@click.option(
    "--url", envvar="ROTA_HEALTH_URL", show_envvar=True, help="Where it serves health, such as http://10.0.0.7:8081."
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.01), default=3.0, show_default=True, help="Seconds to wait for its answer."
)
def health(what: str | None, port: int | None, url: str | None, timeout: float) -> None:
    """Ask a running process how it is. Exit code 0 when it is well, 6 when it is not or does not answer.

    The process serves health on the port that it was given: `rota worker APP --health-port 8081`.
    """
    base = _base(url, port)
    path = f"/health/{what or 'ready'}"
    try:
        status, body = _get(base, path, timeout)
    except OSError as error:
        _unhealthy(f"nobody answers at {base}{path}: {error}")
    if status == 200:
        click.echo(what or "ready")
        return
    try:
        reason = json.loads(body).get("reason")
    except (ValueError, AttributeError):
        reason = None
    _unhealthy(f"not {what or 'ready'}: {reason or f'{base}{path} answers {status}'}")


def _base(url: str | None, port: int | None) -> str:
    # a port that was typed beats a variable of the machine's
    source = click.get_current_context().get_parameter_source("port")
    if port is not None and (url is None or source is click.core.ParameterSource.COMMANDLINE):
        return f"http://127.0.0.1:{port}"
    if url is None:
        raise ConfigurationError(
            "It is not known where to ask: give --port or --url, or set ROTA_HEALTH_PORT, which `rota worker` reads as well."
        )
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigurationError(
            f"--url cannot be {url!r}: it is the address of a health port, such as http://127.0.0.1:8081."
        )
    return f"http://{parts.netloc}"


def _get(base: str, path: str, timeout: float) -> tuple[int, bytes]:
    """By hand: an HTTP library takes longer to import than all else here together."""
    parts = urlsplit(base)
    with socket.create_connection((parts.hostname, parts.port or 80), timeout) as line:
        line.sendall(f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
        said = b""
        while more := line.recv(65536):
            said += more
    head, _, body = said.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("what answers there does not speak HTTP")
    return int(words[1]), body


def _unhealthy(sentence: str) -> NoReturn:
    click.echo(f"rota: {sentence}", err=True)
    sys.exit(_UNHEALTHY)
