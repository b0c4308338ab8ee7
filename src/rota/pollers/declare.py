"""What a process that polls tells of its pollers, for people who do not have its code."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from rota.pollers.definition import PollerDefinition
from rota.postgres.query import Query, nothing, statement

__all__ = ["declare_pollers"]

DECLARE = statement(
    "declare_pollers",
    """
    insert into {schema}.pollers as poller (name, definition)
    select given.name, given.definition
    from unnest(%(names)s::text[], %(definitions)s::jsonb[]) as given (name, definition)
    order by given.name
    on conflict (name) do update
    set definition = excluded.definition,
        declared_at = excluded.declared_at
    -- two versions that run side by side need not tell each other off
    where poller.definition <> excluded.definition
    """,
)


def declare_pollers(definitions: Sequence[PollerDefinition]) -> Query[None]:
    """Say what they are; whether they are paused stays as it is."""
    return DECLARE.query(
        {
            "names": [definition.name for definition in definitions],
            "definitions": [Jsonb(definition.told()) for definition in definitions],
        },
        read=nothing,
    )
