"""What reads events has a server apart, and nothing to do with the upkeep of the history."""

from collections.abc import Iterator

import psycopg
import pytest
from tests.projections.logs import Db

from rota.testing import DatabaseServer


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture(autouse=True)
def _history_aside(history_aside: None) -> None: ...


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection
