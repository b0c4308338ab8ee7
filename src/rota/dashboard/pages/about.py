"""What this is: releases, the schema, and what the doctor finds."""

from __future__ import annotations

import asyncio
from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.postgres.schema import applied_migrations, migration_files
from rota.runtime.doctor import Patient, examine

__all__ = ["PAGE"]

_EXAMINED_SECONDS = 15.0
_ORDER = ("problem", "warning", "note", "unknown", "ok")


async def _schema(look: Look) -> dict[str, Any]:
    known = await look.read("schema", lambda: look.looking.database.run(applied_migrations()))
    return {
        "known": known,
        "applied": known.value,
        "files": migration_files(),
        "schema": look.app.settings.schema,
        "where": look.app.settings.dsn or "the embedded server",
    }


async def _doctor(look: Look) -> dict[str, Any]:
    """Only when asked for: it takes a second or two."""
    if look.param("examine") is None:
        return {"diagnosis": None, "findings": ()}
    patient = Patient(look.app, source="of this dashboard")
    known = await look.read("doctor", lambda: asyncio.to_thread(examine, patient), fresh=_EXAMINED_SECONDS)
    findings = sorted(known.value.findings, key=lambda finding: _ORDER.index(finding.grade))
    return {"diagnosis": known.value, "findings": findings}


PAGE = Page(
    "about",
    "/about",
    "About",
    "about.html",
    (Region("schema", "about_schema.html", _schema), Region("doctor", "about_doctor.html", _doctor)),
    params=("examine",),
    live=False,
)
