"""What there is to see to beside jobs, found in one read: a worker that is idle asks for it every few seconds, and mostly there is
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from rota.postgres.query import Query, Row, statement

__all__ = ["ANY_CHORES", "Chores", "find_chores"]


@dataclass(frozen=True, slots=True)
class Chores:
    """Whether ended members have left jobs behind, whether something that nobody runs is marked to end, whether batches have lost
    jobs, whether there is a bulk that nobody is at; and the tokens of all claims that this member has according to the database."""

    lost: bool
    cancelled: bool
    closings: bool
    bulks: bool
    held: frozenset[int]


_LOST = """
        exists (
            select
            from {schema}.members as member
            -- from those that ended, who are few, to what they hold; the other way would be all that runs
            cross join lateral (
                select from {schema}.jobs as job where job.state = 'running' and job.member = member.id limit 1
            ) as held
            where member.ended_at is not null
        )
"""
_CANCELLED = """
        exists (select from {schema}.jobs as job where job.cancel_requested_at is not null and job.state <> 'running')
"""
_CLOSINGS = """
        exists (select from {schema}.closings)
"""
_BULKS = """
        exists (
            select
            from {schema}.bulks as bulk
            where bulk.state in ('running', 'undoing')
              and bulk.not_before <= statement_timestamp() - interval '2 seconds'
        )
"""
_HELD = """
        (select array_agg(distinct job.token) from {schema}.jobs as job where job.state = 'running' and job.member = %(member)s)
"""
FIND_CHORES = statement("find_chores", "select" + ",".join([_LOST, _CANCELLED, _CLOSINGS, _BULKS, _HELD]))
#: Whether a member that holds nothing has any of them to see to: that it has something all the same would be one.
ANY_CHORES = "(" + "or".join([_LOST, _CANCELLED, _CLOSINGS, _BULKS, _HELD + "is not null"]) + ")"


def find_chores(member: UUID) -> Query[Chores]:
    """What there is to see to, by whoever comes first, and what this member holds. Changes nothing, and waits for nobody."""

    def read(rows: list[Row]) -> Chores:
        ((lost, cancelled, closings, bulks, held),) = rows
        return Chores(lost, cancelled, closings, bulks, frozenset(held or ()))

    return FIND_CHORES.query({"member": member}, read=read)  # type: ignore[arg-type]
