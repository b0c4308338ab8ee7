"""Who reads events waits for the open transactions of a whole server: theirs is one apart."""

import pytest

from rota.testing import DatabaseServer


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server
