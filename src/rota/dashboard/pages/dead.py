"""Dead letters: what died and why, and a decision about one or about all that fit."""

from __future__ import annotations

from typing import Any

from rota.dashboard.charts import spark
from rota.dashboard.page import Look, Page, Region
from rota.dashboard.pages.bulk import offers
from rota.jobs.letters import LetterFilters

__all__ = ["PAGE"]

_SIZE = 50
_FILTERS = ("queue", "task", "tag", "reason", "error")
_GROUPED = 2_000  # letters that are looked at
_GROUP_SECONDS = 5.0
_SHOWN = 20
_BULK = ("retry", "acknowledge", "discard")
_RESOLVED = {"resolved": True, "all": None}


async def _list(look: Look) -> dict[str, Any]:
    filters = LetterFilters(**{name: look.param(name) for name in _FILTERS})  # type: ignore[typeddict-item]
    look.redaction.check_search(error=look.param("error"))
    after, resolved = look.whole_number("after"), _RESOLVED.get(look.param("which") or "", False)
    known = await look.read(
        ("dead", *filters.values(), after, resolved),
        lambda: look.looking.dead.list(**filters, after=after, resolved=resolved, limit=_SIZE + 1),
    )
    letters = [look.redaction.letter(letter) for letter in known.value[:_SIZE]]
    given = {name: value for name in _FILTERS if (value := look.param(name))}
    return {
        "known": known,
        "letters": letters,
        "more": len(known.value) > _SIZE,
        "exported": {**given, "which": look.param("which")},
        "bulk": [] if look.param("which") else offers(look, _BULK),
        # a search of jobs knows all of these but one
        "chosen_by": None if "reason" in given else {**given, "state": "dead"},
    }


async def _groups(look: Look) -> dict[str, Any]:
    """By what they died of; of a queue and task, if those are asked for."""
    queue, task = look.param("queue"), look.param("task")
    known = await look.read(
        ("dead groups", queue, task),
        lambda: look.looking.dead.groups(queue=queue, task=task, most=_GROUPED),
        fresh=_GROUP_SECONDS,
    )
    return {
        "known": known,
        "groups": known.value.groups[:_SHOWN],
        "told": known.value,
        # what they have in common may quote arguments
        "hides": look.redaction.is_active,
        "charts": {group.id: spark("Deaths by day, the last 30", group.days) for group in known.value.groups[:_SHOWN]},
    }


async def _fitting(look: Look) -> dict[str, Any]:
    """What deciding about all would mean: shown before it is done."""
    filters = LetterFilters(**{name: look.param(name) for name in _FILTERS})  # type: ignore[typeddict-item]

    async def count() -> tuple[int, int]:
        dead = look.looking.dead
        return await dead.retry_many(dry_run=True, **filters), await dead.acknowledge_many(dry_run=True, **filters)

    known = await look.read(("dead fitting", *filters.values()), count, fresh=_GROUP_SECONDS)
    given = {name: value for name in _FILTERS if (value := look.param(name))}
    return {"known": known, "retried": known.value[0], "open": known.value[1], "given": given}


PAGE = Page(
    "dead",
    "/dead",
    "Dead letters",
    "dead.html",
    (
        Region("groups", "dead_groups.html", _groups),
        Region("fitting", "dead_fitting.html", _fitting),
        Region("list", "dead_list.html", _list),
    ),
    params=(*_FILTERS, "which", "after"),
    actions=(
        "dead.retry",
        "dead.acknowledge",
        "dead.retry_many",
        "dead.acknowledge_many",
        "dead.retry_group",
        "dead.acknowledge_group",
    ),
)
