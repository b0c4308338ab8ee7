"""Which jobs a bulk concerns: those that fit, told apart by whether the action means anything to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rota.errors import ConfigurationError
from rota.jobs.bulk.action import Action
from rota.jobs.inspect import check_id
from rota.jobs.job import JobId
from rota.jobs.wanted import DEAD_FITTING, LIVE_FITTING, SETTLED_FITTING, Wanted

__all__ = ["FITTING", "MOST", "check_ids", "fitting_params", "thawed", "written"]

#: What one bulk may concern; and what one may name.
MOST = 1_000_000
_MOST_NAMED = 10_000

# An action means nothing to a job for one of these reasons; null says that it does.
_LIVE = """
        select
            job.id, job.state,
            case
                when job.state = 'running' then 'running'
                when %(action)s = 'acknowledge' then 'live'
                when %(action)s = 'retry' and job.state = 'blocked' and job.after is not null then 'blocked'
                when %(action)s = 'retry' and job.state = 'blocked' and job.due_at <= (select {schema}.now()) then 'blocked'
                when %(action)s = 'retry' and job.due_at <= (select {schema}.now()) then 'due'
                when %(action)s = 'move' and job.queue = %(to)s::text then 'there'
                when %(action)s = 'prioritise' and job.priority = %(priority)s::integer then 'there'
                when %(action)s = 'put_off' and job.due_at >= %(at)s::timestamptz then 'there'
            end as why,
            %(action)s in ('cancel', 'discard') and num_nonnulls(job.batch_id, job.after, job.schedule) > 0 as chained
        from {schema}.jobs as job
"""
_SETTLED = """
        select
            job.id, job.state,
            case when %(action)s::text <> 'retry' then 'settled' when not %(repeats)s then 'repeated' end,
            false
        from {schema}.history as job
"""
_DEAD = """
        select
            job.id, 'dead',
            case when %(action)s not in ('retry', 'discard', 'acknowledge') then 'dead' end,
            job.batch_id is not null or (%(action)s = 'discard' and job.schedule is not null)
        from {schema}.dead as job
"""

_WALKED = "where job.id >= %(floor)s and job.id < %(before)s"
_NAMED = "where job.id = any (%(ids)s::bigint[])"

# All of them at once, as a set to look into: to ask row by row would be to ask for each job of the history.
_FAILED = """
          and job.id in (
              select attempt.job_id
              from {schema}.attempts as attempt
              where strpos(lower(concat_ws(': ', attempt.error_type, attempt.error_message)), lower(%(error)s::text)) > 0
          )
"""
# the dead keep their last error themselves, as attempts are dropped by age
_DIED = """
          and (
              strpos(lower(concat_ws(': ', job.error_type, job.error_message)), lower(%(error)s::text)) > 0
              or job.id in (
                  select attempt.job_id
                  from {schema}.attempts as attempt
                  where strpos(lower(concat_ws(': ', attempt.error_type, attempt.error_message)), lower(%(error)s::text)) > 0
              )
          )
"""


def _all(where: str, failed: str = "", died: str = "") -> str:
    return (
        "with fitting as materialized (("
        + _LIVE
        + where
        + LIVE_FITTING
        + failed
        + ") union all ("
        + _SETTLED
        + where
        + SETTLED_FITTING
        + failed
        + ") union all ("
        + _DEAD
        + where
        + DEAD_FITTING
        + died
        + "))"
    )


#: The beginning of a statement, in which `fitting` has the id, the state, why the action means nothing to it, and whether it
#: would not come back: of jobs between two ids, or of some that are named; and those with an error.
FITTING: Mapping[tuple[str, bool], str] = {
    ("walked", False): _all(_WALKED),
    ("walked", True): _all(_WALKED, _FAILED, _DIED),
    ("named", False): _all(_NAMED),
    ("named", True): _all(_NAMED, _FAILED, _DIED),
}


def check_ids(ids: Any) -> list[JobId] | None:
    """The jobs that are named, each once; None if they are chosen by a filter. Raises ConfigurationError."""
    if ids is None:
        return None
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | set | frozenset):
        raise ConfigurationError(f"ids cannot be {ids!r}: it is a list of jobs' ids.")
    if not 1 <= len(ids) <= _MOST_NAMED:
        raise ConfigurationError(
            f"{len(ids)} jobs are named, and it is 1 to {_MOST_NAMED:,} of them. Choose more by a filter, such as a tag."
        )
    return sorted({check_id(each) for each in ids})


def fitting_params(
    action: Action, options: Mapping[str, Any], wanted: Wanted, ids: Sequence[JobId] | None
) -> dict[str, Any]:
    """What `fitting` needs, but for the ids between which it walks."""
    return {
        **wanted.params,
        "from_at": None,
        "error": wanted.error,
        "action": action.name,
        "to": options.get("to"),
        "priority": options.get("priority"),
        "at": None if options.get("at") is None else datetime.fromisoformat(options["at"]),
        # nobody runs what has succeeded a second time by leaving a filter out
        "repeats": ids is not None or wanted.state in ("succeeded", "cancelled"),
        "ids": None if ids is None else list(ids),
    }


def written(wanted: Wanted) -> dict[str, Any]:
    """The filter as it is stored: what is not asked for is left out."""
    told = {name: value for name, value in asdict(wanted).items() if value not in (None, ())}
    if wanted.member is not None:
        told["member"] = str(wanted.member)
    for name in ("since", "until"):
        if name in told:
            told[name] = told[name].isoformat()
    return told


def thawed(stored: Mapping[str, Any] | None) -> Wanted:
    """The same, read back."""
    told: dict[str, Any] = dict(stored or {})
    for name in ("since", "until"):
        if name in told:
            told[name] = datetime.fromisoformat(told[name])
    for name in ("paths", "values", "hiding"):
        if name in told:
            told[name] = tuple(told[name])
    return Wanted(**told)
