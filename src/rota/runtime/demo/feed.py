"""Giving the demo's workers something to do: a gentle stream of single jobs, now and then many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from rota.app import Rota
from rota.errors import DatabaseUnavailable
from rota.jobs.job import NewJob

__all__ = ["BURST", "Feeder"]

TICK = 0.1  # seconds; three jobs each make thirty a second
PER_TICK = 3
BURST = 120  # jobs; what three workers have done within a few seconds
BURST_EVERY = 100  # ticks


class Feeder:
    """Enqueues from `run` until `stop`, and counts what it was told is stored."""

    def __init__(self, app: Rota) -> None:
        self._app = app
        self._jobs = _jobs(app)
        self._stopping = asyncio.Event()
        self._bursts = 0
        self.enqueued = 0
        self.unanswered = 0

    async def run(self) -> None:
        """Feed until stopped. An enqueue that has begun is always brought to its answer, or it could not be counted."""
        tick = 0
        while not self._stopping.is_set():
            tick += 1
            if self._bursts or tick % BURST_EVERY == 0:
                self._bursts = max(0, self._bursts - 1)
                await self._count([next(self._jobs) for _ in range(BURST)])
            for _ in range(PER_TICK):
                await self._count([next(self._jobs)])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._stopping.wait()

    def burst(self) -> None:
        """Add many at once, at the next tick."""
        self._bursts += 1

    def stop(self) -> None:
        self._stopping.set()

    async def _count(self, new: list[NewJob]) -> None:
        try:
            stored = [await self._app.enqueue(new[0])] if len(new) == 1 else await self._app.enqueue_many(new)
            self.enqueued += len(stored)
        except DatabaseUnavailable:
            self.unanswered += len(new)
            await asyncio.sleep(TICK)


def _jobs(app: Rota) -> Iterator[NewJob]:
    """The same story every time: mostly mail, some images, an order that fails once, rarely a row that fails always."""
    mail, image, card, row = (
        app.tasks.find(name) for name in ("send_welcome", "resize_image", "charge_card", "import_row")
    )
    number = 0
    while True:
        number += 1
        if number % 300 == 20:
            yield row.bind(number)
        elif number % 5 == 0:
            yield card.bind(number // 5)
        elif number % 4 == 0:
            yield image.bind(f"photo-{number}.jpg")
        else:
            yield mail.bind(number)
