"""A PostgreSQL that Rota starts itself: found, initialised, shared between processes, stopped by the last one.

`server` is the front, `operate` looks and commands, `keeper` is the process that owns the server.
"""

from rota.embedded.binaries import Binaries, find_binaries, read_binaries
from rota.embedded.operate import Status, pin, status, stop
from rota.embedded.server import EmbeddedServer, shared_server

__all__ = [
    "Binaries",
    "EmbeddedServer",
    "Status",
    "find_binaries",
    "pin",
    "read_binaries",
    "shared_server",
    "status",
    "stop",
]
