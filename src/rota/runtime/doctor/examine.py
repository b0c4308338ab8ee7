"""All checks in their order, each for itself: one that cannot be made says so, and the next one follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg

from rota.errors import ConfigurationError, DatabaseUnavailable, RotaError
from rota.runtime.doctor import connections, drain, flow, machine, projections, server, settings, tables, upkeep, work
from rota.runtime.doctor.finding import Finding, problem, unknown
from rota.runtime.doctor.patient import NoServer, Patient

__all__ = ["Diagnosis", "examine"]

Check = Callable[[Patient], Finding]

_MACHINE: Sequence[Check] = (
    machine.python,
    machine.driver,
    machine.event_loop,
    machine.open_files,
    machine.embedded_server,
    work.app,
    drain.drain_window,
    drain.termination_grace,
)
_SERVER: Sequence[Check] = (
    server.encryption,
    server.latency,
    server.version,
    server.writable,
    server.pooler,
    server.listening,
    server.notifications,
    server.clock,
    settings.durability,
    settings.isolation,
    settings.timeouts,
    upkeep.old_transactions,
    upkeep.prepared_transactions,
    upkeep.replication_slots,
    upkeep.transaction_ids,
    upkeep.autovacuum,
)
_TABLES: Sequence[Check] = (
    tables.grants,
    tables.identity,
    tables.indexes,
    upkeep.dead_rows,
    connections.connections,
    work.members,
    work.queued_jobs,
    flow.paused_queues,
    flow.lines,
    work.dead_letters,
    work.schedules,
    work.pollers,
    projections.projections,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings in the order in which they were made."""

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 if nothing is a problem; 4 when the database is out of reach, 5 when its tables do not fit, 6 for all else."""
        bad = {finding.check for finding in self.findings if finding.grade == "problem"}
        return 4 if "connection" in bad else 5 if "schema" in bad else 6 if bad else 0


def examine(patient: Patient) -> Diagnosis:
    """Make every check. Raises nothing, and changes nothing."""
    began = time.monotonic()
    try:
        findings = tuple(_all(patient))
    finally:
        patient.close()
    return Diagnosis(findings, time.monotonic() - began)


def _all(patient: Patient) -> Iterator[Finding]:
    for check in _MACHINE:
        yield _made(check, patient)
    connected = _made(server.connection, patient)
    yield connected
    if connected.grade != "ok":
        yield from _left_out((*_SERVER, tables.schema, *_TABLES), "there is no connection")
        return
    for check in _SERVER:
        yield _made(check, patient)
    schema = _made(tables.schema, patient)
    yield schema
    if schema.grade == "problem":
        yield from _left_out(_TABLES, "the tables are not those this release works with")
        return
    for check in _TABLES:
        yield _made(check, patient)


def _made(check: Check, patient: Patient) -> Finding:
    try:
        finding = check(patient)
    except NoServer as error:
        finding = unknown(
            str(error), "Whatever uses it starts it; the doctor does not.", f"{patient.program} postgres start"
        )
    except (DatabaseUnavailable, ConfigurationError) as error:
        made = problem if check is server.connection else unknown
        finding = made(str(error), "Nothing works without it." if made is problem else "", *_ways_to(check, patient))
    except (RotaError, psycopg.Error) as error:
        finding = unknown(" ".join(str(error).split()))
    except Exception as error:  # a fault of ours in one check must not hide what the others find
        finding = unknown(f"this check failed: {type(error).__name__}: {error}")
    # what an error says to type is said for those who have the `rota` command
    found = finding.found.replace("`rota ", f"`{patient.program} ")
    return replace(finding, check=check.__name__, found=found)


def _ways_to(check: Check, patient: Patient) -> Sequence[str]:
    if check is not server.connection:
        return ()
    if patient.brings_app and not patient.named:
        return ("pg_isready -d ADDRESS", "mend the address in the project's settings")
    return ("pg_isready -d ADDRESS", f"{patient.program} doctor --dsn postgresql://user:password@host:5432/database")


def _left_out(checks: Sequence[Check], why: str) -> Iterator[Finding]:
    for check in checks:
        yield replace(unknown(why), check=check.__name__)
