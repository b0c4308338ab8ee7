"""A real PgBouncer in transaction mode in front of a test's database."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rota.testing import until_sync

CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
"""


def find_pgbouncer() -> str:
    found = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("PgBouncer is missing, and CI must have it: .ci/run installs it")
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    return found


@contextlib.contextmanager
def transaction_pooler(dsn: str, folder: Path, *, size: int = 2) -> Iterator[str]:
    """The address of the same database through a pooler with so many server connections."""
    server = conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = probe.getsockname()[1]
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(host=server["host"], port=server["port"], listen=listen, folder=folder, size=size))
    (folder / "users").write_text(f'"{server["user"]}" ""\n')
    # it refuses to run as root, and an ordinary user could not reach a socket of root's
    ordinary = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    process = subprocess.Popen(
        [*ordinary, find_pgbouncer(), "-q", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        pooled = make_conninfo(dbname=server["dbname"], user=server["user"], host="127.0.0.1", port=listen)
        until_sync(lambda: _answers(pooled), what="PgBouncer answers")
        yield pooled
    finally:
        process.terminate()
        process.wait()


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
