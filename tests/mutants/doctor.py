"""Guards of the doctor: what it bounds, and what it must not overlook."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DOCTOR = "tests/cli/test_doctor.py"


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
]
