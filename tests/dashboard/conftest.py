from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.service.ending import ENDING
from rota.testing import DatabaseServer


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    """Its world has projections."""
    return event_server


@pytest.fixture(autouse=True)
def not_ending() -> Iterator[None]:
    """The flag is the whole process's: whoever sets it in a test takes it back."""
    ENDING.reset()
    yield
    ENDING.reset()
