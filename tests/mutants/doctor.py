"""Guards of the doctor: what it bounds, and what it must not overlook."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DOCTOR = "tests/cli/test_doctor.py"
PROJECTIONS = "tests/cli/test_doctor_projections.py"


def _mutant(what: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(what, f"runtime/doctor/{file}", old, new, DOCTOR)


MUTANTS = [
    _mutant("a doctor who asks a silent server again and again", "patient.py", "self._lost = error", "pass"),
    _mutant(
        "a doctor who takes a standby for no server",
        "patient.py",
        'return self._connector(dsn, "any").connect_sync()',
        "raise",
    ),
    _mutant("a doctor who waits for locks", "patient.py", '"lock_timeout": "500ms"', '"lock_timeout": "20s"'),
    _mutant("connections without a limit", "connections.py", "limit.most - limit.needed(most)", "-limit.most"),
    _mutant(
        "an invalid index taken for a sound one",
        "tables.py",
        "filter (where not index.indisvalid)",
        "filter (where false)",
    ),
    _mutant(
        "dead workers that know a task",
        "work.py",
        'if member.answers and "tasks" in member.work',
        'if "tasks" in member.work',
    ),
    _mutant("old code that knows a new version", "work.py", ">= waiting.version", ">= 0"),
    _mutant(
        "a server's own patience left out",
        "budgets.py",
        "max(self.drain_window + self.graceful_timeout, self.grace)",
        "self.grace",
    ),
    Mutant(
        "a doctor who shows what a projection's error says",
        "runtime/doctor/projections.py",
        "{view.name} ({view.error_type or 'unknown'})",
        "{view.name} ({view.error_message})",
        PROJECTIONS,
    ),
    Mutant(
        "a doctor who shows the statement of who holds the horizon",
        "runtime/doctor/projections.py",
        """({holder.state}, role""",
        """({holder.state} {holder.query}, role""",
        PROJECTIONS,
    ),
    Mutant(
        "a checkpoint of another server that the doctor overlooks",
        "runtime/doctor/projections.py",
        """      and greatest(
          projection.order_xid,
""",
        """      and greatest(
""",
        PROJECTIONS,
    ),
    Mutant(
        "a projection that hangs taken for one that is late",
        "runtime/doctor/projections.py",
        "if not view.failures and (view.progress_seconds or 0.0) > STALLED_SECONDS:",
        "if False:",
        PROJECTIONS,
    ),
    Mutant(
        "a scrape that counts all that waits for a projection",
        "projections/behind.py",
        """            order by event.{order_xid}, event.{position}
            limit %(most)s
""",
        """            order by event.{order_xid}, event.{position}
""",
        "tests/integrations/test_prometheus.py::test_projections_show_how_far_they_are_behind_their_state_and_what_is_parked",
    ),
]
