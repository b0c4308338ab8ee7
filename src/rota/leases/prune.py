"""Forgetting those who are gone: members, the terms they had, and what they waited for."""

from __future__ import annotations

from rota.postgres.query import Query, nothing, statement

__all__ = ["prune_leases"]

# What one round forgets: many times what comes between two rounds, and little enough to be over in a moment.
_BATCH = 5_000

PRUNE = statement(
    "prune_leases",
    """
    with old_members as (
        delete from {schema}.members
        where id = any (array(
            select member.id
            from {schema}.members as member
            where member.ended_at < statement_timestamp() - interval '1 day'
              -- of one that left by itself there is nothing to find out, and short programs come and go by the thousand
              and (member.end_reason = 'left' or member.ended_at < statement_timestamp() - interval '7 days')
              -- that it has ended is what lets another rescue the job
              and not exists (select from {schema}.jobs as job where job.state = 'running' and job.member = member.id)
              -- or the row
              and not exists (select from {schema}.poll_claims as claim where claim.member = member.id)
              -- and take the lease
              and not exists (select from {schema}.leases as lease where lease.member = member.id)
            limit %(limit)s
            for update of member skip locked
        ))
    ), old_names as (
        -- its epochs follow the clock, so a name that begins anew goes on above them
        delete from {schema}.leases
        where name = any (array(
            select lease.name
            from {schema}.leases as lease
            where lease.acquired_at < statement_timestamp() - interval '30 days'
              and (
                  (
                      lease.member is null
                      and not exists (
                          select
                          from {schema}.terms as term
                          where term.name = lease.name and term.ended_at >= statement_timestamp() - interval '30 days'
                      )
                  )
                  or exists (
                      select
                      from {schema}.members as last
                      where last.id = lease.member and last.ended_at < statement_timestamp() - interval '30 days'
                  )
              )
            limit %(limit)s
            -- whoever takes it just now has it
            for update of lease skip locked
        ))
        returning name
    ), old_terms as (
        delete from {schema}.terms
        where (name, epoch) in (
            select term.name, term.epoch
            from {schema}.terms as term
            where term.ended_at < statement_timestamp() - interval '30 days'
               -- of a leader that nobody has followed since it died
               or (term.ended_at is null and term.name in (select old_names.name from old_names))
            limit %(limit)s
            for update skip locked
        )
    ), old_wishes as (
        delete from {schema}.wishes
        where member = any (array(
            select wanted.member
            from {schema}.wishes as wanted
            where not exists (
                select from {schema}.members as member where member.id = wanted.member and member.ended_at is null
            )
              -- who was ended by its peers takes it along
              and wanted.asked_at < statement_timestamp() - interval '1 day'
            limit %(limit)s
            for update of wanted skip locked
        ))
    )
    delete from {schema}.standbys
    where (name, member) in (
        select standby.name, standby.member
        from {schema}.standbys as standby
        where not exists (select from {schema}.members as member where member.id = standby.member and member.ended_at is null)
        limit %(limit)s
        for update of standby skip locked
    )
    """,
)


def prune_leases(*, limit: int = _BATCH) -> Query[None]:
    """Forget members that ended a week ago, or left a day ago, and hold nothing; terms that ended a month ago, and names that
    nobody has led since; who waited and is gone; and what was wanted of those. At most so many of each, and never one that someone
    has locked."""
    return PRUNE.query({"limit": limit}, read=nothing)
