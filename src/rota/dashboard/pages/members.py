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
from rota.leases.inspect import LeaderLane, LeaderView
from rota.leases.member_view import MemberView

__all__ = ["PAGE", "term_lanes"]

_NAMES = 20  # whose terms are drawn
_LANES_SECONDS = 3.0
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
    known = await look.read("lanes", lambda: look.looking.leaders.lanes("24h"), fresh=_LANES_SECONDS)
    return {"known": known, "chart": _chart(known.value[:_NAMES]) if known.value else None}


async def _locks(look: Look) -> dict[str, Any]:
    known = await look.read("locks", look.looking.leaders.locks)
    return {"known": known, "locks": known.value}


def term_lanes(led: Sequence[LeaderLane]) -> list[Lane]:
    """A lane per name; a term that was lost is told from one that was given up, and a time in which nobody led stands out."""
    kinds = {None: "running", "lost": "lost"}
    return [
        Lane(
            lane.name,
            [
                *(Span(start, end, "gap", "nobody led") for start, end in lane.gaps),
                *(
                    Span(
                        term.acquired_at,
                        term.ended_at,
                        kinds.get(term.end_reason, "succeeded"),
                        f"{term.holder}, epoch {term.epoch}, {term.end_reason or 'leads'}",
                    )
                    for term in lane.terms
                ),
            ],
        )
        for lane in led
    ]


def _chart(led: Sequence[LeaderLane]) -> Markup:
    now = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    first = min((term.acquired_at for lane in led for term in lane.terms), default=now)
    start = max(first, now - timedelta(days=1))
    return lanes("Who led when", term_lanes(led), start=min(start, now - timedelta(minutes=5)), end=now, now=now)


PAGE = Page(
    "members",
    "/members",
    "Members",
    "members.html",
    (
        Region("members", "members_list.html", _members),
        Region("leaders", "leaders_list.html", _leaders),
        Region("terms", "terms_chart.html", _terms),
        Region("locks", "locks_list.html", _locks),
    ),
    actions=("members.quiet", "members.resume", "members.drain", "leaders.resign"),
)
