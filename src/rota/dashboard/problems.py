"""What went wrong, as a status of HTTP; for the API as a problem of RFC 9457."""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.responses import Response

from rota.errors import (
    BatchNotFound,
    BulkNotFound,
    ConfigurationError,
    DatabaseUnavailable,
    InvalidArguments,
    InvalidDsn,
    JobExists,
    JobNotFound,
    NotPossible,
    RotaError,
    ScheduleNotFound,
    SchemaMismatch,
)

__all__ = ["problem", "status_of"]

# the first that fits; InvalidDsn is the server's own fault, and no other ConfigurationError is
_STATUS: tuple[tuple[type[RotaError], int], ...] = (
    (JobNotFound, 404),
    (ScheduleNotFound, 404),
    (BatchNotFound, 404),
    (BulkNotFound, 404),
    (NotPossible, 409),
    (JobExists, 409),
    (InvalidDsn, 503),
    (DatabaseUnavailable, 503),
    (SchemaMismatch, 503),
    (InvalidArguments, 422),
    (ConfigurationError, 422),
)


def status_of(error: RotaError) -> int:
    """What is left is what PostgreSQL refuses, such as a change by a role that may only look."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 403)


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(json.dumps(body), status, headers, media_type="application/problem+json")
