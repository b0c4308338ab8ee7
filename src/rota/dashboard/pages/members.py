"""Processes that hold work, who leads what, and who led when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from markupsafe import Markup

from rota.dashboard.charts import Lane, Span, lanes
from rota.dashboard.page import Look, Page, Region
from rota.jobs.at_work import AtWork, at_work
from rota.leases.inspect import LeaderView, TermView
from rota.leases.member_view import MemberView

__all__ = ["PAGE", "term_lanes"]

_NAMES = 20  # whose terms are drawn
_TERMS = 50
_ENDED = 30
_MEMBERS = 200
_JOBS = 3  # of each that are named


@dataclass(frozen=True)
class _Crew:
    members: Sequence[MemberView]
    at_work: Mapping[UUID, Sequence[AtWork]]
    leaders: Sequence[LeaderView]


async def _members(look: Look) -> dict[str, Any]:
    async def read() -> _Crew:
        members = await look.looking.members(ended=True, limit=_MEMBERS)
        live = [each.id for each in members if each.ended_at is None]
        return _Crew(
            members,
            await look.looking.database.run(at_work(live, each=_JOBS)) if live else {},
            await look.looking.leaders.list(),
        )

    known = await look.read("members", read)
    crew = known.value
    leads: dict[UUID, list[str]] = {}
    for leader in crew.leaders:
        if leader.member is not None:
            leads.setdefault(leader.member, []).append(leader.name)
    return {
        "known": known,
        "live": [each for each in crew.members if each.ended_at is None],
        "ended": [each for each in crew.members if each.ended_at is not None][:_ENDED],
        "at_work": crew.at_work,
        "leads": leads,
    }


async def _leaders(look: Look) -> dict[str, Any]:
    known = await look.read("leaders", look.looking.leaders.list)
    return {"known": known, "leaders": known.value}


async def _terms(look: Look) -> dict[str, Any]:
    async def read() -> dict[str, Sequence[TermView]]:
        leaders = look.looking.leaders
        names = [leader.name for leader in await leaders.list()][:_NAMES]
        return {name: await leaders.terms(name, limit=_TERMS) for name in names}

    known = await look.read("terms", read)
    return {"known": known, "chart": _chart(known.value) if known.value else None}


def term_lanes(terms: Mapping[str, Sequence[TermView]]) -> list[Lane]:
    """A lane per name; a term that was lost is told from one that was given up."""
    kinds = {None: "running", "lost": "lost"}
    return [
        Lane(
            name,
            [
                Span(
                    term.acquired_at,
                    term.ended_at,
                    kinds.get(term.end_reason, "succeeded"),
                    f"{term.holder}, epoch {term.epoch}, {term.end_reason or 'leads'}",
                )
                for term in led
            ],
        )
        for name, led in terms.items()
    ]


def _chart(terms: Mapping[str, Sequence[TermView]]) -> Markup:
    now = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    first = min((term.acquired_at for led in terms.values() for term in led), default=now)
    start = max(first, now - timedelta(days=1))
    return lanes("Who led when", term_lanes(terms), start=min(start, now - timedelta(minutes=5)), end=now, now=now)


PAGE = Page(
    "members",
    "/members",
    "Members",
    "members.html",
    (
        Region("members", "members_list.html", _members),
        Region("leaders", "leaders_list.html", _leaders),
        Region("terms", "terms_chart.html", _terms),
    ),
    actions=("members.quiet", "members.resume", "members.drain", "leaders.resign"),
)
