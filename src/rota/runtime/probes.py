"""How a process of ours shows its health: on a port, if it was given one, and to systemd, if that started it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator

from rota.app import Rota
from rota.runtime.health import Health, health_of
from rota.runtime.systemd import systemd_notified

__all__ = ["probed"]

logger = logging.getLogger("rota")


@contextlib.contextmanager
def probed(
    app: Rota,
    *,
    worker: bool,
    port: int | None = None,
    host: str = "",
    metrics: Callable[[], tuple[str, bytes]] | None = None,
) -> Generator[Health]:
    """Show the health of this process for the length of a block; with `worker` it is not ready before it works."""
    health = health_of(app)
    health.expect_worker = worker
    with contextlib.ExitStack() as stack:
        stack.callback(health.close)
        if port is not None:
            # only here: an HTTP server takes long to import, and most processes have none
            from rota.runtime.health_server import health_server

            server = stack.enter_context(health_server(health, port, host=host, metrics=metrics))
            logger.info("health on port %d: /health/live, /health/ready, /health", server.server_port)
        stack.enter_context(systemd_notified(health))
        yield health
