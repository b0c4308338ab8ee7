"""uvicorn's server, with an end for those that it has let in and not heard yet."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from rota.service.ending import ENDING

__all__ = ["DrainingServer"]

# For a connection to say what it wants; those that say nothing are closed after that.
_LOOKS, _LOOK_SECONDS = 25, 0.02


class DrainingServer(uvicorn.Server):
    """Closes the listener first, and connections only when those that came last have asked.

    uvicorn closes both at the same moment, and a connection that was let in just before is closed under its first request. While
    other processes serve on the same port, clients have no reason to stay away from this one.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_SECONDS)  # also for the loop to make connections of those that were let in
            if ENDING.hurried or not self._awaits_a_request():
                break
        await super().shutdown(sockets)

    def _awaits_a_request(self) -> bool:
        # of HTTP: a WebSocket has no cycle
        return any(getattr(each, "cycle", each) is None for each in self.server_state.connections)
