"""The way to the server, and what kind of server it is."""

from __future__ import annotations

import secrets
import statistics
import time
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from rota.postgres.keys import channel
from rota.postgres.query import Query, identifier, one, scalar, statement
from rota.runtime.doctor.finding import Finding, note, ok, problem, unknown, warning
from rota.runtime.doctor.patient import Patient

__all__ = [
    "clock",
    "connection",
    "encryption",
    "latency",
    "listening",
    "notifications",
    "pooler",
    "supported",
    "version",
    "writable",
]

_ROUND_TRIPS = 30
_ROUND_TRIPS_WITHIN = 0.5  # seconds; a server that is far away is asked less often
_FAR = 0.010  # seconds; from here on the way to the server is what most of a short job takes
_SKEW = 1.0  # seconds; less is seen by nobody who compares two logs
_HEARD_WITHIN = 2.0  # seconds, as a worker's own probe
_OLDEST = 14


def connection(patient: Patient) -> Finding:
    """Can the database be reached?"""
    info = patient.connection.info
    where = info.host if info.host.startswith(("/", "@")) else f"{info.host}:{info.port}"
    found = f"{where}, database {info.dbname} as {info.user} ({patient.source})"
    if (patient.named or patient.coded) and "password" in patient.dsn.parameters:
        found += "; commands told here leave out its password: libpq finds it in PGPASSWORD or ~/.pgpass"
    return ok(found)


def encryption(patient: Patient) -> Finding:
    """Can others on the way read what is sent?"""
    connected = patient.connection
    if connected.pgconn.ssl_in_use:
        return ok("TLS")
    host = connected.info.host
    if host.startswith(("/", "@", "127.")) or host in ("localhost", "::1"):
        return ok("none, and none is needed: the server is on this machine")
    return warning(
        f"none on the way to {host}",
        "Passwords may be sent hashed, but arguments and results of jobs can be read by whoever sees the network.",
        "add sslmode=verify-full (or at least sslmode=require) to the address",
    )


def latency(patient: Patient) -> Finding:
    """How long does one question take?"""
    took: list[float] = []
    began = time.perf_counter()
    while len(took) < _ROUND_TRIPS and time.perf_counter() - began < _ROUND_TRIPS_WITHIN:
        asked = time.perf_counter()
        patient.connection.execute("/* rota:ping */ select 1")
        took.append(time.perf_counter() - asked)
    took.sort()
    median, high = statistics.median(took), took[min(len(took) - 1, int(len(took) * 0.99))]
    found = f"a round trip takes {median * 1000:.2f} ms (median; p99 {high * 1000:.2f} ms, of {len(took)})"
    if median < _FAR:
        return ok(found)
    return warning(
        found,
        "Every claim, every batch of outcomes and every enqueue waits for some of these.",
        "run workers and web processes in the same region as the database",
    )


class _Node(NamedTuple):
    version: int
    today: date
    in_recovery: bool
    read_only: bool
    user: str
    database: str


LOOK_AT_NODE = statement(
    "look_at_node",
    """
    select
        current_setting('server_version_num')::integer, current_date, pg_is_in_recovery(),
        (select reset_val = 'on' from pg_settings where name = 'default_transaction_read_only'),
        session_user, current_database()
    """,
)


def _node() -> Query[_Node]:
    return LOOK_AT_NODE.query(read=one(_Node))


def version(patient: Patient) -> Finding:
    """Is it a PostgreSQL that Rota works with?"""
    node = patient.ask(_node())
    return supported(node.version, node.today)


def supported(number: int, today: date) -> Finding:
    """What to say of a version, as `server_version_num` has it."""
    major = number // 10000
    named = f"PostgreSQL {major}.{number % 10000}"
    if major < _OLDEST:
        return problem(
            named,
            f"Rota works with PostgreSQL {_OLDEST} and newer: its statements use what older ones do not have.",
            f"upgrade the server to PostgreSQL {_OLDEST} or newer",
        )
    ends = date(major + 2012, 11, 15)  # five years after each release, in November
    if today + timedelta(days=180) > ends:
        return warning(
            named,
            f"Its last corrections come in November {ends.year}.",
            f"plan the upgrade to PostgreSQL {major + 1} or newer",
        )
    return ok(f"{named}, which gets corrections until November {ends.year}")


def pooler(patient: Patient) -> Finding:
    """Does a pooler in transaction mode stand in between?"""
    if patient.connection.direct:
        return ok("none in transaction mode: sessions are ours")
    return warning(
        "a pooler in transaction mode stands in between",
        "No wake-up there: jobs are found by polling, twice a second. No proof of life: a dead process is noticed after its lease, "
        "15 s instead of 1 s. Nothing is lost or run twice by it, and those who only enqueue miss nothing.",
        "give workers the direct address of the server: ROTA_DATABASE_URL=postgresql://...:5432/...",
        "or have the pooler use pool_mode = session for their database",
    )


def writable(patient: Patient) -> Finding:
    """Does the server take writes?"""
    node = patient.ask(_node())
    if node.in_recovery:
        return problem(
            "the server is a standby: it takes no writes",
            "Rota keeps to servers that do, so no process of it connects here.",
            "name the primary, or all servers in one address: host=first,second (the one that takes writes is found)",
        )
    if node.read_only:
        return problem(
            "sessions here begin read-only (default_transaction_read_only is on)",
            "Rota keeps to servers that take writes, and takes this for one that does not.",
            f"alter database {identifier(node.database)} reset default_transaction_read_only;",
            f"alter role {identifier(node.user)} reset default_transaction_read_only;",
            "alter system reset default_transaction_read_only; select pg_reload_conf();",
        )
    return ok("the server takes writes")


TELL_TIME = statement("tell_time", "select clock_timestamp()")


def clock(patient: Patient) -> Finding:
    """Does this machine's clock agree with the database's?"""
    best: tuple[float, float] | None = None
    for _ in range(5):
        before, asked = time.time(), time.perf_counter()
        told: datetime = patient.ask(TELL_TIME.query(read=scalar))
        took = time.perf_counter() - asked
        if best is None or took < best[0]:
            best = (took, told.timestamp() - before - took / 2)
    assert best is not None
    took, ahead = best
    found = f"the database is {abs(ahead) * 1000:.0f} ms {'ahead of' if ahead > 0 else 'behind'} this machine"
    if abs(ahead) < _SKEW + took:
        return ok(f"{found} (its time zone does not matter)")
    return note(
        found,
        "Rota takes all its times from the database, so nothing runs too early, too late or twice because of it. But logs of the "
        "two cannot be compared, and certificates may seem to be invalid.",
        "timedatectl set-ntp true   # on the machine whose clock is wrong",
    )


def listening(patient: Patient) -> Finding:
    """Does a message to ourselves come back?"""
    if not patient.connection.direct:
        return unknown("behind a pooler in transaction mode nobody can listen")
    name, message = channel(patient.schema, f"doctor/{secrets.token_hex(8)}"), secrets.token_hex(8)
    with patient.connect() as session:
        session.execute(f"listen {name}")
        sent = time.perf_counter()
        session.execute("/* rota:notify */ select pg_notify(%s, %s)", [name, message])
        heard = [each.payload for each in session.notifies(timeout=_HEARD_WITHIN, stop_after=1)]
        took = time.perf_counter() - sent
    if heard == [message]:
        return ok(f"a message came back after {took * 1000:.1f} ms")
    return problem(
        f"a message to ourselves did not come back within {_HEARD_WITHIN:g} s",
        "Wake-ups are lost: jobs are found by polling, twice a second.",
        "look for a proxy between here and the server that drops notifications, and give workers a direct address",
    )


class _Queue(NamedTuple):
    usage: float
    idle: list[Any] | None


LOOK_AT_QUEUE = statement(
    "look_at_notifications",
    """
    select
        pg_notification_queue_usage(),
        (
            select array_agg(idle.pid order by idle.xact_start)
            from (
                select activity.pid, activity.xact_start
                from pg_stat_activity as activity
                where activity.datname = current_database()
                  and activity.state like 'idle in transaction%%'
                order by activity.xact_start
                limit 3
            ) as idle
        )
    """,
)


def notifications(patient: Patient) -> Finding:
    """Is there room in the queue of notifications?"""
    queue = patient.ask(LOOK_AT_QUEUE.query(read=one(_Queue)))
    found = f"{queue.usage:.0%} of their queue is in use"
    if queue.usage < 0.25:
        return ok(found)
    ends = [f"select pg_terminate_backend({pid});   -- idle in a transaction" for pid in queue.idle or ()]
    return (problem if queue.usage >= 0.9 else warning)(
        found,
        "Some session listens and stays in a transaction, so nothing can be removed behind it. Rota stops notifying at 90 %, "
        "and jobs are found by polling; where the queue is full, PostgreSQL refuses every commit of others that notifies.",
        *(ends or ["select pid, state, xact_start, query from pg_stat_activity order by xact_start;"]),
    )
