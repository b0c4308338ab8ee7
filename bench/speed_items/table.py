"""What an item is given, and what it says."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from field import Drain, Field, Peer, Unavailable, raw


@dataclass(frozen=True)
class Row:
    """One figure beside what it must be. `measured` None: it could not be compared, for the reason in `note`."""

    item: int
    what: str
    measured: float | None
    bar: float | None
    stretch: float | None = None
    at_most: bool = False
    unit: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not compared"
        if self.bar is None:
            return ""
        return "ok" if self._holds(self.bar) else "SHORT"

    @property
    def stretched(self) -> bool:
        return self.measured is not None and self.stretch is not None and self._holds(self.stretch)

    def _holds(self, limit: float) -> bool:
        assert self.measured is not None
        return self.measured <= limit if self.at_most else self.measured >= limit

    def cells(self) -> tuple[str, ...]:
        sign = "≤" if self.at_most else "≥"
        limits = ["" if limit is None else f"{sign} {self._said(limit)}" for limit in (self.bar, self.stretch)]
        measured = "-" if self.measured is None else self._said(self.measured) + (" *" if self.stretched else "")
        return str(self.item), self.what, *limits, measured, self.verdict, self.note

    def _said(self, figure: float) -> str:
        return f"{figure:,.{0 if figure >= 100 else 4 if figure < 0.1 else 2}f}{self.unit}"


@dataclass
class Run:
    """One run of the benchmark."""

    field: Field
    short: bool
    rounds: int
    rotas: dict[str, Peer]  # by the version of Python, the newest first
    peers: dict[str, Peer]
    missing: dict[str, str] = field(default_factory=dict)  # peers that cannot run here, and why
    figures: dict[str, Any] = field(default_factory=dict)  # what was measured, for --out

    @property
    def rota(self) -> Peer:
        return next(iter(self.rotas.values()))

    def size(self, whole: int, short: int) -> int:
        return short if self.short else whole

    def say(self, text: str) -> None:
        print(f"   {text}", flush=True)

    def drain(self, peer: Peer, jobs: int, *, workers: int = 1, before: Callable[[Any], object] | None = None) -> Drain:
        with self.field.place(peer) as place:
            if before is not None:
                before(place)
            place.fill(jobs)
            return place.drain(jobs, workers=workers)

    def beside_raw(self, what: str, rate: Callable[[Peer], float]) -> Shares:
        """Rota's rate several times, and before and after each that of the raw loop."""
        found = Shares()
        before = rate(raw())
        for _ in range(self.rounds):
            rota, after = rate(self.rota), rate(raw())
            found.add(rota, (before + after) / 2)
            self.say(f"{rota:10,.0f}/s, raw {before:8,.0f} and {after:8,.0f}/s: {what}")
            before = after
        return found

    def in_turn(self, entrants: dict[str, Peer], jobs: int, *, workers: int = 1) -> dict[str, Drains]:
        """Drain with each in turn, several times, and with the raw loop before and after each."""
        found = {name: Drains() for name in entrants}
        for _ in range(self.rounds):
            before = self.drain(raw(), jobs, workers=workers)
            for name, peer in entrants.items():
                drain = self.drain(peer, jobs, workers=workers)
                after = self.drain(raw(), jobs, workers=workers)
                found[name].add(drain.rate, (before.rate + after.rate) / 2)
                found[name].drains.append(drain)
                self.say(f"{name:14} {drain.rate:8,.0f}/s, raw {before.rate:8,.0f} and {after.rate:8,.0f}/s")
                before = after
        for name, drains in found.items():
            self.say(f"{name:14} median {drains.rate:8,.0f}/s, {drains.share:.2f} of raw")
        return found


@dataclass
class Shares:
    """Rates, each with that of the raw loop at the same moment."""

    rates: list[float] = field(default_factory=list)
    raws: list[float] = field(default_factory=list)

    def add(self, rate: float, raw: float) -> None:
        self.rates.append(rate)
        self.raws.append(raw)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def share(self) -> float:
        return statistics.median(rate / raw for rate, raw in zip(self.rates, self.raws, strict=True))

    def times(self, other: Shares) -> float:
        """How many times the other's rate, round by round."""
        return statistics.median(mine / others for mine, others in zip(self.rates, other.rates, strict=True))

    def record(self) -> dict[str, Any]:
        return {
            "rates": list(map(round, self.rates)),
            "raw": list(map(round, self.raws)),
            "share": round(self.share, 3),
        }


@dataclass
class Drains(Shares):
    drains: list[Drain] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        wal, transactions = [each.wal for each in self.drains], [each.transactions for each in self.drains]
        return {**super().record(), "wal": list(map(round, wal)), "transactions": transactions}


def table(rows: Sequence[Row]) -> str:
    head = ("", "what", "bar", "stretch", "measured", "", "")
    cells = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def available(field: Field, peers: dict[str, Peer]) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that run here, and why the others do not."""
    there, missing = {}, {}
    for name, peer in peers.items():
        try:
            with field.place(peer) as place:
                place.fill(10)
        except Unavailable as error:
            missing[name] = str(error)
        else:
            there[name] = peer
    return there, missing
