"""How the database is, as far as it concerns a queue."""

from __future__ import annotations

from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.postgres.vitals import read_vitals

__all__ = ["PAGE"]

_FRESH_SECONDS = 5.0


async def _vitals(look: Look) -> dict[str, Any]:
    database = look.looking.database
    known = await look.read(
        "vitals", lambda: database.run_steps(read_vitals(look.app.settings.schema)), fresh=_FRESH_SECONDS
    )
    return {"known": known, "vitals": known.value, "pools": look.app.pool_statistics()}


PAGE = Page("database", "/database", "Database", "database.html", (Region("vitals", "database_vitals.html", _vitals),))
