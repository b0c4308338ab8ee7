"""A glance: what an idle worker reads in place of a look, to know whether a look is worth it, and whether anything else is left to do.

A look that may take what it finds is a large statement, and wakes the event loop and a session that have been asleep. Mostly there
is nothing, and fifty idle workers that find that out every two seconds cost a small machine as much as some thousand jobs. So the
thread that beats anyway asks along with its beat, in one small read. What it finds is only ever a reason to look: that nothing of it
was for us costs a look, as it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple
from uuid import UUID

from rota.clock import boottime
from rota.jobs.chores import ANY_CHORES
from rota.jobs.lanes import LANES, LANES_OF
from rota.leases.control import Control
from rota.postgres.query import Query, one, statement

__all__ = ["Glance", "Glances", "glance"]

# One that takes longer holds up the beats, one that fails has waited for a lock, and one that found what was not for us will find it
# again: then it is better to look for a while.
_LONG_SECONDS = 0.02
_USELESS_SECONDS = 30.0


class Glance(NamedTuple):
    """In how many seconds the first job is due, not more than 0 if one is, None if there is none; whether there are chores; and how
    long that took the server."""

    due_in: float | None
    chores: bool
    seconds: float


# Whether what is due is for us is told by a look alone, and so is when a line has its turn.
_GLANCE = """
    , seen as materialized (
        select
            least(
                (select min(lane.due_at) from lane),
                (
                    select job.due_at
                    from {schema}.jobs as job
                    where job.state = 'blocked' and job.place is null and job.after is null
                    order by job.due_at, job.id
                    limit 1
                ),
                case when exists (
                    select
                    from {schema}.lines as line
                    where line.ready_at is not null
                      and (%(queues)s::text[] is null or line.queue = any (%(queues)s::text[]))
                ) then {schema}.now() end
            ) as due_at,
            {chores} as chores
    )
    select
        extract(epoch from seen.due_at - {schema}.now())::float8, seen.chores,
        extract(epoch from clock_timestamp() - statement_timestamp())::float8
    from seen
""".replace("{chores}", ANY_CHORES)
GLANCE = statement("glance", LANES + _GLANCE)
GLANCE_OF = statement("glance_of", LANES_OF + _GLANCE)


def glance(queues: Sequence[str] | None, member: UUID) -> Query[Glance]:
    """Whether a look at these queues may find something, or `find_chores` does. Changes nothing, and waits for nobody."""
    told = {"queues": None if queues is None else list(queues), "member": member}
    return (GLANCE if queues is None else GLANCE_OF).query(told, read=one(Glance))


class Glances:
    """Those of one worker, while it rests. In the control thread, `found` is called with in how many seconds something is due."""

    def __init__(
        self,
        queues: Sequence[str] | None,
        *,
        poll: Callable[[], float],
        found: Callable[[float], None],
    ) -> None:
        self._queues = queues
        self._poll = poll
        self._found = found
        self._asked_at = self._useless_until = 0.0
        #: set by who waits for what they find
        self.wanted = False
        #: when the last one was asked for that found no chores
        self.no_chores_at = 0.0

    def come_often_enough(self, control: Control) -> bool:
        """Whether what is wanted of them is asked as often as one would look, from what is known now."""
        return self._poll() >= control.longest_pause and boottime() >= self._useless_until

    def were_useless(self) -> None:
        """What they find is not for us, takes long, or cannot be asked for: leave it to who looks."""
        self._useless_until = boottime() + _USELESS_SECONDS

    def come(self, control: Control) -> None:
        """Ask along with this beat, if it is time to. For the control thread."""
        now = boottime()
        # half a beat too early rather than one too late
        if self.wanted and now - self._asked_at + control.pause / 2 >= self._poll():
            self._asked_at = now
            control.ask(glance(self._queues, control.member)).add_done_callback(partial(self._came, now))

    def _came(self, asked_at: float, answer: Future[Glance]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self.were_useless()
            self._found(0.0)
            return
        seen = answer.result()
        if not seen.chores:
            self.no_chores_at = asked_at
        if seen.seconds > _LONG_SECONDS:
            self.were_useless()
        if seen.due_in is not None:
            self._found(seen.due_in)
