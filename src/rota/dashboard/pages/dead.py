"""Dead letters: what died and why, and a decision about one or about all that fit."""

from __future__ import annotations

from typing import Any

from rota.dashboard.page import Look, Page, Region
from rota.jobs.letters import LetterFilters

__all__ = ["PAGE"]

_SIZE = 50
_FILTERS = ("queue", "task", "tag", "reason", "error")
_RESOLVED = {"resolved": True, "all": None}


async def _list(look: Look) -> dict[str, Any]:
    filters = LetterFilters(**{name: look.param(name) for name in _FILTERS})  # type: ignore[typeddict-item]
    after, resolved = look.whole_number("after"), _RESOLVED.get(look.param("which") or "", False)
    known = await look.read(
        ("dead", *filters.values(), after, resolved),
        lambda: look.looking.dead.list(**filters, after=after, resolved=resolved, limit=_SIZE + 1),
    )
    letters = [look.redaction.letter(letter) for letter in known.value[:_SIZE]]
    given = {name: value for name in _FILTERS if (value := look.param(name))}
    return {"known": known, "letters": letters, "more": len(known.value) > _SIZE, "given": given}


async def _fitting(look: Look) -> dict[str, Any]:
    """What deciding about all would mean: shown before it is done."""
    filters = LetterFilters(**{name: look.param(name) for name in _FILTERS})  # type: ignore[typeddict-item]

    async def count() -> tuple[int, int]:
        dead = look.looking.dead
        return await dead.retry_many(dry_run=True, **filters), await dead.acknowledge_many(dry_run=True, **filters)

    known = await look.read(("dead fitting", *filters.values()), count)
    given = {name: value for name in _FILTERS if (value := look.param(name))}
    return {"known": known, "retried": known.value[0], "open": known.value[1], "given": given}


PAGE = Page(
    "dead",
    "/dead",
    "Dead letters",
    "dead.html",
    (Region("fitting", "dead_fitting.html", _fitting), Region("list", "dead_list.html", _list)),
    params=(*_FILTERS, "which", "after"),
    actions=("dead.retry", "dead.acknowledge", "dead.retry_many", "dead.acknowledge_many"),
)
