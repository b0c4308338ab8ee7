"""One poller: what is polled now and by whom, what is parked, and, when asked for, how PostgreSQL finds what is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.errors import ConfigurationError, NotPossible, RotaError
from rota.pollers.check import PollerCheck
from rota.pollers.inspect import DueRow, HeldRow, ParkedRow, PollerView
from rota.pollers.poller import Poller

__all__ = ["PAGE", "own_poller"]

_HELD = 50
_PARKED = 50
_DUE = 10
_CHECKED_SECONDS = 60.0


def own_poller(look: Look, name: str) -> Poller[..., Any]:
    """That of the app of this dashboard, which knows its table. Raises NotPossible."""
    if name not in look.app.pollers:
        raise NotPossible(
            f"The app of this dashboard has no poller {name!r}, so it does not know how its rows are found. Name the app that has it: "
            "`rota dashboard APP`."
        )
    return look.app.pollers[name]


async def _facts(look: Look) -> dict[str, Any]:
    name = _asked(look)

    async def read() -> tuple[PollerView, Sequence[HeldRow], Sequence[ParkedRow]]:
        pollers = look.looking.pollers
        found = [each for each in await pollers.list() if each.name == name]
        if not found:
            raise NotPossible(f"There is no poller {name!r}: no process has declared one.")
        held = await pollers.held(name, limit=_HELD) if found[0].held else []
        parked = await pollers.parked(name, limit=_PARKED) if found[0].parked else []
        return found[0], held, parked

    known = await look.read(("poller", name), read)
    poller, held, parked = known.value
    return {
        "known": known,
        "poller": poller,
        "held": held,
        "parked": [look.redaction.parked_row(row) for row in parked],
        "is_own": name in look.app.pollers,
    }


async def _check(look: Look) -> dict[str, Any]:
    """Only when asked for: it makes PostgreSQL plan, and tries an index on an empty copy."""
    name = _asked(look)
    if look.param("check") is None:
        return {"check": None, "due": (), "misfit": None}

    async def read() -> tuple[PollerCheck | None, Sequence[DueRow], str | None]:
        poller = own_poller(look, name)
        try:
            return await poller.check(), await poller.preview(_DUE), None
        except RotaError as error:
            return None, (), str(error)

    known = await look.read(("check", name), read, fresh=_CHECKED_SECONDS)
    check, due, misfit = known.value
    return {"check": check, "due": due, "misfit": misfit}


def _asked(look: Look) -> str:
    name = look.param("name")
    if name is None:
        raise ConfigurationError("name is missing: which poller?")
    return name


PAGE = Page(
    "poller",
    "/poller",
    "Poller",
    "poller.html",
    (Region("facts", "poller_facts.html", _facts), Region("check", "poller_check.html", _check)),
    params=("name", "check"),
    actions=("pollers.pause", "pollers.resume", "pollers.release", "pollers.forget"),
    leave_to={"pollers.forget": "pollers"},
    within="pollers",
)
