"""A round of the scheduler, made when a test asks for it."""

from __future__ import annotations

from rota.schedules.due import conclude, find_due, fire, release
from rota.schedules.plan import make_plan
from rota.testing import TestRota


def give_out(app: TestRota) -> int:
    """Draw conclusions, let begin what waits, give out what is due; returns how many runs that are."""
    database, given = app.database, 0
    database.run_sync(conclude(1000))
    given += database.run_sync(release(1000))
    due = database.run_sync(find_due(1000))
    fired = database.run_sync(fire([make_plan(each, lambda _: None) for each in due]))
    return given + sum(each.fired for each in fired)
