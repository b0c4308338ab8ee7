"""This machine and this Python. Asks no database."""

from __future__ import annotations

import asyncio
import platform
import sys

import psycopg

from rota import embedded
from rota.errors import EmbeddedError
from rota.release import RELEASE
from rota.runtime.doctor.finding import Finding, note, ok, problem, warning
from rota.runtime.doctor.patient import Patient

__all__ = ["driver", "embedded_server", "event_loop", "open_files", "python"]

_ENOUGH_FILES = 1024  # a worker with all its connections takes some fifty; a web server one for each client


def python(patient: Patient) -> Finding:
    """Which releases are these?"""
    return ok(f"Rota {RELEASE}, Python {platform.python_version()} on {platform.system()} {platform.machine()}")


def driver(patient: Patient) -> Finding:
    """Is the driver the fast one?"""
    libpq = psycopg.pq.version()
    named = f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__}), libpq {libpq // 10000}.{libpq % 10000}"
    if psycopg.pq.__impl__ != "python":
        return ok(named)
    return warning(
        named,
        "Without its C part the driver takes several times as long for each statement, and that time is most of a worker's.",
        'pip install "psycopg[binary]"',
    )


def event_loop(patient: Patient) -> Finding:
    """Can the driver work on the event loop that asyncio makes here?"""
    loop = asyncio.new_event_loop()
    loop.close()
    kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
    if "Proactor" not in kind:
        return ok(kind)
    return problem(
        kind,
        "psycopg cannot wait for its socket on this loop, so no worker can run.",
        "asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())",
    )


def open_files(patient: Patient) -> Finding:
    """May a process open enough files and sockets?"""
    if sys.platform == "win32":
        return ok("this system sets no limit")
    import resource  # there is none elsewhere

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH_FILES:
        return ok("no limit" if soft == resource.RLIM_INFINITY else f"up to {soft}")
    return warning(
        f"at most {soft} at once",
        "Every connection, every child process and every client of a web server takes some; beyond the limit all of them fail.",
        f"ulimit -n {_ENOUGH_FILES}   # systemd: LimitNOFILE={_ENOUGH_FILES}"
        + (
            ""
            if hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES
            else f"; as root, since the hard limit is {hard}"
        ),
    )


def embedded_server(patient: Patient) -> Finding:
    """Is it the server for development?"""
    if not patient.is_embedded:
        return ok("not in use: a database is named")
    found = embedded.status()
    why = (
        "It lives in a folder of this machine: right for development and for a single machine, and nobody backs it up."
    )
    name_another = "ROTA_DATABASE_URL=postgresql://user:password@host/database   # for production"
    if found.running:
        return note(f"in use: PostgreSQL {found.version}, with its data in {found.home}", why, name_another)
    try:
        binaries = embedded.find_binaries()
    except EmbeddedError as error:
        return problem(f"no database is named, and the embedded server cannot be had: {error}", why, name_another)
    return note(
        f"no database is named, so the embedded server serves; it does not run now (PostgreSQL {binaries.major} is there for it)",
        f"{why} Whatever uses it starts it.",
        f"{patient.program} postgres start",
        name_another,
    )
