"""Many jobs changed at once: what it would do, how far it is, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.dashboard.acting.bulk import BULK_RIGHTS, read_ids
from rota.dashboard.filters import NAMES, job_filters
from rota.dashboard.page import Look, Page, Region
from rota.jobs.bulk.action import ACTIONS, WORDS, read_action

__all__ = ["LIST", "NEW", "ONE", "offers"]

_SIZE = 50
_LABELS = {
    "retry": "Try again, or run now",
    "cancel": "Cancel",
    "discard": "Discard",
    "acknowledge": "Put away",
    "move": "Move",
    "prioritise": "Prioritise",
    "put_off": "Put off",
}


def offers(look: Look, names: Sequence[str]) -> list[tuple[str, str]]:
    """What whoever looks may do to many jobs, of these, and what its button says."""
    return [(name, _LABELS[name]) for name in names if look.may(BULK_RIGHTS[name])]


async def _list(look: Look) -> dict[str, Any]:
    after = look.whole_number("after")
    known = await look.read(("bulks", after), lambda: look.looking.bulk.list(limit=_SIZE + 1, after=after))
    bulks = [look.redaction.bulk(bulk) for bulk in known.value[:_SIZE]]
    return {"known": known, "bulks": bulks, "more": len(known.value) > _SIZE, "labels": _LABELS}


async def _one(look: Look) -> dict[str, Any]:
    number: int = look.request.path_params["id"]
    known = await look.read(("bulk", number), lambda: look.looking.bulk.get(number))
    bulk = look.redaction.bulk(known.value)
    return {"known": known, "bulk": bulk, "kind": ACTIONS[bulk.action], "words": WORDS, "labels": _LABELS}


async def _preview(look: Look) -> dict[str, Any]:
    """What it would do, once it is said what and to which jobs."""
    told = {"labels": _LABELS, "words": WORDS, "preview": None, "known": None}
    filters: Any = job_filters(look.params, look.redaction)
    named = [part for each in look.request.query_params.getlist("id") for part in each.split(",") if part]
    ids = read_ids(named) if named else None
    action = look.param("do")
    if action is None or (ids is None and not filters and look.param("all") is None):
        return told
    kind = read_action(action)
    asked = tuple(sorted(look.params.items()))
    known = await look.read(
        ("bulk preview", asked, tuple(named)), lambda: look.looking.bulk.preview(action, ids=ids, **filters)
    )
    return {
        **told,
        "known": known,
        "kind": kind,
        "preview": known.value,
        "samples": [look.redaction.job(job) for job in known.value.samples],
        "may_do": look.may(BULK_RIGHTS[action]),
        "right": BULK_RIGHTS[action],
        "named": len(ids) if ids is not None else 0,
        "given": {
            **{name: value for name, value in look.params.items() if name in NAMES},
            **({"ids": ",".join(named)} if named else {}),
            **({"all": "on"} if ids is None and not filters else {}),
        },
    }


LIST = Page("bulk", "/bulk", "Bulk", "bulk.html", (Region("list", "bulk_list.html", _list),), params=("after",))
NEW = Page(
    "bulk new",
    "/bulk/new",
    "Change many jobs",
    "bulk_new.html",
    (Region("preview", "bulk_preview.html", _preview),),
    params=("do", *NAMES, "all"),
    actions=tuple(f"bulk.{name}" for name in ACTIONS),
    within="bulk",
    live=False,
)
ONE = Page(
    "bulk one",
    "/bulk/{id:int}",
    "Bulk",
    "bulk_one.html",
    (Region("bulk", "bulk_facts.html", _one),),
    actions=("bulk.stop", "bulk.undo"),
    within="bulk",
)
