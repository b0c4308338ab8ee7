"""What to do about slots whose time has come, some of them long ago. Pure: data in, decision out.

While no scheduler ran, slots went by. Those at most `grace` late are on time still, and each runs. Of those later than
that, `misfire` says what runs: one in place of all (`once`, and that only if nothing on time runs anyway), none (`skip`),
or each (`all`). At most `limit` run, the newest; what does not run is counted as missed. However long the time and however
dense the slots, they are counted, not visited.

What makes up for that time is wanted although a run may still be under way, which the outage may have held up as well: it
waits for that, where a slot that comes in time is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from rota.errors import ConfigurationError
from rota.schedules.every import Delay
from rota.schedules.timing import Timing, jittered
from rota.schedules.zones import INSTANT, aware

__all__ = ["Decision", "Misfire", "decide"]

Misfire = Literal["once", "skip", "all"]

# A scheduler that is there may be as late as this, when a message was lost or another took over, however short the grace.
_AWAY = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Decision:
    """The slots to run now, oldest first; how many do not run; and the slot to wait for, if there is one.

    `made_up`: so many of those to run, the newest, make up for a time when nobody was there.
    """

    fire: tuple[datetime, ...]
    missed: int
    next_slot: datetime | None
    made_up: int = 0


def decide(
    timing: Timing,
    next_slot: datetime,
    now: datetime,
    *,
    misfire: Misfire = "once",
    grace: timedelta = timedelta(minutes=1),
    limit: int = 100,
    name: str = "",
    jitter: timedelta = timedelta(),
) -> Decision:
    """Decide about the slots from `next_slot` to now.

    `next_slot` is taken as a slot whatever the timing says, as it was promised. With a jitter a slot's time comes at
    `jittered(name, slot, jitter)`, and lateness counts from the jitter's end; the first slot whose time has not come ends
    the matter, so that slots stay in order.
    """
    if misfire not in get_args(Misfire):
        raise ConfigurationError(f"misfire={misfire!r}: it is one of {', '.join(get_args(Misfire))}.")
    if grace < timedelta() or limit < 1:
        raise ConfigurationError(f"grace={grace}, limit={limit}: a grace is not negative, and a limit is 1 or more.")
    first, now = aware(next_slot, "next_slot"), aware(now, "now")
    if jittered(name, first, jitter) > now:
        return Decision((), 0, first)
    if isinstance(timing.trigger, Delay):
        return Decision((first,), 0, None)  # the next one hangs on the end of this one

    last, coming = first, timing.next(first)
    if coming is not None and jittered(name, coming, jitter) <= now:  # more than one
        coming = timing.next(max(first, now - jitter))
        while jitter and coming is not None and jittered(name, coming, jitter) <= now:
            coming = timing.next(coming)
        last = now if coming is None else min(now, coming - INSTANT)

    total = 1 + timing.count(first, last)
    punctual = now - grace - jitter
    wanted = total
    if misfire != "all" and first < punctual:
        wanted = timing.count(punctual - INSTANT, last) or int(misfire == "once")
    wanted = min(wanted, limit)
    fire = timing.newest(first, last, wanted)
    if len(fire) < wanted:
        fire.insert(0, first)
    made_up = 0
    if first < min(punctual, now - _AWAY - jitter):
        made_up = {"all": len(fire), "once": 1, "skip": 0}[misfire]
    return Decision(tuple(fire), total - len(fire), coming, made_up)
