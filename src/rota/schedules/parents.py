"""Who follows whom: written, and kept free of circles and of parents that do not exist."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rota.errors import ConfigurationError
from rota.postgres.query import Query, Row, Steps, nothing, statement

__all__ = ["check_parents", "find_children", "find_circle", "write_parents"]

WRITE_PARENTS = statement(
    "write_parents",
    """
    with said as materialized (
        select said.child, said.parent
        from jsonb_to_recordset(%(edges)s::text::jsonb) as said(child text, parent text)
    ), gone as (
        delete from {schema}.schedule_parents as edge
        where edge.child = any (%(children)s::text[])
          and not exists (select from said where said.child = edge.child and said.parent = edge.parent)
    ), uneaten as (
        delete from {schema}.schedule_feed as feed
        where feed.child = any (%(children)s::text[])
          and not exists (select from said where said.child = feed.child and said.parent = feed.parent)
    )
    insert into {schema}.schedule_parents (child, parent)
    select said.child, said.parent from said
    on conflict do nothing
    """,
)


def write_parents(parents: Mapping[str, Sequence[str]]) -> Query[None]:
    """Have these children follow these parents and no others."""
    edges = [{"child": child, "parent": parent} for child in parents for parent in parents[child]]
    return WRITE_PARENTS.query({"children": list(parents), "edges": json.dumps(edges)}, read=nothing)


FIND_MISSING = statement(
    "find_missing_parents",
    """
    select edge.child, edge.parent
    from {schema}.schedule_parents as edge
    where edge.child = any (%(children)s::text[])
      and not exists (select from {schema}.schedules as known where known.name = edge.parent)
    order by edge.child, edge.parent
    """,
)


def find_missing(children: Sequence[str]) -> Query[list[tuple[str, str]]]:
    """Children and the parents of theirs that do not exist."""
    return FIND_MISSING.query({"children": list(children)}, read=_pairs)


FIND_CHILDREN = statement(
    "find_children",
    """
    select edge.child
    from {schema}.schedule_parents as edge
    where edge.parent = %(parent)s
    order by edge.child
    """,
)


def find_children(parent: str) -> Query[list[str]]:
    """Who follows it."""
    return FIND_CHILDREN.query({"parent": parent}, read=lambda rows: [row[0] for row in rows])


FIND_EDGES = statement(
    "find_ancestors",
    """
    with recursive above(child, parent) as (
        select edge.child, edge.parent
        from {schema}.schedule_parents as edge
        where edge.child = any (%(children)s::text[])
        -- each edge once, whatever the ways to it: a circle ends here too
        union
        select edge.child, edge.parent
        from above
        join {schema}.schedule_parents as edge on edge.child = above.parent
    )
    select above.child, above.parent from above
    """,
)


def find_edges(children: Sequence[str]) -> Query[list[tuple[str, str]]]:
    """Who follows whom, from these children up."""
    return FIND_EDGES.query({"children": list(children)}, read=_pairs)


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in rows]


def check_parents(children: Sequence[str]) -> Steps[None]:
    """Refuse parents that do not exist, and circles."""
    if not children:
        return
    missing: list[tuple[str, str]] = yield find_missing(children)
    if missing:
        told = "; ".join(f"{child!r} after {parent!r}" for child, parent in missing[:10])
        raise ConfigurationError(
            f"Nothing was put: there is no such schedule to follow: {told}. Put the parents first, or in the same put_many."
        )
    edges: list[tuple[str, str]] = yield find_edges(children)
    if circle := find_circle(edges):
        raise ConfigurationError(
            f"Nothing was put: these schedules would wait for each other in a circle: {' -> '.join(circle)}. Leave out one after=."
        )


def find_circle(edges: Sequence[tuple[str, str]]) -> list[str] | None:
    """A way along (child, parent) edges that comes back to where it began, from parent to child; None if there is none."""
    children: dict[str, list[str]] = {}
    for child, parent in sorted(edges):
        children.setdefault(parent, []).append(child)
    done: set[str] = set()
    for start in sorted(children):
        way: list[str] = []
        on_way: set[str] = set()
        ahead: list[tuple[str, bool]] = [(start, False)]
        while ahead:
            name, is_left = ahead.pop()
            if is_left:
                on_way.discard(way.pop())
                done.add(name)
            elif name in on_way:
                return [*way[way.index(name) :], name]
            elif name not in done:
                way.append(name)
                on_way.add(name)
                ahead.append((name, True))
                ahead += [(child, False) for child in reversed(children.get(name, ()))]
    return None
