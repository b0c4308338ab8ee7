"""What keeps PostgreSQL from cleaning up. A queue makes dead rows with each job, so it feels that first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rota.postgres import vitals
from rota.postgres.query import identifier, many, one, statement
from rota.runtime.doctor.finding import Finding, note, ok, problem, warning
from rota.runtime.doctor.patient import Patient

__all__ = [
    "autovacuum",
    "dead_rows",
    "old_transactions",
    "prepared_transactions",
    "replication_slots",
    "transaction_ids",
]

_PINNED = "Rows that died since then cannot be removed, and every claim walks past more and more of them."
_MANY_DEAD = 100_000
_HALF_OF_IDS, _MOST_IDS = 1_000_000_000, 1_600_000_000  # PostgreSQL stops taking writes at about 2.1 billion


def old_transactions(patient: Patient) -> Finding:
    """Does an old transaction keep dead rows alive?"""
    found = patient.ask(vitals.old_transactions(patient.old_transaction, limit=5))
    if not found:
        role, sees_all = patient.ask(vitals.sees_all_sessions())
        if not sees_all:
            return note(
                f"none of role {role} is older than {patient.old_transaction:g} s; it is not shown those of others",
                "PostgreSQL tells only some roles what the sessions of others do.",
                f"grant pg_read_all_stats to {identifier(role)};",
            )
        return ok(f"none is older than {patient.old_transaction:g} s")
    told = "; ".join(
        f"pid {each.pid} ({each.application}, role {each.role}) is {each.state}, in its transaction for {each.seconds:.0f} s and in "
        f"its last statement since {each.statement_seconds:.0f} s"
        for each in found
    )
    # what others ask may hold what is not for everyone who reads this: whoever may know it can look
    pids = ", ".join(str(each.pid) for each in found)
    return warning(
        told,
        _PINNED,
        f"select pid, query from pg_stat_activity where pid in ({pids});   -- what it does",  # noqa: S608 - to be read
        *(f"select pg_terminate_backend({each.pid});" for each in found),
    )


class _Prepared(NamedTuple):
    gid: str
    owner: str
    database: str
    seconds: float


FIND_PREPARED = statement(
    "find_prepared_transactions",
    """
    select prepared.gid, prepared.owner, prepared.database, extract(epoch from clock_timestamp() - prepared.prepared)::float8
    from pg_prepared_xacts as prepared
    where prepared.prepared < clock_timestamp() - make_interval(secs => %(seconds)s)
    order by prepared.prepared
    limit 5
    """,
)


def prepared_transactions(patient: Patient) -> Finding:
    """Was a prepared transaction forgotten?"""
    found = patient.ask(FIND_PREPARED.query({"seconds": patient.old_transaction}, read=many(_Prepared)))
    if not found:
        return ok("none was left")
    told = "; ".join(f"{each.gid!r} of {each.owner} in {each.database}, for {each.seconds:.0f} s" for each in found)
    return warning(
        told,
        f"It outlives its session and every restart, and holds its locks. {_PINNED}",
        *(f"rollback prepared {_literal(each.gid)};   -- in {each.database}; or commit prepared" for each in found),
    )


class _Slot(NamedTuple):
    name: str
    kept: str
    pins: bool


FIND_SLOTS = statement(
    "find_idle_slots",
    """
    select
        slot.slot_name, coalesce(pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), slot.restart_lsn)), 'no log'),
        slot.xmin is not null or slot.catalog_xmin is not null
    from pg_replication_slots as slot
    where not slot.active
      -- one that was made for later keeps nothing yet
      and slot.restart_lsn is not null
    order by slot.restart_lsn
    limit 5
    """,
)


def replication_slots(patient: Patient) -> Finding:
    """Does a replication slot that nobody reads keep things?"""
    found = patient.ask(FIND_SLOTS.query(read=many(_Slot)))
    if not found:
        return ok("none is left unread")
    told = "; ".join(f"nobody reads {each.name}, which keeps {each.kept} of the write-ahead log" for each in found)
    return warning(
        told,
        "The log grows until the disk is full." + (f" {_PINNED}" if any(each.pins for each in found) else ""),
        *(
            f"select pg_drop_replication_slot({_literal(each.name)});   -- if its reader is gone for good"
            for each in found
        ),
    )


def transaction_ids(patient: Patient) -> Finding:
    """How far is the server from running out of transaction ids?"""
    ids = patient.ask(vitals.oldest_ids())
    found = f"the oldest in use is {ids.age:,} transactions old (database {ids.database})"
    if ids.age < _HALF_OF_IDS:
        return ok(found)
    return (problem if ids.age >= _MOST_IDS else warning)(
        found,
        f"Vacuum should have frozen it at {ids.autovacuum_at:,}; at about 2.1 billion PostgreSQL takes no more writes. "
        "Something keeps vacuum from finishing: an old transaction, a slot, or that it is off.",
        f'vacuumdb --freeze --jobs 2 "{ids.database}"',
    )


class _Vacuum(NamedTuple):
    on: bool
    counts: bool
    excluded: Sequence[str]


LOOK_AT_VACUUM = statement(
    "look_at_vacuum",
    """
    select
        current_setting('autovacuum')::boolean, current_setting('track_counts')::boolean,
        array(
            select format('%%I.%%I', namespace.nspname, class.relname)
            from pg_class as class
            join pg_namespace as namespace on namespace.oid = class.relnamespace
            cross join lateral unnest(class.reloptions) as given(entry)
            where namespace.nspname = %(schema)s
              and given.entry ~ '^autovacuum_enabled=(false|off|no|0)$'
            order by 1
        )
    """,
)


def autovacuum(patient: Patient) -> Finding:
    """Does anyone remove dead rows?"""
    vacuum = patient.ask(LOOK_AT_VACUUM.query({"schema": patient.schema}, read=one(_Vacuum)))
    off = [name for name, on in (("autovacuum", vacuum.on), ("track_counts", vacuum.counts)) if not on]
    if off:
        return problem(
            f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off",
            "Nobody removes the rows that each job leaves behind: claims get slower, tables grow, and in the end the server runs "
            "out of transaction ids.",
            *(f"alter system reset {name};" for name in off),
            "select pg_reload_conf();",
        )
    if vacuum.excluded:
        return problem(
            f"it is off for {', '.join(vacuum.excluded)}",
            "Nobody removes the rows that jobs leave behind there.",
            *(f"alter table {table} reset (autovacuum_enabled);" for table in vacuum.excluded),
        )
    return ok("on")


class _Table(NamedTuple):
    name: str
    live: int
    dead: int
    vacuumed: float | None


FIND_DEAD_ROWS = statement(
    "find_dead_rows",
    """
    select
        format('%%I.%%I', stat.schemaname, stat.relname), stat.n_live_tup, stat.n_dead_tup,
        extract(epoch from clock_timestamp() - greatest(stat.last_vacuum, stat.last_autovacuum))::float8
    from pg_stat_user_tables as stat
    where stat.schemaname = %(schema)s
      and stat.n_dead_tup > %(many)s
      and stat.n_dead_tup > stat.n_live_tup
    order by stat.n_dead_tup desc
    limit 3
    """,
)


def dead_rows(patient: Patient) -> Finding:
    """Do our tables hold more dead rows than live ones?"""
    found = patient.ask(FIND_DEAD_ROWS.query({"schema": patient.schema, "many": _MANY_DEAD}, read=many(_Table)))
    if not found:
        return ok("our tables are clean enough")
    told = "; ".join(
        f"{each.name} has about {each.dead:,} dead rows beside {each.live:,}, and was vacuumed "
        + ("never" if each.vacuumed is None else f"{each.vacuumed:.0f} s ago")
        for each in found
    )
    return note(
        told,
        "Claims walk past them. Autovacuum removes them when nothing holds it back: see the other lines about transactions.",
        *(f"vacuum (analyze) {each.name};" for each in found),
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
