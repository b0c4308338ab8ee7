"""When a schedule is due: a trigger, what is left out, and from when to when. Pure: never touches a clock or a socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from rota.errors import ConfigurationError
from rota.jobs.checks import LATEST_YEAR
from rota.schedules.cron import Cron
from rota.schedules.every import Delay, Every, Once
from rota.schedules.exclude import Exclude
from rota.schedules.zones import INSTANT, aware, until, zone_of

__all__ = ["Timing", "Trigger", "jittered"]

Trigger = Cron | Every | Delay | Once

TIMED = ("cron", "every", "delay", "once")
UNTIMED = ("after", "event", "manual")

# So many slots or rests in a row, or so many years, all left out: there is nothing more to come. The first is years of daily
# ones, each costing some 30 us; the second is for 29 February.
_LEFT_OUT = 4000
_LEFT_OUT_FOR = timedelta(days=36525)

_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """The slots of a schedule: those of `trigger` from `start_at` to before `end_at` that `exclude` does not cover.

    Without a trigger (a schedule that something else fires) there are none. `tz` is the zone of `exclude`. `skipped` are
    instants at which there is none either.
    """

    trigger: Trigger | None
    exclude: Exclude = field(default_factory=Exclude)
    tz: str = "UTC"
    start_at: datetime | None = None
    end_at: datetime | None = None
    skipped: frozenset[datetime] = frozenset()
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", zone_of(self.tz))
        for name in ("start_at", "end_at"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, aware(value, name))
        if self.start_at and self.end_at and self.end_at <= self.start_at:
            raise ConfigurationError(
                f"end_at={self.end_at.isoformat()}: it is not after start_at={self.start_at.isoformat()}, so no slot lies "
                "between them; move one of the two."
            )

    @classmethod
    def from_json(cls, kind: str, spec: Mapping[str, Any], name: str = "") -> Timing:
        """The timing of a stored schedule: its kind, and its columns or their JSON; what is not needed is not looked at.

        cron: cron, tz, gap, overlap. every: every, anchor, tz. delay: every, tz. once: at. All: exclude, start_at, end_at,
        skipped.
        Instants are datetimes or ISO text. A ConfigurationError names what is missing or wrong.
        """
        tz = spec.get("tz") or "UTC"
        trigger: Trigger | None = None
        if kind not in TIMED + UNTIMED:
            raise ConfigurationError(f"kind={kind!r}: there are {', '.join(TIMED + UNTIMED)}.")
        if kind == "cron":
            gap: Any = spec.get("gap") or "run"
            overlap: Any = spec.get("overlap") or "once"
            trigger = Cron(_needed(spec, "cron", kind), tz, name, gap, overlap)
        elif kind == "every":
            trigger = Every(_needed(spec, "every", kind), _instant(_needed(spec, "anchor", kind), "anchor"), tz)
        elif kind == "delay":
            trigger = Delay(_needed(spec, "every", kind), tz)
        elif kind == "once":
            trigger = Once(_instant(_needed(spec, "at", kind), "at"))
        start_at, end_at = (_instant(spec.get(each), each) for each in ("start_at", "end_at"))
        skipped = frozenset(aware(each, "skipped") for each in spec.get("skipped") or ())
        return cls(trigger, Exclude.from_json(spec.get("exclude")), tz, start_at, end_at, skipped)

    def next(self, after: datetime) -> datetime | None:
        """The first slot strictly after this instant, in UTC, or None when there is none to come."""
        after = aware(after, "after")
        if self.trigger is None:
            return None
        if self.start_at and after < self.start_at:
            after = self.start_at - INSTANT
        try:
            return self._next(self.trigger, after)
        except OverflowError:  # past year 9999
            return None

    def _next(self, trigger: Trigger, after: datetime) -> datetime | None:
        begin = after
        for _ in range(_LEFT_OUT):
            slot = trigger.next(after)
            if slot is None or slot.year >= LATEST_YEAR or (self.end_at and slot >= self.end_at):
                return None
            if slot in self.skipped:
                after = slot
                continue
            if not self.exclude or not self.leaves_out(slot):
                return slot
            if slot - begin > _LEFT_OUT_FOR:
                return None
            after = self._until(slot) - INSTANT
        return None

    def between(self, start: datetime, end: datetime, limit: int = 10_000) -> list[datetime]:
        """The first `limit` slots from `start` to before `end`."""
        slots: list[datetime] = []
        begin = aware(start, "start")
        slot = self.next(begin - INSTANT if begin > _FIRST else begin)
        while slot is not None and slot < end and len(slots) < limit:
            slots.append(slot)
            slot = self.next(slot)
        return slots

    def preview(self, after: datetime, n: int = 10) -> list[datetime]:
        """The next n slots after this instant, or as many as there are."""
        return self.between(aware(after, "after") + INSTANT, datetime.max.replace(tzinfo=UTC), n)

    def count(self, after: datetime, upto: datetime) -> int:
        """How many slots lie after the one instant and not after the other, without visiting each."""
        after, upto = aware(after, "after"), aware(upto, "upto")
        if self.start_at:
            after = max(after, self.start_at - INSTANT)
        if self.end_at:
            upto = min(upto, self.end_at - INSTANT)
        if self.trigger is None or upto <= after:
            return 0
        count = self._count(self.trigger, after, upto)
        for each in self.skipped:
            if after < each <= upto:
                count -= self._count(self.trigger, each - INSTANT, each)
        return count

    def _count(self, trigger: Trigger, after: datetime, upto: datetime) -> int:
        if not self.exclude:
            return trigger.count(after, upto)
        edges = [after + INSTANT]
        while edges[-1] <= upto:
            edges.append(self._until(edges[-1]))
        return sum(
            trigger.count(begin - INSTANT, min(end - INSTANT, upto))
            for begin, end in pairwise(edges)
            if not self.leaves_out(begin)
        )

    def newest(self, after: datetime, upto: datetime, n: int) -> list[datetime]:
        """The last n slots that lie after the one instant and not after the other, in order, without visiting the others."""
        if n < 1 or upto <= after:
            return []
        # Look back twice as far until there are enough, then halve: a burst may hold far more than are asked for
        enough, span = after, timedelta(seconds=1)
        while upto - span > after:
            if self.count(upto - span, upto) >= n:
                enough = upto - span
                break
            span *= 2
        too_few = upto - span / 2
        while too_few - enough > INSTANT and self.count(enough, upto) > 2 * n + 10:
            middle = enough + (too_few - enough) / 2
            if self.count(middle, upto) >= n:
                enough = middle
            else:
                too_few = middle
        return self.between(enough + INSTANT, upto + INSTANT, 3 * n + 10)[-n:]

    def explain(self) -> str:
        """When it is due, in English."""
        parts = [self.trigger.explain() if self.trigger else "When something else fires it", self.exclude.explain()]
        parts.append(f"from {self.start_at:%Y-%m-%d %H:%M:%S} UTC" if self.start_at else "")
        parts.append(f"until {self.end_at:%Y-%m-%d %H:%M:%S} UTC" if self.end_at else "")
        return ", ".join(part for part in parts if part)

    def leaves_out(self, at: datetime) -> bool:
        """Whether a slot at this instant would be left out."""
        return self.exclude.covers(at.astimezone(self._zone).replace(tzinfo=None, fold=0))

    def _until(self, at: datetime) -> datetime:
        return until(self._zone, at, self.exclude.turn)


def jittered(name: str, slot: datetime, jitter: timedelta) -> datetime:
    """The slot moved by a part of the jitter, from none to almost all: the same for the same name and slot, wherever asked."""
    if not jitter:
        return slot
    digest = blake2b(f"{name}\0{slot.timestamp():.6f}".encode(errors="surrogatepass"), digest_size=8).digest()
    return slot + timedelta(microseconds=int.from_bytes(digest) * (jitter // INSTANT) >> 64)


def _needed(spec: Mapping[str, Any], what: str, kind: str) -> Any:
    if (value := spec.get(what)) is None:
        raise ConfigurationError(f"{what} is missing: a schedule of kind {kind!r} needs it.")
    return value


def _instant(value: Any, what: str) -> Any:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass  # told by whoever takes it
    return value
