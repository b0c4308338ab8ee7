from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rota.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def logging_put_back() -> Iterator[None]:
    """A command sets up the logging of its process, which here is that of all tests."""
    loggers = [logging.getLogger(), logging.getLogger("rota")]
    before = [(each, each.level, each.handlers[:]) for each in loggers]
    last = logging.lastResort
    yield
    logging.lastResort = last
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def rota(capsys: pytest.CaptureFixture[str], logging_put_back: None) -> Callable[..., Ended]:
    """The `rota` command, run in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        shown = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, shown.out, shown.err)

    return run
