"""The log lines of all attempts of a process, on their way out of it.

Bodies in any thread add to them. Someone else takes what is due now and then, writes it, and says so. What a body waits for is the
forming of its line and a lock that is held for a moment: never a socket.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from rota.blot import MASK, blotted
from rota.failure import storable
from rota.jobs.claim import ClaimedJob
from rota.jobs.logs.level import OFF
from rota.jobs.logs.run import Line, Run
from rota.jobs.running import Held

__all__ = ["Notes", "Parcel"]

# A line is for a person to read; what is longer loses its middle, since a trace tells most at its end.
_LINE_LIMIT = 4_000
# Secrets are looked for in more than what is kept, as one may be cut in two. But not in a megabyte.
_SEARCHED = 8_000
_LOGGER_LIMIT = 200
# All that may wait at a time, while the database is away or very many runs log at once: some 20 MB of text.
_MOST_WAITING = 20_000
_MOST_WAITING_SIZE = 20_000_000
# What is written at a time, so that one statement stays short.
_MOST_LINES = 5_000
_MOST_SIZE = 2_000_000
# How often the newest lines of a run that logs very much are written: each is also deleted again when newer ones come.
_FLOOD_SECONDS = 2.0

# for its way to put a trace; what it makes is not left on the record, where the formatters of others would take it for theirs
_formatter = logging.Formatter()


class Parcel(NamedTuple):
    """Lines of one run, as they are to be written."""

    run: Run
    lines: list[Line]


class Notes:
    """What waits to be written. `wake` is called, from any thread, when something does and nothing did before."""

    def __init__(
        self,
        levels: Mapping[str, int],
        secrets: Callable[[ClaimedJob], Sequence[str] | None],
        wake: Callable[[], None],
    ) -> None:
        self._levels = levels
        self._secrets = secrets
        self._wake = wake
        # Re-entrant: a signal handler, or what the garbage collector ends, may log while this thread is in here.
        self._lock = threading.RLock()
        self._runs: dict[Run, None] = {}  # that have lines waiting, the longest waiting first
        self._lines = 0
        self._size = 0
        self._dropped = 0
        self._closed = False

    def level_of(self, task: str) -> int:
        """From which level on records of this task are kept."""
        return self._levels.get(task, OFF)

    def take(self, held: Held, record: logging.LogRecord) -> None:
        """Note a record that was logged in this attempt."""
        if record.levelno < self.level_of(held.claim.task) or self._closed:
            return
        text, at = _text(record), monotonic()
        with self._lock:
            run = self._run(held, None)
            self._add(run, Line(run.number + 1, at, record.levelno, record.name, text))

    def add(self, held: Held, lines: Iterable[Line]) -> None:
        """Note lines of this attempt that were noted elsewhere, and are as they should be stored."""
        with self._lock:
            run = self._run(held, ())
            for line in lines:
                if not self._closed:
                    self._add(run, line)

    def _run(self, held: Held, secrets: Sequence[str] | None) -> Run:
        try:
            run: Run = held.log
        except AttributeError:
            # most attempts log nothing, and this is the first thing that any of it costs
            run = held.log = Run(held.claim, secrets)
        return run

    def _add(self, run: Run, line: Line) -> None:
        # one that has more than its first lines takes no more room
        if (self._lines >= _MOST_WAITING or self._size >= _MOST_WAITING_SIZE) and not run.flooded:
            run.number = line.number
            self._dropped += 1
            return
        lines, size = run.waiting, run.waiting_size
        run.add(line)
        self._lines += run.waiting - lines
        self._size += run.waiting_size - size
        idle = not self._runs
        self._runs[run] = None
        if idle:
            self._wake()

    @property
    def waiting(self) -> bool:
        return bool(self._runs)

    def due(self, *, all_of_them: bool = False) -> list[Parcel]:
        """What is to be written now, as far as one statement should go. Only one caller at a time."""
        now, lines, size = monotonic(), 0, 0
        chosen: list[Parcel] = []
        with self._lock:
            for run in self._runs:
                if lines >= _MOST_LINES or size >= _MOST_SIZE:
                    break
                if not all_of_them and run.wrote_at is not None and now < run.wrote_at + _FLOOD_SECONDS:
                    continue
                some = run.next(_MOST_LINES - lines)
                chosen.append(Parcel(run, some))
                lines += len(some)
                size += sum(line.size for line in some)
        return [Parcel(run, [self._shaped(run, line) for line in some]) for run, some in chosen]

    def wrote(self, parcels: Iterable[Parcel]) -> None:
        """These need not wait any longer."""
        now = monotonic()
        with self._lock:
            for run, lines in parcels:
                waiting, size = run.waiting, run.waiting_size
                run.wrote(lines, now)
                self._lines += run.waiting - waiting
                self._size += run.waiting_size - size
                self._runs.pop(run, None)
                if run.waiting:
                    self._runs[run] = None  # behind the others

    def unwanted(self, parcels: Iterable[Parcel]) -> list[tuple[Run, tuple[int, int]]]:
        """Of which runs the database has lines, and between which numbers, that are no longer to be kept."""
        with self._lock:
            return [(run, between) for run, _ in parcels if (between := run.unwanted()) is not None]

    def forgot(self, unwanted: Iterable[tuple[Run, tuple[int, int]]]) -> None:
        with self._lock:
            for run, between in unwanted:
                run.forgot(between)

    def take_dropped(self) -> int:
        """How many lines found no room since this was asked last, all runs together."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def close(self) -> None:
        """Take no more: a body that cannot be ended may still log."""
        with self._lock:
            self._closed = True
            self._runs.clear()

    def _shaped(self, run: Run, line: Line) -> Line:
        """The line as it may be stored: without secrets, in text that PostgreSQL can hold, and cut to size."""
        if run.secrets is None:
            try:
                run.secrets = self._secrets(run.claim) or ()
            except Exception:  # whatever a codec raises: what cannot be searched for is not shown
                return line._replace(text=MASK)
        text = _cut(blotted(line.text, run.secrets), _LINE_LIMIT)
        return line._replace(text=storable(text, 2 * _LINE_LIMIT), logger=storable(line.logger, _LOGGER_LIMIT))


def _text(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:
        text = f"{record.msg!r} does not go with {record.args!r}"
    if record.exc_info and record.exc_info[0] is not None:
        text = f"{text}\n{record.exc_text or _formatter.formatException(record.exc_info)}"
    if record.stack_info:
        text = f"{text}\n{record.stack_info}"
    return _cut(text, _SEARCHED)


def _cut(text: str, limit: int) -> str:
    """The text without its middle, if it is longer than this."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[1 - half :]}"
