"""Beginning a bulk: what it would concern, and writing down what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, NotPossible
from rota.jobs.bulk.action import Action, BulkAction, BulkOptions, read_action, read_options
from rota.jobs.bulk.fitting import FITTING, MOST, check_ids, fitting_params, written
from rota.jobs.bulk.view import Bulk, count_workers, get_bulk
from rota.jobs.inspect import database_time, get_job
from rota.jobs.job import Job, JobId, Owner
from rota.jobs.search import Floor, check_reach, find_floor
from rota.jobs.wanted import Wanted, placed
from rota.postgres.audit import record
from rota.postgres.notify import BULK, notify
from rota.postgres.query import Row, Steps, nothing, one, scalar, statement

__all__ = ["Asked", "BulkPreview", "preview_bulk", "read_asked", "start_bulk"]

_SAMPLES = 5
_FASTEST = 1_000_000.0
_LONGEST_UNDO = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """What a bulk would concern: `count` jobs, or as many at least unless that is `exact`, such as `samples`.

    `excluded` says how many that fit are left out, by why (see WORDS). Of those that it concerns, `for_good` are of a chain, a
    group or a schedule, and are not put back when it is undone. `workers` is how many processes there are that would run it.
    """

    action: str
    count: int
    exact: bool
    #: unless it is exact: nothing was counted that was enqueued before this
    searched_to: datetime | None
    samples: tuple[Job[Any], ...]
    excluded: dict[str, int]
    for_good: int
    #: what undoing means
    undo: str
    workers: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be done to which jobs, checked."""

    action: Action
    options: Mapping[str, Any]
    wanted: Wanted
    ids: Sequence[JobId] | None
    pace: float | None = None
    undo_for: float = 3600.0


def read_asked(
    action: BulkAction | str,
    options: BulkOptions,
    wanted: Wanted,
    ids: Any,
    pace: float | None = None,
    undo_for: Duration = "1h",
    *,
    whole: bool = True,
) -> Asked:
    """Refuse what cannot be meant. Raises ConfigurationError."""
    kind, named = read_action(action), check_ids(ids)
    if named is not None and wanted != Wanted(hiding=wanted.hiding):
        raise ConfigurationError("Jobs are named, or chosen by a filter: give ids, or filters, not both.")
    if pace is not None and (
        not isinstance(pace, int | float) or isinstance(pace, bool) or not 0.01 <= pace <= _FASTEST
    ):
        raise ConfigurationError(f"pace cannot be {pace!r}: it is how many jobs a second, from 0.01 to {_FASTEST:g}.")
    window = seconds(undo_for, "undo_for")
    if not 0 <= window <= _LONGEST_UNDO:
        raise ConfigurationError(f"undo_for cannot be {undo_for!r}: what was done is remembered for 30 days at most.")
    return Asked(kind, read_options(kind, options, whole=whole), wanted, named, pace, window)


_COUNTED = """
    select
        (select count(*)::integer from fitting where fitting.why is null),
        (select count(*)::integer from fitting where fitting.why is null and fitting.chained),
        (
            select coalesce(jsonb_object_agg(left_out.why, left_out.jobs), '{}')
            from (
                select fitting.why, count(*) as jobs from fitting where fitting.why is not null group by fitting.why
            ) as left_out
        ),
        array(select fitting.id from fitting where fitting.why is null order by fitting.id desc limit %(samples)s)
"""

COUNT = {
    (how, error): statement(f"count_bulk_{how}{'_failed' if error else ''}", fitting + _COUNTED)
    for (how, error), fitting in FITTING.items()
}


def preview_bulk(asked: Asked, app: Owner, reach: int) -> Steps[BulkPreview]:
    """What it would concern. Looks at no more than `reach` jobs of each table, the newest."""
    check_reach(reach)
    return _preview(asked, app, reach)


def _preview(asked: Asked, app: Owner, reach: int) -> Steps[BulkPreview]:
    asked, place = yield from _meant(asked)
    params = {**fitting_params(asked.action, asked.options, asked.wanted, asked.ids), **place, "samples": _SAMPLES}
    floor: Floor = Floor() if asked.ids is not None else (yield find_floor({**params, "window": reach}))
    count, for_good, excluded, ids = yield _counting(asked).query({**params, "floor": floor.id}, read=one(_whole))
    samples = []
    for each in ids:
        samples.append((yield get_job(each, app)))
    workers = yield count_workers()
    return BulkPreview(
        asked.action.name,
        count,
        not floor.id,
        floor.at if floor.id else None,
        tuple(job for job in samples if job is not None),
        excluded,
        for_good,
        asked.action.undo,
        workers,
    )


def _whole(*row: Any) -> Row:
    return row


def _counting(asked: Asked) -> Any:
    return COUNT["walked" if asked.ids is None else "named", asked.wanted.error is not None]


def _meant(asked: Asked) -> Steps[tuple[Asked, dict[str, Any]]]:
    """The same with points in time for how long ago or how much later, and the place from which the walk begins."""
    wanted, place = yield from placed(asked.wanted)
    options = dict(asked.options)
    if "delay" in options:
        now: datetime = yield database_time()
        options["at"] = (yield AFTER.query({"now": now, "delay": options.pop("delay")}, read=scalar)).isoformat()
    return replace(asked, wanted=wanted, options=options), place


AFTER = statement("tell_later", "select %(now)s::timestamptz + %(delay)s::float8 * interval '1 second'")

MAKE = statement(
    "make_bulk",
    """
    insert into {schema}.bulks (action, filter, options, actor, undo_until, pace, total)
    values (
        %(action)s, %(filter)s, %(options)s, %(actor)s, {schema}.now() + %(undo_for)s::float8 * interval '1 second', %(pace)s, 0
    )
    returning id
    """,
)

# One statement sees everything as it is at one moment: what comes to fit afterwards is not among them.
_GATHERED = """
    , gathered as (
        insert into {schema}.bulk_jobs (bulk, job)
        select %(bulk)s, fitting.id
        from fitting
        where fitting.why is null
        limit %(most)s + 1
        returning job
    )
    select
        (select count(*)::integer from gathered),
        (
            select coalesce(jsonb_object_agg(left_out.why, left_out.jobs), '{}')
            from (
                select fitting.why, count(*) as jobs from fitting where fitting.why is not null group by fitting.why
            ) as left_out
        )
"""

GATHER = {
    (how, error): statement(f"gather_bulk_{how}{'_failed' if error else ''}", fitting + _GATHERED)
    for (how, error), fitting in FITTING.items()
}

GATHERED = statement(
    "set_bulk_total",
    """
    update {schema}.bulks
    set total = %(total)s,
        excluded = %(excluded)s
    where id = %(bulk)s
    """,
)


def start_bulk(asked: Asked, by: str, channel: str) -> Steps[Bulk]:
    """Write down what fits now, and have workers begin. Raises NotPossible if nothing is concerned, or too much."""
    asked, place = yield from _meant(asked)
    bulk: int = yield MAKE.query(
        {
            "action": asked.action.name,
            "filter": None if asked.ids is not None else Jsonb(written(asked.wanted)),
            "options": Jsonb(asked.options),
            "actor": by,
            "undo_for": asked.undo_for,
            "pace": asked.pace,
        },
        read=scalar,
    )
    gather = GATHER["walked" if asked.ids is None else "named", asked.wanted.error is not None]
    params = {**fitting_params(asked.action, asked.options, asked.wanted, asked.ids), **place}
    total, excluded = yield gather.query({**params, "floor": 0, "bulk": bulk, "most": MOST}, read=one(_whole))
    if total > MOST:
        raise NotPossible(
            f"More than {MOST:,} jobs fit, which is more than one bulk changes. Choose fewer, such as those of one task or one day."
        )
    if not total:
        left_out = f" {sum(excluded.values())} fit and are left out." if excluded else ""
        raise NotPossible(
            f"There is no job to {asked.action.name.replace('_', ' ')} among those that fit.{left_out} The preview tells why: "
            f"app.bulk.preview({asked.action.name!r}, ...)."
        )
    yield GATHERED.query({"bulk": bulk, "total": total, "excluded": Jsonb(excluded)}, read=nothing)
    yield record(by, "bulk.start", {"bulk": bulk, "action": asked.action.name, "jobs": total, **_on_record(asked)})
    yield notify(channel, BULK)
    return (yield from get_bulk(bulk))


def _on_record(asked: Asked) -> dict[str, Any]:
    """What it was asked for by, without values of arguments and what an error says, which may quote them: entries outlive what they
    tell of."""
    if asked.ids is not None:
        return {"named": len(asked.ids), "options": dict(asked.options)}
    told = {name: value for name, value in written(asked.wanted).items() if name not in ("paths", "values", "hiding")}
    if asked.wanted.error is not None:
        told["error"] = True
    if asked.wanted.paths:
        told["args"] = [path.replace("\x1f", ".") for path in asked.wanted.paths]
    return {"filter": told, "options": dict(asked.options)}
