"""How the database is, as far as it concerns a queue."""

from __future__ import annotations

from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.postgres.vitals import read_vitals

__all__ = ["PAGE"]

_FRESH_SECONDS = 5.0


async def _pools(look: Look) -> dict[str, Any]:
    known = await look.read("pools", lambda: look.looking.members(limit=200))
    told = [each for each in known.value if (each.condition or {}).get("pools")]
    return {"known": known, "members": told, "own": look.app.pool_statistics()}


async def _vitals(look: Look) -> dict[str, Any]:
    database = look.looking.database
    known = await look.read(
        "vitals", lambda: database.run_steps(read_vitals(look.app.settings.schema)), fresh=_FRESH_SECONDS
    )
    return {"known": known, "vitals": known.value}


PAGE = Page(
    "database",
    "/database",
    "Database",
    "database.html",
    (Region("vitals", "database_vitals.html", _vitals), Region("pools", "database_pools.html", _pools)),
)
