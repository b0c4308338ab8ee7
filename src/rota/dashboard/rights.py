"""Who someone is, and what they may do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from rota.errors import ConfigurationError
from rota.postgres.names import check_name

__all__ = ["RIGHTS", "Rights", "User", "check_rights"]

Rights = Literal["all", "read"] | Collection[str]

#: What can be done, each a right of its own; to look at everything comes with any of them.
RIGHTS: Mapping[str, str] = {
    "jobs.retry": "have a job tried again",
    "jobs.cancel": "cancel a job",
    "jobs.discard": "cancel a job without waiting for its body",
    "jobs.move": "move jobs to another queue",
    "jobs.prioritise": "give jobs another priority",
    "jobs.put_off": "have jobs wait longer",
    "bulk.stop": "have a change of many jobs go no further",
    "bulk.undo": "have a change of many jobs put back",
    "dead.retry": "make a new job of a dead letter, with other arguments if they are given",
    "dead.acknowledge": "put a dead letter away",
    "queues.pause": "have no job of a queue begin",
    "queues.resume": "end the pause of a queue",
    "queues.limit": "limit how many jobs of a queue run at once, and begin in a period",
    "queues.weigh": "give a queue its share",
    "queues.relax": "have successes in a queue count a moment before they are on disk",
    "queues.tighten": "have successes in a queue be on disk before they count",
    "schedules.put": "put a schedule, or change one",
    "schedules.pause": "give out no more runs of a schedule",
    "schedules.resume": "end the pause of a schedule",
    "schedules.trigger": "run a schedule by hand",
    "schedules.skip": "leave out the next slot of a schedule",
    "schedules.backfill": "run slots of a schedule that have not run",
    "schedules.clear": "forget runs of a schedule that wait",
    "schedules.delete": "delete a schedule",
    "members.quiet": "have a process take on nothing new",
    "members.resume": "have a process that is quiet work again",
    "members.drain": "have a process end, as after SIGTERM",
    "leaders.resign": "ask a leader to step down",
    "pollers.pause": "have nobody take rows for a poller",
    "pollers.resume": "end the pause of a poller",
    "pollers.release": "let parked rows of a poller be polled again, and take rows from who polls them",
    "pollers.forget": "forget a poller that no code has any more",
    "projections.pause": "have nobody read for a projection",
    "projections.resume": "end the pause of a projection, or have one that stopped go on",
    "projections.skip": "pass over the event that a projection stopped at",
    "projections.rewind": "have a projection read events again",
    "projections.rebuild": "have a projection replay all events beside what readers use, or give that up",
    "projections.forget": "forget a version of a projection that no code has any more",
    "projections.replay": "have parked events taken in again",
    "projections.drop": "give parked events up",
}


def check_rights(rights: Rights) -> Rights:
    """Refuse a right that there is none of: it would be missing later, when it is needed."""
    if rights in ("all", "read"):
        return rights
    named = None if isinstance(rights, str) else frozenset(rights)
    unknown = [repr(rights)] if named is None else sorted(map(repr, named - RIGHTS.keys()))
    if unknown:
        raise ConfigurationError(
            f'There is no right {", ".join(unknown)}: rights are "all", "read", or some of {", ".join(RIGHTS)}.'
        )
    assert named is not None
    return named


@dataclass(frozen=True)
class User:
    """Someone who was let in. The name is on record for what they do; `rights` are all, read (only), or names of `RIGHTS`."""

    name: str
    rights: Rights = "read"

    def __post_init__(self) -> None:
        check_name("the name of a user", self.name, 200)
        object.__setattr__(self, "rights", check_rights(self.rights))

    def may(self, right: str) -> bool:
        return self.rights == "all" or (not isinstance(self.rights, str) and right in self.rights)
