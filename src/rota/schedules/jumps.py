"""What the jumps of a zone's clock will do to a timing, told before they come. Pure: never touches a clock or a socket.

The words are drawn from what the triggers answer around each jump, by either rule, so they cannot say what does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from rota.schedules.cron import Cron
from rota.schedules.every import Every, interval_of
from rota.schedules.timing import Timing
from rota.schedules.zones import INSTANT, aware, zone_of

__all__ = ["Jump", "Upset", "jumps", "upsets"]

# no zone's clock has jumped and jumped back within this
_STEP = timedelta(hours=12)
_SECOND = timedelta(seconds=1)
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Jump:
    """A zone's clock shows `leaves` and goes on with `enters`, at this instant: forward over a gap, or back to an overlap."""

    at: datetime
    leaves: datetime
    enters: datetime

    def __str__(self) -> str:
        way = "forward" if self.enters > self.leaves else "back"
        return f"{self.leaves:%Y-%m-%d}: the clock goes {way} from {_clock(self.leaves)} to {_clock(self.enters)}"


@dataclass(frozen=True, slots=True)
class Upset:
    """What a jump does to a timing, in words."""

    at: datetime
    words: str


def jumps(tz: str, after: datetime, until: datetime) -> Iterator[Jump]:
    """The jumps of the zone's clock between two instants."""
    zone, begin, until = zone_of(tz), aware(after, "after").replace(microsecond=0), aware(until, "until")
    while begin < until:
        end = begin + _STEP
        before, then = _offset(zone, begin), _offset(zone, end)
        if before != then:
            at, low = end, begin
            while at - low > _SECOND:  # jumps happen at whole seconds
                middle = low + (at - low) // _SECOND // 2 * _SECOND
                if _offset(zone, middle) == before:
                    low = middle
                else:
                    at = middle
            wall = at.replace(tzinfo=None)
            yield Jump(at, wall + before, wall + then)
        begin = end


def upsets(timing: Timing, after: datetime, until: datetime) -> list[Upset]:
    """The jumps between two instants that the timing does not pass unharmed, each with what becomes of its slots."""
    trigger = timing.trigger
    if not isinstance(trigger, Cron | Every):
        return []
    found = []
    for jump in jumps(trigger.tz, after, until):
        if isinstance(trigger, Every) and not interval_of(trigger.interval).is_wall_clock:
            words = _shifted(jump, interval_of(trigger.interval).length)
        elif isinstance(trigger, Cron) and trigger.is_interval:
            words = _out_of_step(timing, trigger, jump)
        elif jump.enters > jump.leaves:
            words = _moved(timing, trigger, jump)
        else:
            words = _doubled(timing, trigger, jump)
        if words:
            found.append(Upset(jump.at, f"{jump}. {words}."))
    return found


def _shifted(jump: Jump, length: timedelta) -> str:
    moved = jump.enters - jump.leaves
    if not moved % length:
        return ""
    return (
        f"From then on it comes {_length(abs(moved))} {'later' if moved > timedelta() else 'earlier'} by the wall clock, as hours and "
        "less are elapsed time; for a time of day write whole days, or cron"
    )


def _out_of_step(timing: Timing, trigger: Cron, jump: Jump) -> str:
    walls = _walls(timing, trigger, jump)
    before = timing.newest(jump.at - timedelta(days=3), jump.at - INSTANT, 2)
    then = timing.between(jump.at, jump.at + timedelta(days=3), 2)
    pace = (before[-1] - before[0], then[-1] - then[0]) if before and then else ()
    if not walls or (before and then and then[0] - before[-1] in pace):
        return ""
    step = f": the step is {_length(then[0] - before[-1])}" if before and then else ""
    if jump.enters > jump.leaves:
        return f"{_listed(walls)}, and an interval makes up for nothing{step}"
    return f"{_listed(walls, twice=True)}, and an interval runs each time{step}"


def _moved(timing: Timing, trigger: Cron | Every, jump: Jump) -> str:
    walls = _walls(timing, trigger, jump)
    if not walls:
        return ""
    at_end = f"{_clock(jump.enters)} ({jump.at:%H:%M} UTC)"
    runs, skips = (
        bool(replace(timing, trigger=_by(trigger, gap=gap)).between(jump.at, jump.at + INSTANT))
        for gap in ("run", "skip")
    )
    missing = _listed(walls)
    if isinstance(trigger, Every):
        return (
            f"{missing}: it runs at {at_end} instead" if runs else f"{missing}, and what would run instead is excluded"
        )
    if not runs:
        return f"{missing}, and what would run instead is excluded"
    if skips:
        return f"{missing}: the run at {at_end} is the only one"
    if trigger.gap == "run":
        return f"{missing}: it runs at {at_end} instead, and with dst_gap='skip' not at all"
    return f"{missing}: it does not run then, and with dst_gap='run' at {at_end} instead"


def _doubled(timing: Timing, trigger: Cron | Every, jump: Jump) -> str:
    walls = _walls(timing, trigger, jump)
    if not walls:
        return ""
    span = jump.leaves - jump.enters
    begin = jump.at - span
    first, second = (
        replace(timing, trigger=_by(trigger, overlap="twice")).between(at, at + span) for at in (begin, jump.at)
    )
    twice = _listed(walls, twice=True)
    once = f"at the first ({_instants(first)} UTC)"
    both = f"at both ({_instants(first)}, and {_instants(second)} UTC)"
    if isinstance(trigger, Every):
        return f"{twice}: it runs {once}"
    if trigger.overlap == "once":
        return f"{twice}: it runs {once}, and with dst_overlap='twice' {both}"
    return f"{twice}: it runs {both}, and with dst_overlap='once' {once} alone"


def _by(trigger: Cron | Every, **rule: str) -> Cron | Every:
    return replace(trigger, **rule) if isinstance(trigger, Cron) else trigger  # type: ignore[arg-type]


def _walls(timing: Timing, trigger: Cron | Every, jump: Jump) -> list[datetime]:
    """The wall times it wants among those that the jump takes away or brings twice."""
    if isinstance(trigger, Cron):
        wanted: Cron | Every = replace(trigger, tz="UTC")
    else:
        wall = trigger.anchor.astimezone(zone_of(trigger.tz)).replace(tzinfo=UTC)
        wanted = Every(trigger.interval, wall)
    begin, end = (each.replace(tzinfo=UTC) for each in sorted((jump.leaves, jump.enters)))
    within = Timing(wanted, timing.exclude).between(begin, end)
    return [each.replace(tzinfo=None) for each in within]


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _listed(walls: list[datetime], *, twice: bool = False) -> str:
    one = len(walls) == 1
    verb = ("comes twice" if one else "come twice") if twice else ("does not exist" if one else "do not exist")
    return f"{_few([_clock(each) for each in walls])} {verb}"


def _instants(slots: list[datetime]) -> str:
    return _few([_clock(each) for each in slots])


def _few(texts: list[str]) -> str:
    if len(texts) > _SHOWN:
        return f"{', '.join(texts[:_SHOWN])} and {len(texts) - _SHOWN} more"
    return ", ".join(texts)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}".removesuffix(":00")


def _length(span: timedelta) -> str:
    hours, rest = divmod(span // timedelta(minutes=1), 60)
    return " ".join(part for part in (f"{hours} h" if hours else "", f"{rest} min" if rest else "") if part)
