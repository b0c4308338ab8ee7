"""Builds of one version: the one that readers use, and one that replays the log beside it to take its place."""

from __future__ import annotations

from rota.errors import NotPossible
from rota.postgres.audit import record
from rota.postgres.notify import notify
from rota.postgres.query import Query, Steps, nothing, scalar, statement
from rota.projections.inspect import ProjectionView, show_builds
from rota.projections.operate import Asked, find_projection, hold_projection, told_of

__all__ = ["builds_to_read", "cancel_rebuild", "rebuild_projection"]

FIND_BUILDS = statement(
    "builds_to_read",
    """
    select projection.build
    from {schema}.projections as projection
    where projection.name = %(name)s
      and projection.version = %(version)s
      and projection.partition = %(partition)s
      and (
          projection.state <> 'retired'
          -- it may be resumed: someone has to notice
          or not exists (
              select
              from {schema}.projections as other
              where other.name = projection.name
                and other.version = projection.version
                and other.partition = projection.partition
                and (other.state <> 'retired' or other.build > projection.build)
          )
      )
    order by projection.build
    """,
)


def builds_to_read(name: str, version: int, partition: int) -> Query[list[int]]:
    """Those that someone has to read for: all that have not retired, and the last in any case."""
    params = {"name": name, "version": version, "partition": partition}
    return FIND_BUILDS.query(params, read=lambda rows: [build for (build,) in rows])


BEGIN_ANEW = statement(
    "begin_anew",
    """
    with emptied as (
        delete from {schema}.parked_events where projection = %(name)s and version = %(version)s and build = %(build)s
    )
    update {schema}.projections
    set order_xid = '0',
        position = -9223372036854775808,
        began_at = {schema}.now(),
        prepared_at = null,
        live_at = null,
        progress_at = null,
        failures = 0,
        state = 'running',
        state_at = {schema}.now(),
        state_by = null
    where name = %(name)s
      and version = %(version)s
      and build = %(build)s
    """,
)
# Those that are not live yet are given up: what they have is in tables of their own.
GIVE_UP_BUILDS = statement(
    "give_up_builds",
    """
    with given_up as (
        update {schema}.projections
        set state = 'retired',
            state_at = {schema}.now(),
            state_by = null
        where name = %(name)s
          and version = %(version)s
          and live_at is null
          and state <> 'retired'
        returning partition
    )
    select count(*) from given_up
    """,
)
ADD_BUILD = statement(
    "add_build",
    """
    insert into {schema}.projections (name, version, build, partition, partitions, definition)
    select
        known.name, known.version,
        (
            select max(last.build) + 1
            from {schema}.projections as last
            where last.name = known.name
              and last.version = known.version
        ),
        known.partition, known.partitions, known.definition
    from {schema}.projections as known
    where known.name = %(name)s
      and known.version = %(version)s
      and known.build = %(build)s
    """,
)


def rebuild_projection(asked: Asked, *, has_prepare: bool, takes_build: bool) -> Steps[ProjectionView]:
    """Begin with the first event, in tables that are made anew: a build beside the one that readers use, which is returned.

    A build that was under way is given up. One whose functions do not take a build begins anew itself; then NotPossible is raised for
    a version that readers use.
    """
    found = yield from hold_projection(asked)
    params = {"name": found.name, "version": found.version, "build": found.build}
    if takes_build:
        yield GIVE_UP_BUILDS.query(params, read=nothing)
        yield ADD_BUILD.query(params, read=nothing)
        builds: list[ProjectionView] = yield show_builds(found.name, found.version)
        found = max(builds, key=lambda each: each.build)
    elif found.live_at is not None or not has_prepare:
        why = (
            "readers use it" if found.live_at is not None else "it has no prepare=..., which would make its tables anew"
        )
        raise NotPossible(
            f"Version {found.version} of projection {found.name!r} cannot be rebuilt: {why}. Give it version={found.version + 1} in "
            "the code, with prepare=... and switch=..., and deploy that: it is built beside this one, and takes its place when it has "
            "caught up. If its function and these two take `build`, a number to name tables by, from then on this command does "
            "without a new version."
        )
    else:
        yield BEGIN_ANEW.query(params, read=nothing)
    yield record(asked.by, "projection.rebuild", told_of(asked, found) | {"build": found.build})
    yield notify(asked.channel, "")
    return found if takes_build else (yield from find_projection(asked))


def cancel_rebuild(asked: Asked) -> Steps[ProjectionView]:
    """Give up the build that is under way; the one that readers use is returned. Raises NotPossible when there are not both."""
    found = yield from hold_projection(asked)
    params = {"name": found.name, "version": found.version}
    given_up: int = 0 if found.live_at is None else (yield GIVE_UP_BUILDS.query(params, read=scalar))
    if not given_up:
        raise NotPossible(
            f"There is no rebuild of projection {found.name!r} to give up: no build of version {found.version} is under way beside "
            "one that readers use."
        )
    yield record(asked.by, "projection.cancel_rebuild", told_of(asked, found))
    yield notify(asked.channel, "")
    return found
