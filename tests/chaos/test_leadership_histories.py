"""Sixteen contenders, whose clocks are wrong by an hour, are killed, frozen and made to resign at random: never do two lead.

The short form is part of the suite; ROTA_CHAOS_FAULTS=200 asks for the long one, `make chaos`. What is random comes from
ROTA_CHAOS_SEED, which a failure names.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.contenders import Arena, Contender, arena_at, of
from tests.faketime import libfaketime, namespaces_of_time

from rota.clock import boottime

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

FAULTS = int(os.environ.get("ROTA_CHAOS_FAULTS", "6"))
SEED = int(os.environ.get("ROTA_CHAOS_SEED", "4" if FAULTS < 100 else str(time.time_ns())))
# a process is a second of a processor to start: the short form has four contenders in each
PROCESSES, APPS = (3, 5) if FAULTS < 100 else (16, 1)
LEASE = 1.5
HOUR = 3600.0


@pytest.fixture
def arena(rota_database: str, tmp_path: Path) -> Iterator[Arena]:
    with arena_at(rota_database, tmp_path) as arena:
        yield arena


@pytest.mark.slow
@pytest.mark.timeout(120 + 5 * FAULTS)
def test_no_two_valid_terms_overlap_whatever_happens_to_the_processes(arena: Arena) -> None:
    chance = random.Random(SEED)
    print(f"ROTA_CHAOS_SEED={SEED} ROTA_CHAOS_FAULTS={FAULTS}")
    for _ in range(PROCESSES):
        start(arena)
    arena.wait_for_leader()
    arena.wait_for_standbys(PROCESSES * APPS - 1)

    for _ in range(FAULTS):
        happen(arena, chance)
    for contender in arena.contenders.values():
        if contender.frozen:
            contender.thaw()
    arena.wait_for_leader(boottime() + LEASE, timeout=30)

    spans = arena.spans()
    gaps = [max(0.0, after.start - before.end) for before, after in pairwise(spans)]
    print(
        f"{len(spans)} terms, {len(arena.writes())} writes, {len(arena.notes('refused'))} refused; longest gap {max(gaps):.2f} s"
    )
    clocks = {
        round((note["realtime"] - note["at"] - time.time() + boottime()) / HOUR) for note in arena.notes("started")
    }
    print(f"clocks are off by {clocks} h, by {libfaketime()}, and of durations: {namespaces_of_time()}")
    assert clocks == {0, 1, -1}
    assert arena.violations() == []
    assert len(spans) >= FAULTS / 3
    assert [note["reason"] for note in arena.notes("failed")] == []


def start(arena: Arena) -> None:
    number = len(arena.contenders)
    off = (0.0, HOUR, -HOUR)[number % 3]
    # of those that are ahead, also the clocks by which durations are told
    ahead = HOUR if off > 0 and namespaces_of_time() else 0.0
    arena.start(f"p{number}", lease=f"{LEASE:g}s", apps=APPS, ahead=ahead, **wrong_clock(off))


def wrong_clock(off: float) -> dict[str, Any]:
    """By libfaketime where there is one, which changes the clock for everything in the process; else for its Python.

    Of the clocks of durations it knows that of absolute sleeps badly: they are left to the kernel.
    """
    if (faking := libfaketime()) is None:
        return {"shift": off}
    env = {"LD_PRELOAD": str(faking), "FAKETIME": f"{off:+.0f}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {"env": env if off else {}}


def happen(arena: Arena, chance: random.Random) -> None:
    """One fault, mostly to whoever leads, and a while in which more or less of what it causes comes to pass."""
    alive = [contender for contender in arena.contenders.values() if contender.process.poll() is None]
    awake = [contender for contender in alive if not contender.frozen]
    target = leader_of(arena, awake) if chance.random() < 0.7 else chance.choice(awake)
    what = chance.choice(["kill", "freeze", "resign"] if len(awake) > PROCESSES / 2 else ["kill", "resign"])
    match what:
        case "kill":
            target.kill()
            start(arena)
        case "freeze":
            target.freeze()
        case "resign":
            target.resign()
    time.sleep(chance.uniform(0, LEASE))
    frozen = [contender for contender in alive if contender.frozen]
    if frozen and chance.random() < 0.5:
        chance.choice(frozen).thaw()


def leader_of(arena: Arena, awake: list[Contender]) -> Contender:
    who = of(arena.leader() or {"who": ""})
    return next((contender for contender in awake if contender.who == who), awake[0])
