"""How long a process that lost its session trusts what it holds, by what the server answers to its tries to come back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from rota import Rota
from rota.clock import boottime
from rota.errors import DatabaseUnavailable
from rota.leases.trust import LeaseSettings, Trust
from rota.testing import until


def cut_off(seconds: float) -> Trust:
    """Of one whose lease was prolonged just now, and whose session was last well so many seconds ago."""
    trust = Trust(LeaseSettings())
    trust.renewed(boottime())
    trust.broken(boottime() - seconds)
    return trust


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ("Connection refused", 0.25),
        ("FATAL:  the database system is shutting down", 12),
        ("FATAL:  the database system is starting up", 12),
        ("FATAL:  the database system is in recovery mode", 0.75),
    ],
)
def test_what_the_server_says_decides_for_how_long_a_lost_session_is_waited_for(answer: str, seconds: float) -> None:
    trust = cut_off(0.5)

    trust.refused(DatabaseUnavailable(answer), boottime())

    assert trust.left == pytest.approx(seconds, abs=0.1)


def test_nothing_that_is_said_after_the_deadline_brings_it_back() -> None:
    trust = cut_off(0.76)

    for answer in ("the database system is shutting down", "the database system is in recovery mode"):
        trust.refused(DatabaseUnavailable(answer), boottime())

        assert trust.left <= 0


async def test_who_has_just_joined_believes_no_suspicion_from_before(rota_database: str) -> None:
    """It may be from before a crash that ended every session, after which the member has not had its time to come back."""
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "insert into rota.members (id, name, host, pid, release, expires_at, lock_key, suspected_at) values "
            "(gen_random_uuid(), 'm', 'h', 1, '0', now() + interval '1 hour', 42, now() - interval '1 hour')"
        )

        def ended() -> Any:
            after = "select m.ended_at - w.started_at from rota.members m, rota.members w where m.host = 'h' and w.host <> 'h'"
            row = db.execute(after).fetchone()
            return row and row[0]

        async with Rota(rota_database) as app, app.leadership("indexer"):
            await until(ended, what="the other is ended")

        assert ended() >= timedelta(seconds=0.7)


@pytest.mark.one_server
@pytest.mark.slow
async def test_who_saw_the_clock_of_the_database_step_believes_no_expiry_for_a_lease(rota_database: str) -> None:
    """By the clock of before, those who were silent just then may have all of theirs."""
    with psycopg.connect(rota_database, autocommit=True) as db:
        async with Rota(rota_database, lease="1.5s") as app, app.leadership("indexer"):
            db.execute(
                "insert into rota.members (id, name, host, pid, release, expires_at) values "
                "(gen_random_uuid(), 'm', 'h', 1, '0', 'infinity')"
            )
            settled = "select from rota.members where attached_at < statement_timestamp() - interval '2 seconds'"
            await until(lambda: db.execute(settled).rowcount, what="an expiry would be believed")
            stepped = """
                update rota.members
                set expires_at = case when host = 'h' then now() else expires_at end,
                    renewed_at = case when host = 'h' then renewed_at else renewed_at - interval '1 hour' end
                """
            db.execute(stepped)
            after = "select ended_at - expires_at from rota.members where host = 'h' and ended_at is not null"
            ended = await until(lambda: db.execute(after).fetchone(), what="the other is ended")

    assert ended[0] >= timedelta(seconds=1.4)
