"""A leader that is frozen, or cut off without a word: it stops by itself before another begins, and nothing it does late counts."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.chaos.contenders import LONG, Arena, Contender, arena_at, of

from rota.clock import boottime
from rota.testing import TcpProxy, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

LEASE = 1.5


@pytest.fixture
def arena(rota_database: str, tmp_path: Path) -> Iterator[Arena]:
    with arena_at(rota_database, tmp_path) as arena:
        yield arena


def lead_before(arena: Arena, peers: str = "bc", **options: object) -> Contender:
    """A leader, with others that wait and have been there for as long as it takes to believe in an expiry."""
    leader = arena.start("a", lease=f"{LEASE:g}s", **options)  # type: ignore[arg-type]
    for peer in peers:
        arena.start(peer, lease=f"{LEASE:g}s")
    arena.wait_for_standbys(len(peers))
    while of(found := arena.leader() or {"who": ""}) != "a":
        at = arena.contenders[of(found)].resign()
        arena.wait_for_leader(at, found["epoch"])
        arena.wait_for_standbys(len(peers))
    with psycopg.connect(arena.dsn, autocommit=True) as admin:
        settled = "select from rota.members where attached_at < statement_timestamp() - %s * interval '1 second'"
        until_sync(lambda: admin.execute(settled, [LEASE + 0.2]).rowcount > len(peers), what="all are settled")
    return leader


FROZEN = {
    "inside a fenced transaction": {"linger": 0.2},
    "between two writes": {},
    "inside one of the user's": {"linger": 0.2, "foreign": True},
}


@pytest.mark.parametrize("where", list(FROZEN)[: None if LONG else 1])
@pytest.mark.long
def test_a_frozen_leader_is_followed_and_what_it_writes_late_is_refused(arena: Arena, where: str) -> None:
    leader = lead_before(arena, **FROZEN[where])
    last = arena.leader()
    assert last is not None
    if FROZEN[where]:
        arena.wait_for("inside", last["at"], "a")

    frozen_at = leader.freeze()
    inside = sessions_inside_a_term(arena)
    after = arena.wait_for_leader(frozen_at, last["epoch"])
    thawed_at = leader.thaw()

    assert inside or not FROZEN[where]
    arena.wait_for("lost", thawed_at, "a")
    refused = arena.wait_for("refused", thawed_at, "a")
    arena.wait_for_standbys(2)  # it is back, and waits its turn
    print(f"frozen {where}: followed after {after['after'] - frozen_at:.2f} s, with a lease of {LEASE:g} s")
    assert after["after"] - frozen_at < LEASE + 1
    assert refused["epoch"] == last["epoch"]
    assert [note for note in arena.notes("valid", thawed_at) if of(note) == "a"] == []
    assert arena.violations() == []


def sessions_inside_a_term(arena: Arena) -> int:
    with psycopg.connect(arena.dsn, autocommit=True) as admin:
        marked = (
            "select distinct pid from pg_locks where locktype = 'advisory' and mode = 'ShareLock' "
            "and database = (select oid from pg_database where datname = current_database())"
        )
        return admin.execute(marked).rowcount


@pytest.mark.parametrize("broken", ["", "deadline"] if LONG else [""])
def test_a_leader_that_is_cut_off_without_a_word_stops_before_the_next_begins(arena: Arena, broken: str) -> None:
    """And one that ignores its own deadline is found out."""
    with TcpProxy(arena.dsn) as network:
        lead_before(arena, dsn=network.dsn(arena.dsn), broken=broken)
        followed_in_time(arena, network.blackhole, network.heal, broken)


@pytest.mark.long
def test_a_leader_whose_link_goes_down_stops_before_the_next_begins(arena: Arena) -> None:
    """In a network of its own, where the kernel swallows what is sent, and knows for how long it waits for an answer."""
    try:
        subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a network of its own needs the right to make one, and `ip`: {error}")
    leader = lead_before(arena, link=True)
    followed_in_time(arena, leader.cut_link, leader.cut_link)


def followed_in_time(arena: Arena, cut: Callable[[], object], heal: Callable[[], object], broken: str = "") -> None:
    """Cut the leader off: it stops before another begins, which does so in time. When it is back it waits for its turn."""
    last = arena.leader()
    assert last is not None
    at = boottime()

    cut()
    after = arena.wait_for_leader(at, last["epoch"])
    arena.wait_for_leader(after["at"] + 0.5)

    if broken:
        assert any("a/0 was valid" in violation for violation in arena.violations())
        return
    stopped = arena.wait_for("interrupted", at, "a")["at"]
    print(f"cut off: stopped after {stopped - at:.2f} s, followed after {after['after'] - at:.2f} s")
    assert stopped < after["before"]
    assert after["after"] - at < LEASE + 1
    heal()
    arena.wait_for_standbys(2)
    assert arena.violations() == []


@pytest.mark.parametrize("broken", ["", "boottime"] if LONG else [""])
@pytest.mark.long
def test_a_leader_whose_machine_slept_knows_it_when_it_wakes_up_without_a_network(
    arena: Arena, tmp_path: Path, broken: str
) -> None:
    """Its monotonic clock stood still meanwhile, and all its timers; only the clock that counts sleep tells."""
    (slept := tmp_path / "slept").write_bytes(struct.pack("d", 0.0))
    with TcpProxy(arena.dsn) as network:
        leader = lead_before(arena, dsn=network.dsn(arena.dsn), sleep=str(slept), broken=broken)
        last = arena.leader()
        assert last is not None

        network.blackhole()
        slept_at = leader.freeze()
        arena.wait_for_leader(slept_at, last["epoch"])
        with slept.open("r+b") as file:  # the same file: it is mapped
            file.write(struct.pack("d", boottime() - slept_at))
        woke_at = leader.thaw()
        arena.wait_for_leader(woke_at + 0.5)

        valid = [note for note in arena.notes("valid", woke_at) if of(note) == "a"]
        assert bool(valid) == bool(broken)
        network.heal()
        lost = arena.wait_for("lost", woke_at, "a")
        arena.wait_for_standbys(2)
    print(f"asleep: back to work {boottime() - woke_at:.2f} s after waking up, told after {lost['at'] - woke_at:.2f} s")
    assert boottime() - woke_at < 5
    assert bool(arena.violations()) == bool(broken)
