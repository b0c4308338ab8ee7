"""What systemd hears of a service of `Type=notify`."""

from __future__ import annotations

import socket
from pathlib import Path


class Systemd:
    """The socket that systemd listens on for the states of a service."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(20)
        self.heard: list[str] = []

    def wait_for(self, state: str, within: int = 200) -> None:
        for _ in range(within):
            self.heard += self._socket.recv(4096).decode().splitlines()
            if state in self.heard:
                return
        raise AssertionError(f"systemd never heard {state}, but {self.heard}")

    def close(self) -> None:
        self._socket.close()
