"""The demo's schedule: whether each slot that went by has one run, whoever led when its time came."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.app import Rota
from rota.errors import ScheduleNotFound

__all__ = ["PACE", "SCHEDULE", "SlotBook", "Slots", "count_slots"]

SCHEDULE = "take_stock"
PACE = timedelta(seconds=1)
PAGE = 100


@dataclass(frozen=True, slots=True)
class Slots:
    """`passed` are the slots from the first that was given out to the last; `given` those of them that were; `runs` is how often."""

    passed: int = 0
    given: int = 0
    runs: int = 0

    @property
    def each_once(self) -> bool:
        return self.passed == self.given == self.runs

    def __str__(self) -> str:
        slots = f"{self.passed:,} slot{'s'[: self.passed != 1]}"
        if self.each_once:
            return f"{slots}, each once"
        return f"{slots}: {self.passed - self.given:,} left out, {self.runs - self.given:,} run(s) too many"


def count_slots(given: Collection[datetime]) -> Slots:
    """What runs for these slots come to."""
    if not given:
        return Slots()
    return Slots((max(given) - min(given)) // PACE + 1, len(set(given)), len(given))


class SlotBook:
    """The runs of the schedule since `begin`, as the database has them."""

    def __init__(self, app: Rota) -> None:
        self._app = app
        self._since = 0
        self._slots: dict[int, datetime] = {}

    async def begin(self) -> None:
        """Forget the schedule of an earlier demo: what passed since then is nothing to make up for."""
        with contextlib.suppress(ScheduleNotFound):
            await self._app.schedules.delete(SCHEDULE)
        self._since = max([run.id for run in await self._app.schedules.history(SCHEDULE, limit=1)], default=0)

    async def read(self) -> Slots:
        after: int | None = None
        while True:
            page = await self._app.schedules.history(SCHEDULE, limit=PAGE, after=after)
            new = {run.id: run.slot_at for run in page if run.id > self._since and run.id not in self._slots}
            self._slots |= new
            if len(page) < PAGE or not new:
                return count_slots(list(self._slots.values()))
            after = page[-1].id
