from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rota.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def rota(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The `rota` command, run in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        shown = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, shown.out, shown.err)

    return run
