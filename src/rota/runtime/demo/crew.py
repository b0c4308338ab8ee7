"""The demo's workers: real processes with names, replaced when they end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from rota.errors import RotaError
from rota.runtime.demo.events import Events, worth_showing
from rota.runtime.supervisor import SupervisedWorker, describe_exit, stop_all

__all__ = ["Crew", "Hand"]

APP = "rota.runtime.demo.tasks:app"
GRACE = 3.0  # seconds; the longest body takes less than one
REPLACED_AFTER = 2.0  # seconds in which a viewer sees that someone is missing


@dataclass(eq=False)
class Hand:
    """One of the crew. `members` are the identities it has had in the database, the newest last."""

    name: str
    process: SupervisedWorker
    members: list[UUID] = field(default_factory=list)
    killed: bool = False
    asked: bool = False
    said: deque[str] = field(default_factory=lambda: deque(maxlen=15))


class Crew:
    """Keeps `size` workers running from `start` until `close`. Its tasks are run by whoever started it."""

    def __init__(self, size: int, dsn: str, schema: str, events: Events) -> None:
        self._size = size
        self._dsn = dsn
        self._schema = schema
        self._events = events
        self._closing = asyncio.Event()
        self.hands: list[Hand] = []

    @property
    def running(self) -> list[Hand]:
        """Those that have not been asked to go."""
        return [hand for hand in self.hands if hand.process.running and not hand.asked and not hand.killed]

    async def run(self) -> None:
        """Start the crew and replace those that end, until `close`. Raises RotaError when one cannot start."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._size):
                group.create_task(self._keep_a_place_filled())

    def kill(self, hand: Hand) -> None:
        hand.killed = True
        hand.process.kill()

    def ask_to_stop(self, hand: Hand) -> None:
        hand.asked = True
        hand.process.terminate()

    async def close(self) -> None:
        """Let all finish what they run and leave; those that do not are killed."""
        self._closing.set()
        await stop_all([hand.process for hand in self.hands if hand.process.running])

    def hurry(self) -> None:
        """Do not wait for anyone any more."""
        self._closing.set()
        for hand in self.hands:
            hand.process.kill()

    async def _keep_a_place_filled(self) -> None:
        while not self._closing.is_set():
            hand = await self._hire()
            await self._follow(hand)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLACED_AFTER):
                    await self._closing.wait()

    async def _hire(self) -> Hand:
        process = await SupervisedWorker.start(APP, dsn=self._dsn, schema=self._schema, grace=GRACE, capture=True)
        hand = Hand(f"worker-{len(self.hands) + 1}", process)
        if len(self.hands) >= self._size:
            self._events.tell(f"{hand.name} (pid {process.pid}) takes the free place")
        self.hands.append(hand)
        if self._closing.is_set():  # the crew was closed while this one was being born
            process.terminate()
        return hand

    async def _follow(self, hand: Hand) -> None:
        async for line in hand.process.lines():
            hand.said.append(line)
            if text := worth_showing(line):
                self._events.tell(self._with_names(text), hand.name)
        code = await hand.process.wait()
        if hand.killed or hand.asked or self._closing.is_set():
            return
        if not hand.members:
            raise RotaError(
                f"A worker of the demo could not start ({describe_exit(code)}). It said:\n" + "\n".join(hand.said)
            )
        self._events.tell(f"{hand.name} ended by itself ({describe_exit(code)})")

    def _with_names(self, text: str) -> str:
        """Members as the viewer knows them: their names in the database are made of host and pid."""
        for hand in self.hands:
            for known in (f"{socket.gethostname()}:{hand.process.pid}", *map(str, hand.members)):
                text = re.sub(rf"\b{re.escape(known)}\b", hand.name, text)
        return text
