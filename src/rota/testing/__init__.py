"""The test kit: a database per test, time that is set, real worker processes, and moments that are awaited.

The pytest plugin brings the fixtures (`rota_app`, `rota_database`, `rota_worker`); what is listed here serves any test.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.testing.app import TestRota
    from rota.testing.databases import DatabaseServer
    from rota.testing.processes import WorkerProcess
    from rota.testing.proxy import TcpProxy
    from rota.testing.waiting import fact, until, until_sync

__all__ = ["DatabaseServer", "TcpProxy", "TestRota", "WorkerProcess", "fact", "until", "until_sync"]

# Loaded when first used: the plugin lives in this package, and is imported by every pytest run of every user.
_ROOMS = {
    "rota.testing.app": ("TestRota",),
    "rota.testing.databases": ("DatabaseServer",),
    "rota.testing.processes": ("WorkerProcess",),
    "rota.testing.proxy": ("TcpProxy",),
    "rota.testing.waiting": ("fact", "until", "until_sync"),
}


def __getattr__(name: str) -> Any:
    room = next((room for room, names in _ROOMS.items() if name in names), None)
    if room is None:
        raise AttributeError(f"module 'rota.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(room), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
