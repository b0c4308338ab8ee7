"""Which rows would be taken, and in which order: one text for whoever takes them and for whoever only wants to see them.

A row that waits for another attempt, or is parked, is passed over before the limit counts, so however many of them there are,
they take no place.

Names that begin with `rota_` are ours in these statements: those of the user's table stand beside them without a prefix.
"""

from __future__ import annotations

from rota.pollers.due import NOW, Plan, order_of

__all__ = ["CLOCK", "LOCK", "ROW", "look", "look_for_lost"]

#: Each statement begins with the time, so that all of it goes by one.
CLOCK = "with rota_clock as materialized (select {schema}.now() as rota_now),"
#: Lasts as long as the statement, and only spreads the workers: who finds a row taken looks at the next one.
LOCK = "for no key update skip locked"
ROW = "{key} as rota_key, {occurrence} as rota_occurrence, {columns}"

_PIECES = {
    "{row}": ROW,
    "{paused}": "(select {schema}.pollers.paused_at from {schema}.pollers where {schema}.pollers.name = %(poller)s) is not null",
    # nobody holds it, it does not wait, is not parked, and went down with no process
    "{free}": """not exists (
            select
            from {schema}.poll_claims as rota_claim
            where rota_claim.poller = %(poller)s
              and rota_claim.key = {key}
              and (
                  rota_claim.member is not null
                  or rota_claim.parked_at is not null
                  or rota_claim.retry_at > (select rota_clock.rota_now from rota_clock)
                  or rota_claim.losses > 0
              )
            -- asked for each row by its key: a join would be planned by statistics, which may say that there are no claims
            offset 0
        )""",
    "{unknown}": """not exists (
            select
            from {schema}.poll_intervals as rota_pace
            where rota_pace.poller = %(poller)s
              and rota_pace.key = {key}
        )""",
}


def _whole(text: str) -> str:
    for name, piece in _PIECES.items():
        text = text.replace(name, piece)
    return text


_NEVER = _whole("""
    rota_never as materialized (
        select {row}
        from {table}
        where ({where}
        )
          and {never}
          and not {paused}
          and {free}
        -- all are null: so that they are read from the index, and not among those that were polled
        order by {due_since}
        limit %(limit)s
        {lock}
    ),""")
_DUE = _whole("""
    rota_due as materialized (
        select {row}
        from {table}
        where ({where}
        )
          and {due}
          and not {paused}
          and {free}
        order by {order}
        limit %(limit)s {less}
        {lock}
    ),""")
# The pace of each row is in a table of ours, and with it when that row is due.
_PACED = _whole("""
    rota_paced as materialized (
        select rota_row.*
        from (
            select rota_pace.key as rota_paced_key
            from {schema}.poll_intervals as rota_pace
            where rota_pace.poller = %(poller)s
              and rota_pace.due_at <= (select rota_clock.rota_now from rota_clock)
              and not {paused}
            order by rota_pace.due_at
            -- read anew where someone has polled it meanwhile: the user's row does not tell that it is not due any more
            {lock}
        ) as rota_pace
        cross join lateral (
            select {row}
            from {table}
            where ({where}
            )
              and {paced_row}
              and not ({never})
              and {free}
            {lock}
        ) as rota_row
        limit %(limit)s - (select count(*) from rota_never)
    ),""")
_FOUND = """
    rota_found as (
        {found}
    )"""
_LOST = _whole("""
    rota_lost as materialized (
        select rota_row.*
        from (
            select rota_claim.key as rota_claimed_key
            from {schema}.poll_claims as rota_claim
            where rota_claim.poller = %(poller)s
              and rota_claim.member is null
              and rota_claim.parked_at is null
              and rota_claim.losses > 0
              and rota_claim.retry_at <= (select rota_clock.rota_now from rota_clock)
              and not {paused}
            order by rota_claim.retry_at
        ) as rota_claim
        cross join lateral (
            select {row}
            from {table}
            where ({where}
            )
              and {claimed_row}
              and {due}
            {lock}
        ) as rota_row
        limit %(limit)s
    )""")


def look(plan: Plan) -> tuple[str, dict[str, str]]:
    """The part of a statement that finds due rows, ending with `rota_found`, and what goes into it."""
    definition, parts = plan.definition, plan.parts | {"lock": LOCK}
    if definition.order_by is not None or plan.never is None:
        # All that is due is put in order, and how it is best read depends on how much that is. PostgreSQL can guess it by a time
        # that it knows when it plans; and where it cannot, it takes a range for little, and all before a moment for a third.
        now = plan.by.replace(NOW, "{schema}.now()")
        due = plan.when[0].replace("{due_since} <= {by}", f"{{due_since}} between '-infinity' and {now}")
        since = parts["keys"] if plan.due_since is None else plan.due_since
        parts |= {"order": order_of(plan, f"{since} nulls first" if plan.never else since), "less": ""}
        return _DUE.replace("{due}", due) + _found("rota_due"), parts
    parts["order"] = parts["due_since"]
    if not definition.own_pace:
        parts["less"] = "- (select count(*) from rota_never)"
        return _NEVER + _DUE.replace("{due}", "{due_since} <= {by}") + _found("rota_never", "rota_due"), parts
    parts |= {
        "paced_row": plan.shape.is_row(definition.key, "rota_pace.rota_paced_key"),
        "less": "- (select count(*) from rota_never) - (select count(*) from rota_paced)",
    }
    # last those of whose pace nothing is known
    due = _DUE.replace("{due}", _whole("{due_since} <= {by} and {unknown}"))
    return _NEVER + _PACED + due + _found("rota_never", "rota_paced", "rota_due"), parts


def look_for_lost(plan: Plan) -> tuple[str, dict[str, str]]:
    """The same for rows that went down with their process, as `rota_lost`."""
    claimed_row = plan.shape.is_row(plan.definition.key, "rota_claim.rota_claimed_key")
    return _LOST.replace("{due}", plan.when[0]), plan.parts | {"lock": LOCK, "claimed_row": claimed_row}


def _found(*looks: str) -> str:
    return _FOUND.replace("{found}", " union all ".join(f"table {name}" for name in looks))
