"""Whether there are connections enough for all who are here, at their busiest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.postgres.query import statement
from rota.postgres.vitals import connection_limits
from rota.runtime.doctor.finding import Finding, ok, problem, warning
from rota.runtime.doctor.patient import Patient

__all__ = ["connections"]

_FEW = 3  # free ones, below which the next process may find none


READ_WORK = statement(
    "read_work",
    """
    select member.work - 'tasks' - 'schedules' || jsonb_build_object('works', member.work ? 'tasks')
    from {schema}.members as member
    where member.ended_at is null
    """,
)


def connections(patient: Patient) -> Finding:
    """Are there connections enough for all who are here?"""
    works = patient.ask(READ_WORK.query(read=lambda rows: [row[0] for row in rows]))
    size = patient.app.settings.pool_size
    least, most = sum(map(_least, works)), sum(_most(work, size) for work in works)
    limits = patient.ask(connection_limits())
    tight = min(limits, key=lambda limit: limit.most - limit.needed(most))
    found = (
        f"{tight.used} of {tight.most} in use, {tight.ours} of them by Rota; its {len(works)} live process(es) keep {least} and may "
        f"open {most}"
    )
    # those who look or repair want one too
    enough = tight.needed(most) + _FEW
    mend = (
        f"{tight.raise_by} {enough};" + ("   -- then restart the server" if tight is limits[0] else ""),
        f"or fewer: Rota(pool_size=...) below {size}, a lower --concurrency, or workers behind a pooler",
    )
    if tight.most - tight.used < _FEW or tight.needed(least) > tight.most:
        return problem(
            found,
            "Hardly any is left. A process that finds none cannot renew its lease, and what it holds is given to others.",
            *mend,
        )
    # a pooler opens as many as it was told, whatever its clients do
    if patient.connection.direct and tight.needed(most) > tight.most:
        return warning(
            found,
            f"At their busiest they need {tight.needed(most)} with those of others, counting pool_size={size} for each of them; "
            "then new ones are refused.",
            *mend,
        )
    return ok(found)


def _least(work: Mapping[str, Any]) -> int:
    """What a process keeps: for control, and if it works for claiming and settling, and one of its pool."""
    return 4 if work["works"] else 1


def _most(work: Mapping[str, Any], pool_size: int) -> int:
    """What it opens at its busiest: upkeep, its pool, a transaction for each body; its pollers' looks, stamps and claims; its
    projections' looks, and a transaction for each partition."""
    if not work["works"]:
        return 1 + pool_size
    pollers = min(3, len(work.get("pollers") or ()))
    projecting = int(work.get("projecting") or 0)
    return 4 + pool_size + int(work.get("concurrency") or 0) + 3 * pollers + projecting
