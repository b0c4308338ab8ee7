"""Finding the job of a log record: by the context in which it is logged, as `current_job()` does.

One handler serves all workers of a process, on the root logger, while one of them keeps logs. It changes nothing about what others
do with records: no level is set, and where nobody else handles records, they come out as they would without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

from rota.jobs.running import running

__all__ = ["capturing"]


class _Capture(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        # past the lock of handlers: bodies in many threads log at once, and what they share has one of its own
        if logging.root.handlers == [self]:
            _as_without_us(record)
        held = running.get(None)
        if held is not None and held.desk is not None and held.desk.notes is not None and os.getpid() == _pid:
            with contextlib.suppress(
                Exception
            ):  # whatever is wrong with the record: a body does not fail for what it logs
                held.desk.notes.take(held, record)
        return True


def _as_without_us(record: logging.LogRecord) -> None:
    """Python prints a record that no handler takes. We are one, and must not be the reason that it is silent."""
    logger = logging.root.manager.loggerDict.get(record.name)
    while isinstance(logger, logging.Logger) and logger is not logging.root:
        if logger.handlers:
            return
        logger = logger.parent
    last = logging.lastResort
    if last is not None and record.levelno >= last.level:
        last.handle(record)


_handler = _Capture()
_users = 0
# What a body forks has copies of locks that others held at that moment, and nobody to write what it notes.
_pid = 0
_changing = threading.Lock()


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Have records noted with their jobs for the length of a block."""
    global _users, _pid  # noqa: PLW0603 - of the process, as its loggers are
    with _changing:
        _users, _pid = _users + 1, os.getpid()
        logging.root.addHandler(_handler)  # once, however often it is added
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            if not _users:
                logging.root.removeHandler(_handler)
