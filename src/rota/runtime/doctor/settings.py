"""What the database or the role is told that Rota, or the user's own statements beside it, must live with."""

from __future__ import annotations

from collections.abc import Sequence

from rota.postgres.query import Query, statement
from rota.runtime.doctor.finding import Finding, note, ok, warning
from rota.runtime.doctor.patient import Patient

__all__ = ["durability", "isolation", "timeouts"]

READ_DEFAULTS = statement(
    "read_defaults",
    # what a session begins with, whatever was set in this one
    "select name, reset_val from pg_settings where name = any (%(names)s::text[])",
)


def _defaults(names: Sequence[str]) -> Query[dict[str, str]]:
    return READ_DEFAULTS.query({"names": list(names)}, read=lambda rows: {row[0]: row[1] for row in rows})


FIND_RESETS = statement(
    "find_resets",
    """
    select
        case
            when said.setrole = 0 and said.setdatabase = 0 then format('alter role all reset %%s;', name)
            when said.setrole = 0 then format('alter database %%I reset %%s;', current_database(), name)
            when said.setdatabase = 0 then format('alter role %%I reset %%s;', session_user, name)
            else format('alter role %%I in database %%I reset %%s;', session_user, current_database(), name)
        end
    from pg_db_role_setting as said
    cross join lateral unnest(said.setconfig) as given(entry)
    cross join lateral split_part(given.entry, '=', 1) as name
    where name = any (%(names)s::text[])
      and said.setdatabase in (0, (select oid from pg_database where datname = current_database()))
      and said.setrole in (0, (select oid from pg_roles where rolname = session_user))
    """,
)


def _resets(patient: Patient, names: Sequence[str]) -> list[str]:
    """The statements that take these settings back."""
    found: list[str] = patient.ask(
        FIND_RESETS.query({"names": list(names)}, read=lambda rows: [row[0] for row in rows])
    )
    return found or [*(f"alter system reset {name};" for name in names), "select pg_reload_conf();"]


def durability(patient: Patient) -> Finding:
    """Does what was committed survive a crash?"""
    given = patient.ask(_defaults(["fsync", "full_page_writes", "synchronous_commit"]))
    off = [name for name in ("fsync", "full_page_writes") if given[name] == "off"]
    if off:
        return warning(
            f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off",
            "When the machine of the server crashes, the whole database may be damaged. Right for tests only.",
            *(f"alter system reset {name};" for name in off),
            "select pg_reload_conf();",
        )
    if given["synchronous_commit"] == "off":
        return warning(
            "synchronous_commit is off",
            "When the server crashes, the last commits are gone: enqueued jobs may be lost, and jobs that were done run again.",
            *_resets(patient, ["synchronous_commit"]),
        )
    return ok(f"fsync on, synchronous_commit {given['synchronous_commit']}")


def isolation(patient: Patient) -> Finding:
    """At which level do transactions begin?"""
    level = patient.ask(_defaults(["default_transaction_isolation"]))["default_transaction_isolation"]
    if level == "read committed":
        return ok(level)
    direct = patient.connection.direct
    return (note if direct else warning)(
        f"transactions begin at {level}",
        "Rota's own run at read committed"
        + (
            "; yours, in job.transaction() and beside it, may be refused for what others do at the same time, and must be repeated."
            if direct
            else ", which behind a pooler takes three more round trips for each statement."
        ),
        *_resets(patient, ["default_transaction_isolation"]),
    )


# What Rota gives its own sessions, in milliseconds; 0 is no limit.
_OURS = {"statement_timeout": 30_000, "lock_timeout": 10_000, "transaction_timeout": 0, "idle_session_timeout": 0}


def timeouts(patient: Patient) -> Finding:
    """Are statements given enough time?"""
    given = {name: int(value) for name, value in patient.ask(_defaults(list(_OURS))).items()}
    short = {name: limit for name, limit in given.items() if limit and not 0 < _OURS[name] <= limit}
    if not short:
        return ok("none is shorter than Rota's own")
    direct = patient.connection.direct
    found = ", ".join(f"{name} is {limit / 1000:g} s" for name, limit in sorted(short.items()))
    return (note if direct else warning)(
        found,
        "Rota's own sessions have limits of their own; but your statements in job.transaction(), and a pool of yours, have these."
        if direct
        else "Behind a pooler Rota sets its own in a block around each statement, which takes three more round trips.",
        *_resets(patient, sorted(short)),
    )
