"""The guards of Rota, and for each the tests that must fail without it. `make teeth` tries them: see teeth.py."""

from __future__ import annotations

from tests.mutants import (
    changes,
    concurrency,
    doctor,
    due_rows,
    facts_told,
    health,
    kernel,
    leadership,
    lifecycle,
    limits,
    people,
    poller_checks,
    polls,
    queue,
    rounds,
    rows,
    schedules,
    timing,
    unique,
    web,
    worker,
)
from tests.mutants.mutant import PACKAGE, Mutant

__all__ = ["MUTANTS", "PACKAGE", "Mutant"]

MUTANTS = [
    *kernel.MUTANTS,
    *queue.MUTANTS,
    *unique.MUTANTS,
    *worker.MUTANTS,
    *people.MUTANTS,
    *concurrency.MUTANTS,
    *leadership.MUTANTS,
    *timing.MUTANTS,
    *schedules.MUTANTS,
    *changes.MUTANTS,
    *rounds.MUTANTS,
    *rows.MUTANTS,
    *poller_checks.MUTANTS,
    *due_rows.MUTANTS,
    *polls.MUTANTS,
    *lifecycle.MUTANTS,
    *doctor.MUTANTS,
    *health.MUTANTS,
    *facts_told.MUTANTS,
    *web.MUTANTS,
    *limits.MUTANTS,
]
