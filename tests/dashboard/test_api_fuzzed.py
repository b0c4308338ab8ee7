"""Whatever is sent to the API, it answers as its description says, and never with a fault of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.web.servers import Server

from rota.dashboard.api.openapi import document

pytestmark = pytest.mark.one_server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture
def served(rota_database: str, tmp_path: Path) -> Iterator[str]:
    command = ("rota", "dashboard", "--port", "PORT", "--auth", "a-long-token")
    with Server(tmp_path, rota_database, *command) as server:
        server.wait_until_ready()
        yield f"http://127.0.0.1:{server.port}/api/v1"


@pytest.mark.parametrize("examples", [pytest.param(1, id="few"), pytest.param(60, id="many", marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_every_operation_keeps_its_word(examples: int, served: str) -> None:
    schema = schemathesis.openapi.from_dict(document())
    operations = [found.ok() for found in schema.get_all_operations()]

    for operation in operations:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def keeps_its_word(case: Any) -> None:
            response = case.call(base_url=served, headers={"Authorization": "Bearer a-long-token"})
            case.validate_response(response, checks=CHECKS)

        keeps_its_word()

    assert len(operations) > 40
