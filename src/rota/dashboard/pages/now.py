"""How it goes at this moment: what needs someone, and numbers that lead to the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rota.dashboard.drawing import seconds_in_words
from rota.dashboard.looking import Looking
from rota.dashboard.page import Look, Page, Region
from rota.dashboard.pages.pictures import read_pictures
from rota.jobs.depth import count_open_letters
from rota.jobs.queue_view import QueueView
from rota.leases.inspect import LeaderView
from rota.leases.member_view import MemberView
from rota.pollers.inspect import PollerView
from rota.projections.inspect import ProjectionView

__all__ = ["PAGE", "Need", "State", "needs"]

_MOST = 10_000
_LATE_SECONDS = 300.0


@dataclass(frozen=True)
class State:
    """What there is, in numbers and names. Counted up to a bound, so that it costs the same whatever is queued."""

    queues: list[QueueView]
    letters: int
    members: list[MemberView]
    leaders: list[LeaderView]
    pollers: list[PollerView]
    projections: list[ProjectionView]

    @property
    def total(self) -> QueueView:
        named = [each for each in self.queues if each.name is not None]
        return QueueView(
            name=None,
            queued=sum(each.queued for each in named),
            due=sum(each.due for each in named),
            blocked=sum(each.blocked for each in named),
            running=sum(each.running for each in named),
            at_least=any(each.at_least for each in named),
            oldest_seconds=max((each.oldest_seconds for each in named), default=0.0),
        )


@dataclass(frozen=True)
class Need:
    """Something that waits for a person, and where they find it."""

    text: str
    path: str


async def _read(looking: Looking) -> State:
    return State(
        queues=list(await looking.queues.list()),
        letters=await looking.database.run(count_open_letters(most=_MOST)),
        members=await looking.members(limit=200),
        leaders=list(await looking.leaders.list()),
        pollers=list(await looking.pollers.list()),
        projections=list(await looking.projections.list()),
    )


def needs(state: State) -> Iterator[Need]:
    """What someone should look at, the worst first."""
    total = state.total
    if total.due and not state.members:
        yield Need(f"{total.due} jobs are due, and no worker is running", "members")
    for projection in state.projections:
        if projection.state == "stopped":
            yield Need(f"projection {projection.name} has stopped at an event that it cannot take in", "projections")
    if state.letters:
        more = "+" if state.letters >= _MOST else ""
        yield Need(f"{state.letters}{more} dead letters wait for a decision", "dead")
    for queue in state.queues:
        if queue.paused_at is not None:
            why = f": {queue.pause_reason}" if queue.pause_reason else ""
            yield Need(f"{queue.name or 'every queue'} is paused by {queue.paused_by}{why}", "queues")
        elif queue.name is not None and queue.oldest_seconds > _LATE_SECONDS:
            yield Need(f"jobs of {queue.name} have been due for {seconds_in_words(queue.oldest_seconds)}", "queues")
    for poller in state.pollers:
        if poller.parked:
            yield Need(f"{poller.parked} rows of poller {poller.name} are parked", "pollers")
    for member in state.members:
        if member.state == "suspected":
            yield Need(f"{member.name} does not answer", "members")
        elif member.state == "quiet":
            yield Need(f"{member.name} takes on nothing new, as {member.asked_by or 'someone'} asked", "members")


async def _now(look: Look) -> dict[str, Any]:
    known = await look.read("now", lambda: _read(look.looking))
    return {"known": known, "state": known.value, "total": known.value.total, "needs": list(needs(known.value))}


PAGE = Page(
    "now",
    "/",
    "Now",
    "now.html",
    (
        Region("now", "now_state.html", _now),
        Region("pictures", "now_pictures.html", read_pictures),
        Region("rest", "now_rest.html", _now),
    ),
    params=("span",),
)
