"""Time that a test can move: `rota.now()` plus a shift that is kept in the database, so every process there sees it.

Only due times read `rota.now()`. Leases, deadlines and proof of life keep real time.
"""

from __future__ import annotations

from datetime import timedelta
from textwrap import dedent

from rota.postgres.notify import poll_channel, schedule_channel, wake_channel
from rota.postgres.query import Query, identifier, nothing, statement

__all__ = ["INSTALL_CLOCK", "advance", "install_clock"]

# Everyone may read it: a worker with few rights asks for the time as well.
INSTALL_CLOCK = dedent("""
    create table {schema}.test_clock (
        single boolean primary key default true check (single),
        shift interval not null default '0'
    );
    insert into {schema}.test_clock default values;
    grant select on {schema}.test_clock to public;

    create or replace function {schema}.now() returns timestamptz
        language sql stable parallel safe
        return (select statement_timestamp() + clock.shift from {schema}.test_clock as clock);
""").strip()


def install_clock(schema: str) -> str:
    """The SQL that gives a migrated schema the movable clock."""
    return INSTALL_CLOCK.replace("{schema}", identifier(schema))


ADVANCE = statement(
    "advance",
    """
    with moved as (
        update {schema}.test_clock
        set shift = shift + %(by)s
        returning shift
    )
    -- a worker listens for its own queues only, so each that may have become due is named
    select pg_notify(%(channel)s, waiting.queue)
    from moved, (select distinct queue from {schema}.jobs where state in ('queued', 'blocked')) as waiting
    union all
    select pg_notify(%(schedules)s, '') from moved
    union all
    select pg_notify(%(pollers)s, '') from moved
    """,
)


def advance(by: timedelta, schema: str) -> Query[None]:
    """Move the clock forward and have all workers look again, in one transaction."""
    return ADVANCE.query(
        {
            "by": by,
            "channel": wake_channel(schema),
            "schedules": schedule_channel(schema),
            "pollers": poll_channel(schema),
        },
        read=nothing,
    )
