from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.service.ending import ENDING


@pytest.fixture(autouse=True)
def not_ending() -> Iterator[None]:
    """The flag is the whole process's: whoever sets it in a test takes it back."""
    ENDING.reset()
    yield
    ENDING.reset()
