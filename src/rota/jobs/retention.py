"""How long settled jobs are kept: classes of retention, and the upkeep by which any worker puts them into effect.

History is partitioned by class and time, so that the past is dropped in whole tables rather than row by row. Upkeep makes
the partitions of the days to come, drops those that have reached their age, and prunes what else only grows. It is a
function of the database, with the rights of the owner of the schema, and takes its rules from a table there: workers need no
right to create tables, and all follow the same rules whatever version they run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from rota.clock import Duration, duration
from rota.errors import ConfigurationError
from rota.postgres.query import Query, nothing, one_or_none, statement

__all__ = [
    "STANDARD",
    "Retention",
    "Upkeep",
    "declare_retention",
    "keep_logs",
    "list_retention",
    "read_retention",
    "upkeep",
]

STANDARD = "standard"  # the class of jobs that name none

_SHORTEST_HISTORY = timedelta(hours=1)  # a settle that is repeated since its reply was lost looks for itself in history
_SHORTEST_RESULTS = timedelta(minutes=1)  # who waits for a job reads its result a moment after it has settled
_LONGEST = timedelta(days=36500)  # a hundred years; a little more, and PostgreSQL cannot count back so far

_CLASS = re.compile(r"(?!(?:.*_)?(?:rest|[0-9]{8})\Z)[a-z0-9_]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long settled jobs of a class stay in the history, and how long their results do: None is as long as the jobs.

    Jobs leave the history together with others of their day, so they may stay for a day more, or a thirtieth of their time
    where that is longer. Dead letters stay until someone resolves them, whatever their class.
    """

    history: Duration = "7d"
    results: Duration | None = None

    def __post_init__(self) -> None:
        history = duration(self.history, "Retention(history=...)")
        results = None if self.results is None else duration(self.results, "Retention(results=...)")
        problems = []
        if not _SHORTEST_HISTORY <= history <= _LONGEST:
            problems.append(f"history is {self.history!r}; it is an hour or more, and at most a hundred years")
        if results is not None and not _SHORTEST_RESULTS <= results <= history:
            problems.append(
                f"results is {self.results!r}; it is a minute or more, and no longer than history ({self.history!r}), "
                "as a result goes with its job at the latest"
            )
        if problems:
            raise ConfigurationError(f"This Retention cannot work: {'; '.join(problems)}.")


def read_retention(classes: Mapping[str, Retention | Duration]) -> dict[str, Retention]:
    """What each class name stands for; a bare duration is that of the history. Refuses all that cannot work at once."""
    if not isinstance(classes, Mapping):
        raise ConfigurationError(
            f"retention cannot be {classes!r}: it says how long jobs are kept by class, such as {{'standard': '7d'}}."
        )
    read: dict[str, Retention] = {}
    problems = []
    for name, value in classes.items():
        if not isinstance(name, str) or not _CLASS.fullmatch(name):
            problems.append(
                f"{name!r} cannot name a class: a name has 1 to 40 characters of a-z, 0-9 and _, and does not end in "
                "'rest' or a date, as the tables made for it do"
            )
        try:
            read[name] = value if isinstance(value, Retention) else Retention(value)
        except ConfigurationError as error:
            problems.append(f"{name!r}: {error}".rstrip("."))
    if problems:
        raise ConfigurationError(f"retention=... cannot work: {'; '.join(problems)}.")
    return read


DECLARE_RETENTION = statement(
    "declare_retention",
    """
    insert into {schema}.retention as kept (class, history, results)
    select declared.class, declared.history, declared.results
    from unnest(%(classes)s::text[], %(histories)s::interval[], %(results)s::interval[]) as declared(class, history, results)
    -- one that stands as declared is not even locked: every worker says this whenever it starts
    where not exists (
        select from {schema}.retention as same
        where same.class = declared.class
          and same.history = declared.history
          and same.results is not distinct from declared.results
    )
    -- in one order, so that two who declare never wait for each other in a circle
    order by declared.class
    on conflict (class) do update set history = excluded.history, results = excluded.results
    """,
)


def declare_retention(classes: Mapping[str, Retention]) -> Query[None]:
    """Put these classes in place of what was declared under their names before; others stay as they are.

    The next upkeep gives a new class its tables. Whoever declares a class last is right about it.
    """
    return DECLARE_RETENTION.query(
        {
            "classes": list(classes),
            "histories": [duration(kept.history) for kept in classes.values()],
            "results": [None if kept.results is None else duration(kept.results) for kept in classes.values()],
        },
        read=nothing,
    )


LIST_RETENTION = statement("list_retention", "select class, history, results from {schema}.retention order by class")


def list_retention() -> Query[dict[str, Retention]]:
    """Every class that was ever declared, and the standard one."""
    return LIST_RETENTION.query(
        read=lambda rows: {name: Retention(history, results) for name, history, results in rows}
    )


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What one round did: partitions created and dropped, rows deleted, results forgotten.

    `hindered` tells of each step that was left to the next time, and why. `unfinished` says that there is more to do now.
    """

    created: int
    dropped: int
    deleted: int
    forgotten: int
    hindered: list[str]
    unfinished: bool

    def __add__(self, other: Upkeep) -> Upkeep:
        return Upkeep(
            self.created + other.created,
            self.dropped + other.dropped,
            self.deleted + other.deleted,
            self.forgotten + other.forgotten,
            self.hindered + other.hindered,
            self.unfinished or other.unfinished,
        )


UPKEEP = statement(
    "upkeep",
    "select created, dropped, deleted, forgotten, hindered, unfinished from {schema}.upkeep(%(key)s)",
)


def upkeep(key: int) -> Query[Upkeep | None]:
    """One round of upkeep, or None if another process is at it. `key` is the advisory lock by which it is told.

    A round is short and bounded, waits a tenth of a second for a lock at most, and should be a transaction of its own. Idle
    rounds write nothing.
    """
    return UPKEEP.query({"key": key}, read=one_or_none(Upkeep))


KEEP_LOGS = statement(
    "keep_logs", "select created, dropped, deleted, 0, hindered, unfinished from {schema}.keep_logs(%(key)s)"
)


def keep_logs(key: int) -> Query[Upkeep | None]:
    """The same for the logs of jobs, which are kept by the same rules."""
    return KEEP_LOGS.query({"key": key}, read=one_or_none(Upkeep))
