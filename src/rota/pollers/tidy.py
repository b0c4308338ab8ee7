"""Forgetting what is remembered of rows that are gone."""

from __future__ import annotations

from rota.pollers.due import Plan
from rota.postgres.query import Query, scalar, statement

__all__ = ["tidy"]

_TIDY = """
    with stale as materialized (
        select rota_claim.poller, rota_claim.key
        from {schema}.poll_claims as rota_claim
        where rota_claim.poller = %(poller)s
          and rota_claim.member is null
          and not exists (
              select from {table} where {claim_row} and {wanted}
          )
        order by rota_claim.key
        limit %(most)s
        for update skip locked
    ), forgotten as (
        delete from {schema}.poll_claims as claim
        using stale
        where claim.poller = stale.poller
          and claim.key = stale.key
          and claim.member is null
        returning claim.key
    ), paces as (
        delete from {schema}.poll_intervals as pace
        where pace.ctid = any (array(
            select rota_pace.ctid
            from {schema}.poll_intervals as rota_pace
            where rota_pace.poller = %(poller)s
              and rota_pace.due_at < (select {schema}.now())
              and not exists (select from {table} where {pace_row})
            order by rota_pace.due_at
            limit %(most)s
            for update skip locked
        ))
        returning pace.key
    )
    select greatest((select count(*) from forgotten), (select count(*) from paces)) >= %(most)s
"""


def tidy(plan: Plan, most: int = 1000) -> Query[bool]:
    """Forget what is remembered of rows that are gone, or no longer in the state that they were polled for: no more than so many at
    once. Returns whether there may be more."""
    definition, shape = plan.definition, plan.shape
    tidying = statement(f"tidy_rows:{definition.name}", _TIDY).composed(
        plan.parts
        | {
            "claim_row": shape.is_row(definition.key, "rota_claim.key"),
            "pace_row": shape.is_row(definition.key, "rota_pace.key"),
            "wanted": f"({plan.parts['where']}\n)" if definition.form == "state" else "true",
        }
    )
    return tidying.query({"poller": definition.name, "most": most}, read=scalar)
