from __future__ import annotations

from typing import Any

from starlette.routing import Route


def api_routes(dashboard: Any) -> list[Route]:
    return []
