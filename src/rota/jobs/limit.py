"""Limits that a task declares: how many of its jobs run at once, or begin in a period, together or for each key.

They hold across all processes, since the database decides: see `0008_flow.sql`. What is declared is written there by every
worker that starts, as jobs may come from callers who do not know: plain SQL, or an older release of the app.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import UUID

from rota.errors import ConfigurationError
from rota.jobs.arguments import Signature
from rota.jobs.by import Key, check_by, key_by
from rota.jobs.enqueue import digest
from rota.jobs.job import NewJob
from rota.jobs.rate import Rate, read_rate
from rota.postgres.query import Steps, nothing, scalar, statement

__all__ = ["Limit", "declare_limits", "mend_lines", "read_limit"]

Retries = Literal["step_aside", "hold_line"]
LONGEST_KEY = 500
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so many jobs of a task `running` at once, or begun per period (`rate="100/1m"`), anywhere in the cluster.

    All jobs of the task together; or, with `by`, those of each key apart: what a function of some arguments returns
    (`by=lambda order_id: order_id`), or the argument of this name (`by="order_id"`). `task.using(key=...)` names the key of
    one job instead. Jobs of one key begin in the order in which their transactions committed, and keys take turns: with `by`
    alone that is all it does. A job that failed and is to be tried again later lets those behind it pass; with
    `retries="hold_line"` they wait until it has succeeded or is dead.
    """

    running: int | None = None
    rate: str | Rate | None = None
    by: Key | None = None
    retries: Retries = "step_aside"

    def __post_init__(self) -> None:
        problems = []
        if self.running is not None and (
            not isinstance(self.running, int) or isinstance(self.running, bool) or not 0 < self.running < 2**31
        ):
            problems.append(f"running is {self.running!r}; it is a whole number of jobs, 1 or more")
        if self.by is not None and not callable(self.by) and not (isinstance(self.by, str) and self.by):
            problems.append(f"by is {self.by!r}; it is the name of an argument or a function of arguments")
        if self.retries not in get_args(Retries):
            problems.append(f"retries is {self.retries!r}; it is one of {', '.join(get_args(Retries))}")
        if self.running is None and self.rate is None and self.by is None:
            problems.append("it says nothing; give running, rate or by")
        if problems:
            raise ConfigurationError(f"This Limit cannot work: {'; '.join(problems)}.")
        if isinstance(self.rate, str):
            object.__setattr__(self, "rate", read_rate(self.rate, "Limit(rate=...)"))
        elif self.rate is not None and not isinstance(self.rate, Rate):
            raise ConfigurationError(
                f"This Limit cannot work: rate is {self.rate!r}; it is text such as '100/1m' or '5/s'."
            )

    def check(self, signature: Signature) -> None:
        """Refuse a key of what the task does not have, where it is declared rather than at the first enqueue."""
        if isinstance(self.by, str) and self.by not in signature.names:
            raise ConfigurationError(
                f"Limit(by={self.by!r}) names no argument of the task: it has "
                f"{', '.join(signature.names) or 'no parameters'}."
            )
        check_by(self.by, "Limit", signature)

    def key_of(self, new: NewJob, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The key of a call with these arguments, unless one was given. Raises InvalidArguments."""
        if self.by is None or new.key is not None:
            return new.key
        key = key_by(self.by, "Limit", "limit", new.task, signature, args, kwargs)
        # a longer one is as good as its digest, which nobody can read; no text of PostgreSQL's holds the others
        return key if len(key) <= LONGEST_KEY and not _UNSTORABLE.search(key) else str(digest("", key))

    def line_of(self, task: str, key: str | None) -> UUID:
        """Where jobs of the task with this key wait; in SQL this is `line_of`."""
        return digest(task, (key or "") if self.by is not None else "")


def read_limit(limit: Limit | int | None) -> Limit | None:
    """`limit=` as people write it: a Limit, or how many run at once."""
    if limit is None or isinstance(limit, Limit):
        return limit
    if isinstance(limit, int) and not isinstance(limit, bool):
        return Limit(running=limit)
    raise ConfigurationError(f"limit cannot be {limit!r}: it is a rota.Limit, a number of jobs at once, or None.")


DECLARE = statement(
    "declare_limits",
    """
    with declared as (
        select *
        from unnest(
            %(tasks)s::text[], %(running)s::integer[], %(counts)s::integer[], %(seconds)s::float8[], %(by_key)s::boolean[],
            %(arguments)s::text[], %(hold)s::boolean[]
        ) as declared(task, running, rate_count, rate_seconds, by_key, argument, hold)
    ), changed as (
        insert into {schema}.limits as rule (task, running, rate_count, rate_seconds, by_key, argument, hold, declared_at)
        select *, '-infinity'::timestamptz from declared order by task
        on conflict (task) do update
        set running = excluded.running,
            rate_count = excluded.rate_count,
            rate_seconds = excluded.rate_seconds,
            by_key = excluded.by_key,
            argument = excluded.argument,
            hold = excluded.hold,
            -- until its lines follow, see mend_lines
            declared_at = excluded.declared_at
        where (rule.running, rule.rate_count, rule.rate_seconds, rule.by_key, rule.argument, rule.hold) is distinct from
              (excluded.running, excluded.rate_count, excluded.rate_seconds, excluded.by_key, excluded.argument, excluded.hold)
        returning rule.task
    ), lifted as (
        delete from {schema}.limits as rule
        where rule.task = any (%(unlimited)s::text[])
          -- a newer release beside us may have it, and we are the one that goes
          and not exists (
              select from {schema}.members as member
              where member.ended_at is null and member.work -> 'limited' ? rule.task
          )
        returning rule.task
    )
    select coalesce(array_agg(task), '{}') from (select task from changed union all select task from lifted) as different
    """,
)

# Many lines at a time would be locked by one statement for as long as it takes.
LINES = statement(
    "lines_of_tasks",
    """
    select coalesce(array_agg(line.id), '{}')
    from (
        select id from {schema}.lines where task = any (%(tasks)s::text[]) and id > %(after)s order by id limit 1000
    ) as line
    """,
)

REFRESH = statement("refresh_lines", "select {schema}.refresh_lines(%(lines)s::uuid[])")

FOLLOWED = statement(
    "limits_followed",
    """
    update {schema}.limits
    set declared_at = {schema}.now()
    where task = any (%(tasks)s::text[])
      and declared_at = '-infinity'
    """,
)


def declare_limits(limits: Mapping[str, Limit | None]) -> Steps[None]:
    """Write down what these tasks declare, and have their lines follow: what is free by the new rule is ready at once.

    Each step is to be a transaction of its own, so that a task with many lines has them all locked at no time. From the first on
    the new rule holds, as claims count by it, whatever lines say; whoever dies at the others leaves them to mend_lines.
    """
    limited = {task: limit for task, limit in limits.items() if limit is not None}
    rates = [limit.rate if isinstance(limit.rate, Rate) else None for limit in limited.values()]
    different = yield DECLARE.query(
        {
            "tasks": list(limited),
            "running": [limit.running for limit in limited.values()],
            "counts": [None if rate is None else rate.count for rate in rates],
            "seconds": [None if rate is None else rate.seconds for rate in rates],
            "by_key": [limit.by is not None for limit in limited.values()],
            "arguments": [limit.by if isinstance(limit.by, str) else None for limit in limited.values()],
            "hold": [limit.retries == "hold_line" for limit in limited.values()],
            "unlimited": [task for task, limit in limits.items() if limit is None],
        },
        read=scalar,
    )
    yield from _follow(different)


def _follow(tasks: Sequence[str]) -> Steps[None]:
    if not tasks:
        return
    after = UUID(int=0)
    while lines := (yield LINES.query({"tasks": tasks, "after": after}, read=scalar)):
        yield REFRESH.query({"lines": lines}, read=nothing)
        after = lines[-1]
    yield FOLLOWED.query({"tasks": tasks}, read=nothing)


UNFOLLOWED = statement(
    "limits_unfollowed",
    "select coalesce(array_agg(task order by task), '{}') from {schema}.limits where declared_at = '-infinity'",
)

# Full lines are not more than jobs that run; what is read besides is the table of lines, once.
WRONG_LINES = statement(
    "wrong_lines",
    """
    select coalesce(array_agg(wrong.id), '{}')
    from (
        select line.id
        from {schema}.lines as line
        left join {schema}.limits as rule on rule.task = line.task
        where line.queue is not null
          and (
              line.ready_at is null
              and coalesce(rule.running > (
                  select count(*)
                  from (
                      select from {schema}.jobs as job where job.line = line.id and job.state = 'running' limit rule.running
                  ) as held
              ), true)
              -- it waits for the end of a period that no rate has any more
              or rule.rate_count is null and line.not_before > {schema}.now()
          )
          -- nobody is in it, and the last of them left it alone
          or line.queue is null
          and line.not_before is null
          and not exists (select from {schema}.jobs as job where job.line = line.id and job.state = 'running')
        order by line.id
        limit 1000
    ) as wrong
    """,
)


def mend_lines() -> Steps[None]:
    """Have lines follow that nobody else will. Each step is to be a transaction of its own, as in declare_limits.

    They are those of a rule whose author died before all of them had followed; those that it found full because of a job which was
    just being settled by the old rule, when nobody had to tell the line: with that job gone, nothing else would; and those that are
    empty since a job ended which was all that ran there when the last one that waited went otherwise.
    """
    yield from _follow((yield UNFOLLOWED.query(read=scalar)))
    if wrong := (yield WRONG_LINES.query(read=scalar)):
        yield REFRESH.query({"lines": wrong}, read=nothing)
