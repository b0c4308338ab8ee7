"""A round of the scheduler, made when a test asks for it."""

from __future__ import annotations

from rota.postgres.query import scalar, statement
from rota.schedules.due import conclude, find_due, fire
from rota.schedules.plan import make_plan
from rota.testing import TestRota

GIVEN = statement("count_given", "select count(*) from {schema}.slots where job_id is not null")


def give_out(app: TestRota) -> int:
    """Draw conclusions, let begin what waits, give out what is due; returns how many runs that are."""
    database = app.database
    before = database.run_sync(GIVEN.query(read=scalar))
    database.run_sync(conclude(1000))
    begun: int = database.run_sync(GIVEN.query(read=scalar)) - before
    due = database.run_sync(find_due(1000))
    fired = database.run_sync(fire([make_plan(each, lambda _: None) for each in due]))
    return begun + sum(each.fired for each in fired)
