"""A run wakes a dormant schedule that follows its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.conversion.plain import dumps
from rota.errors import NotPossible, ScheduleNotFound
from rota.jobs.codec import Codec, decoded, encoded
from rota.jobs.given import plain_arguments
from rota.jobs.job import JobId
from rota.postgres.query import Steps, scalar, statement

__all__ = ["activate_schedule"]

READ_ARGS = statement(
    "read_schedule_args", "select known.args::text from {schema}.schedules as known where known.name = %(name)s"
)

ACTIVATE = statement(
    "activate_schedule",
    "select {schema}.activate_schedule(%(name)s::text, %(job)s::bigint, %(token)s::bigint, %(args)s::text::jsonb)",
)


def activate_schedule(
    name: str, args: Mapping[str, Any] | None, *, job: JobId, token: int, codec: Codec | None
) -> Steps[bool | None]:
    """Give the schedule a run with these arguments over its own. False if it has one already, is paused, has had its runs or
    is not in its time, None if the claim is lost. Raises ScheduleNotFound, NotPossible, InvalidArguments."""
    refused = f"Schedule {name!r} was not activated"
    whole: str | None = None
    if args is not None:
        given = plain_arguments(args, refused)
        stored: str | None = yield READ_ARGS.query({"name": name}, read=scalar)
        merged = plain_arguments({**decoded(codec, stored or "{}"), **given}, refused, secret=True)
        whole = encoded(codec, dumps(merged), refused, secret=True)
    came: str = yield ACTIVATE.query({"name": name, "job": job, "token": token, "args": whole}, read=scalar)
    if came == "unknown":
        raise ScheduleNotFound(f"{refused}: there is none of that name.")
    if came == "awake":
        raise NotPossible(f"{refused}: it is not dormant, so it runs by its own rules. Put it with dormant=True.")
    if came == "stranger":
        raise NotPossible(
            f"{refused}: it does not follow the schedule whose run job {job} is. Put it with after=<that schedule's name>."
        )
    return None if came == "lost" else came == "activated"
