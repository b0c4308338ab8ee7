"""The description of the API, made from the endpoints and actions themselves. `openapi.json` is a copy, for who has no server."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rota.dashboard.acting.action import Preview
from rota.dashboard.actions import ACTIONS, Action
from rota.dashboard.api.endpoints import ENDPOINTS, Endpoint
from rota.dashboard.api.values import schema_of
from rota.dashboard.fields import Field
from rota.jobs.bulk.view import Bulk
from rota.jobs.job import Job
from rota.jobs.letters import Letter
from rota.jobs.queue_view import QueueView
from rota.leases.inspect import LeaderView
from rota.leases.member_view import MemberView
from rota.pollers.inspect import PollerView
from rota.pollers.operate import ForgottenPoller
from rota.projections.inspect import ProjectionView
from rota.release import RELEASE
from rota.schedules.view import Schedule

__all__ = ["document", "text"]

_NUMBERS = {
    "dead.retry_many",
    "dead.acknowledge_many",
    "dead.acknowledge_group",
    "schedules.backfill",
    "schedules.clear",
    "pollers.release",
    "projections.replay",
    "projections.drop",
}
_RESULTS: Mapping[str, Any] = {
    "jobs": Job,
    "bulk": Bulk,
    "dead.retry": Job,
    "dead.acknowledge": Letter,
    "dead.retry_group": list[str],
    "queues": QueueView,
    "schedules": Schedule,
    "schedules.trigger": Job,
    "schedules.skip": datetime,
    "schedules.delete": list[str],
    "leaders": LeaderView,
    "members": MemberView,
    "pollers": PollerView,
    "pollers.forget": ForgottenPoller,
    "projections": ProjectionView,
    **dict.fromkeys(_NUMBERS, int),
}
_FIELDS: Mapping[str, dict[str, Any]] = {
    "id": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    "text": {"type": "string", "maxLength": 2000},
    "queue": {"type": "string", "maxLength": 2000},
    "number": {"type": "integer", "minimum": -(2**31) + 1, "maximum": 2**31 - 1},
    "share": {"type": "number"},
    "flag": {"type": "boolean"},
    "moment": {"type": "string", "format": "date-time"},
    "object": {"type": "object"},
    "list": {"type": "array"},
    "texts": {"type": "array", "items": {"type": "string", "maxLength": 2000}, "maxItems": 100},
}
_TROUBLE = {
    "400": "It is no JSON.",
    "401": "A credential is missing or wrong.",
    "403": "It is not allowed, to you or to the database role of the dashboard.",
    "404": "There is no such thing.",
    "409": "It is not in a state in which this can be done.",
    "413": "It is too large.",
    "415": "It is not sent as JSON.",
    "422": "A parameter or field does not fit.",
    "503": "The database is away, or its tables do not fit.",
}


def text() -> str:
    """As it is shipped."""
    return json.dumps(document(), indent=1, ensure_ascii=True, sort_keys=True) + "\n"


@functools.cache
def document() -> dict[str, Any]:
    known: dict[str, Any] = {
        "Problem": {
            "type": "object",
            "description": "What went wrong, as RFC 9457 has it.",
            "properties": {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
            },
            "required": ["type", "title", "status", "detail"],
        }
    }
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths[endpoint.path] = {"get": _reading(endpoint, known)}
    for action in ACTIONS.values():
        paths[f"/actions/{action.name}"] = {"post": _acting(action, known)}
        if action.preview is not None:
            paths[f"/previews/{action.name}"] = {"post": _previewing(action, known)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rota",
            "version": RELEASE,
            "description": "What Rota holds, and what can be done about it. Ids are strings, as they may have more digits than a "
            "JavaScript number; so are places in event logs and epochs.",
        },
        "servers": [{"url": "/api/v1", "description": "below the path of the dashboard"}],
        "security": [{"basic": []}, {"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": known,
            "responses": {
                f"Trouble{status}": {
                    "description": why,
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status, why in _TROUBLE.items()
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _reading(endpoint: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    in_path = ["id"] if "{id}" in endpoint.path else []
    given = schema_of(endpoint.gives, known)
    page = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": given},
            "next": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "description": "`after` of the next page, if there is one",
            },
        },
        "required": ["items", "next"],
        "additionalProperties": False,
    }
    return {
        "operationId": "read" + endpoint.path.replace("/{id}", "_one").replace("/", "_"),
        "summary": endpoint.about,
        "parameters": [
            *(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"},
                }
                for name in in_path
            ),
            *(
                {
                    "name": name,
                    "in": "query",
                    "required": param.required,
                    "description": param.about,
                    "schema": param.schema(),
                }
                for name, param in endpoint.params.items()
            ),
        ],
        "responses": _responses(page if endpoint.is_page else given, "401", "403", "404", "409", "422", "503"),
    }


def _acting(action: Action, known: dict[str, Any]) -> dict[str, Any]:
    area = action.name.partition(".")[0]
    if action.name == "projections.skip":
        result: dict[str, Any] = {"type": "object"}
    else:
        result = schema_of(_RESULTS.get(action.name, _RESULTS.get(area)), known)
    done = {
        "type": "object",
        "properties": {"said": {"type": "string", "description": "what was done, for people"}, "result": result},
        "required": ["said", "result"],
    }
    return {
        "operationId": action.name.replace(".", "_"),
        "summary": action.about,
        "description": f"Needs the right `{action.right}`.",
        "requestBody": _body(action),
        "responses": _responses(done, *_TROUBLE),
    }


def _previewing(action: Action, known: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": f"preview_{action.name.replace('.', '_')}",
        "summary": f"What this would do, without doing it: {action.about}",
        "description": f"Needs the right `{action.right}`.",
        "requestBody": _body(action),
        "responses": _responses(schema_of(Preview, known), *_TROUBLE),
    }


def _body(action: Action) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {name: _field(field) for name, field in action.fields.items()},
        "required": [name for name, field in action.fields.items() if field.required],
        "additionalProperties": False,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _field(field: Field) -> dict[str, Any]:
    kind = {"type": "string", "enum": list(field.choices)} if field.choices else _FIELDS[field.kind]
    plain = {**kind, "description": field.about}
    return {"anyOf": [plain, {"type": "null"}]} if field.nullable else plain


def _responses(given: dict[str, Any], *troubles: str) -> dict[str, Any]:
    return {
        "200": {"description": "So it is.", "content": {"application/json": {"schema": given}}},
        **{status: {"$ref": f"#/components/responses/Trouble{status}"} for status in troubles},
    }
