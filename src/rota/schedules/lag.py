"""Which schedules there are, and how late the scheduler is: for a probe that asks again and again."""

from __future__ import annotations

from rota.postgres.query import Query, scalar, statement

__all__ = ["schedule_lag", "schedule_names"]

# One entry of the index in which the scheduler itself looks.
LAG = statement(
    "schedule_lag",
    """
    select greatest(0, extract(epoch from {schema}.now() - (
        select known.next_at
        from {schema}.schedules as known
        where known.next_at is not null
          and known.paused_at is null
          and known.problem is null
        order by known.next_at, known.name
        limit 1
    )))::float8
    """,
)


def schedule_lag() -> Query[float]:
    """For how many seconds the schedule that is the longest overdue has been so; 0 while none is."""
    return LAG.query(read=lambda rows: scalar(rows) or 0.0)


NAMES = statement(
    "schedule_names",
    "select known.name from {schema}.schedules as known order by known.name limit %(most)s",
)


def schedule_names(*, most: int) -> Query[list[str]]:
    """The schedules there are, whoever declared or put them; no more than `most`, by their names."""
    return NAMES.query({"most": most}, read=lambda rows: [row[0] for row in rows])
