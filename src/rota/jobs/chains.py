"""Jobs that wait for others: chains, groups and what is made of them, from how a user writes it to rows.

A chain is a value. Each step knows the one before it, so what is enqueued is the last step and all that leads to it; a call
that several chains begin with is one job of theirs, if they are enqueued together. Nothing can lead back to itself that way,
but one call can be written down in two places, and that is refused.

What is waited for is a batch: the jobs at the end of a step. Each job is in one batch at most, so that when it ends there is
one place to look. How that works is told in `postgres/migrations/0010_batches.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Self, TypeAlias, get_args
from uuid import UUID

from rota.conversion.plain import dumps, read_json
from rota.errors import ConfigurationError
from rota.jobs.codec import Codec
from rota.jobs.definition import BoundTask, Task
from rota.jobs.enqueue import in_batches, put_jobs
from rota.jobs.flow import Flow
from rota.jobs.job import Job, NewJob, OnFailure, Owner
from rota.postgres.foreign import foreign
from rota.postgres.query import Query, Steps, statement

__all__ = ["Chain", "Child", "Group", "Plan", "Wait", "group", "plan", "put_plan"]


class _Steps:
    """What can be enqueued, and be followed by more."""

    __slots__ = ()

    def then(self, child: Child, *, on_failure: OnFailure = "block", **rest: Any) -> Chain:
        """These jobs, and when they have succeeded another; see NewJob.then."""
        return Chain.of(self, child, on_failure, rest)  # type: ignore[arg-type]

    async def enqueue(self) -> Flow:
        """Add all its jobs, in one transaction, and return them."""
        flow: Flow = await _home(self).enqueue_plan(plan(self), on=self.connection)  # type: ignore
        return flow

    def enqueue_sync(self) -> Flow:
        flow: Flow = _home(self).enqueue_plan_sync(plan(self), on=self.connection)  # type: ignore
        return flow

    def on(self, connection: Any) -> Self:
        """The same in the transaction of a connection of yours; see Task.on."""
        foreign(connection)  # refuses what is none
        return replace(self, connection=connection)  # type: ignore


@dataclass(frozen=True, slots=True, eq=False)
class Chain(_Steps):
    """A step and what it waits for: `a.bind(1).then(b)`."""

    before: Node
    step: NewJob | Group | Chain
    on_failure: OnFailure = "block"
    connection: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, before: Node, child: Any, on_failure: OnFailure, rest: Mapping[str, Any]) -> Chain:
        if on_failure not in get_args(OnFailure):
            raise ConfigurationError(
                f"on_failure cannot be {on_failure!r}: it is 'block' (wait until someone has decided about the dead letter), "
                "'cancel', or 'run' (all the same)."
            )
        if isinstance(child, Task | BoundTask):
            child = child.bind(**rest)
        elif rest:
            raise ConfigurationError(
                f"then(...) was given {', '.join(rest)} for {_shown(child)}, which has its arguments already: write them there."
            )
        if not isinstance(child, NewJob | Group | Chain):
            raise ConfigurationError(
                f"then(...) was given {child!r}, which is no job: pass a task, what task.bind(...) returns, a chain or a group."
            )
        gives = _gives(before)
        for head in _heads(child):
            taken_by(head, _ends(before), gives)
        if isinstance(child, Group) and not child.members:
            raise ConfigurationError("then(group([])) waits for nothing: an empty group can only be the first step.")
        return cls(before, child, on_failure)


@dataclass(frozen=True, slots=True, eq=False)
class Group(_Steps):
    """Jobs and chains that run side by side. What follows waits for all of them, and is given their results in this order."""

    members: tuple[NewJob | Chain, ...]
    connection: Any = field(default=None, repr=False)


Node: TypeAlias = NewJob | Chain | Group
Child: TypeAlias = Node | Task[..., Any] | BoundTask[..., Any]


def group(members: Iterable[NewJob | Chain | Task[..., Any] | BoundTask[..., Any]]) -> Group:
    """Jobs, or chains of them, side by side: `group([a.bind(1), a.bind(2)]).then(c)`."""
    found: list[NewJob | Chain] = []
    for place, each in enumerate(members):
        member: Any = each.bind() if isinstance(each, Task | BoundTask) else each
        if isinstance(member, Group) or (isinstance(member, Chain) and _gives(member) == "results"):
            raise ConfigurationError(
                f"item {place} of the group is, or ends with, a group, so it has no single result: let it end with a job that "
                "joins them, as in group([...]).then(join)."
            )
        if not isinstance(member, NewJob | Chain):
            raise ConfigurationError(
                f"item {place} of the group is {each!r}, which is no job: pass what task.bind(...) returns, or a chain."
            )
        found.append(member)
    return Group(tuple(found))


@dataclass(slots=True)
class Wait:
    """Jobs that are waited for together: their places in the plan, and how those that wait are told. `of` is the place of
    another wait for the same jobs."""

    members: tuple[int, ...]
    gives: str
    on_failure: OnFailure
    of: int | None = None
    name: str | None = None


@dataclass(slots=True)
class Plan:
    """Jobs in the order in which they are put, each with the places of the waits it belongs to and comes after."""

    jobs: list[NewJob] = field(default_factory=list)
    batch: list[int | None] = field(default_factory=list)
    after: list[int | None] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    ends: tuple[int, ...] = ()
    joined: bool = False  # whether what comes of it is a list
    _first: dict[tuple[int, ...], int] = field(default_factory=dict)
    _same: dict[tuple[tuple[int, ...], str, OnFailure], int] = field(default_factory=dict)

    def flow(self, jobs: Sequence[Job[Any]]) -> Flow:
        """The plan in hand, once these are its jobs."""
        return Flow(tuple(jobs), tuple(jobs[end] for end in self.ends), self.joined)

    def add(self, new: NewJob, after: int | None) -> int:
        if new.unique is not None and new.unique.keep is not None:
            raise ConfigurationError(
                f"{new.task!r} makes one job of several calls (Debounce, Throttle), so none of them can be waited for, or wait. "
                "Bind it without: task.using(unique=None).bind(...)."
            )
        self.jobs.append(new)
        self.batch.append(None)
        self.after.append(after)
        return len(self.jobs) - 1

    def wait(self, members: tuple[int, ...], gives: str, on_failure: OnFailure, name: str | None = None) -> int:
        """The place of a wait for these jobs. Raises ConfigurationError where one of them is waited for with others already."""
        place = self._same.get((members, gives, on_failure))
        if place is not None:
            return place
        first = self._first.get(members)
        if first is None:
            self._first[members] = len(self.waits)
            for member in members:
                if self.batch[member] is not None:
                    raise ConfigurationError(
                        f"{self.jobs[member].task!r} is waited for twice: by itself or in one group, and in another group. Let one "
                        "group wait for all, or bind the call again for another job of it."
                    )
                self.batch[member] = len(self.waits)
        place = self._same[members, gives, on_failure] = len(self.waits)
        self.waits.append(Wait(members, gives, on_failure, first, name))
        return place


def plan(node: Node) -> Plan:
    """The jobs of a chain or a group and what each waits for. Raises ConfigurationError for what cannot be."""
    made = _Planner()
    made.plan.ends = made.add(node, None)
    made.plan.joined = _gives(node) == "results"
    return made.plan


class _Planner:
    def __init__(self) -> None:
        self.plan = Plan()
        self._placed: dict[int, int] = {}
        self._added: dict[tuple[int, int | None], tuple[int, ...]] = {}

    def add(self, node: Node, after: int | None) -> tuple[int, ...]:
        """Plan for a node that comes after a wait; returns the places of the jobs at its end."""
        # from the beginning, and without recursion: a chain may be long
        spine: list[Chain] = []
        while isinstance(node, Chain) and (id(node), after) not in self._added:
            spine.append(node)
            node = node.before
        ends = self._added.get((id(node), after))
        if ends is None:
            ends = self._begin(node, after)
        for chain in reversed(spine):
            wait = self.plan.wait(ends, _gives(chain.before), chain.on_failure)
            ends = self.add(chain.step, wait)
            self._added[id(chain), after] = ends
        return ends

    def _begin(self, node: Node, after: int | None) -> tuple[int, ...]:
        if isinstance(node, NewJob):
            return (self._job(node, after),)
        assert isinstance(node, Group)
        ends = tuple(end for member in node.members for end in self.add(member, after))
        if len(set(ends)) < len(ends):
            twice = next(end for place, end in enumerate(ends) if end in ends[:place])
            raise ConfigurationError(
                f"One call of {self.plan.jobs[twice].task!r} is in a group twice. Bind it again for another job of it."
            )
        self._added[id(node), after] = ends
        return ends

    def _job(self, new: NewJob, after: int | None) -> int:
        place = self._placed.get(id(new))
        if place is None:
            takes = None
            if after is not None:
                wait = self.plan.waits[after]
                takes = taken_by(new, [self.plan.jobs[member] for member in wait.members], wait.gives)
            elif new.lacks is not None:
                raise _task(new).signature.missing([new.lacks])
            place = self._placed[id(new)] = self.plan.add(new if takes is None else replace(new, takes=takes), after)
        elif self.plan.after[place] != after:
            raise self._twice(place, after)
        return place

    def _twice(self, place: int, after: int | None) -> ConfigurationError:
        """One call in two places: on a way that leads back to it, or on two."""
        task = self.plan.jobs[place].task
        way = self._way(after, place)
        if way is not None:
            names = " -> ".join(self.plan.jobs[each].task for each in way)
            return ConfigurationError(
                f"A chain cannot come back to a job that it has passed: {names} -> {task}. Bind the call again for another job of it."
            )
        return ConfigurationError(
            f"One call of {task!r} is in two places: {self._told(self.plan.after[place])}, and {self._told(after)}. Bind it again for "
            "another job of it."
        )

    def _way(self, after: int | None, to: int) -> list[int] | None:
        """The jobs from one to those of a wait, if one leads there."""
        follows: dict[
            int, int | None
        ] = {}  # what comes after each job that was seen; each once, as ways part and meet again
        ahead: list[tuple[int | None, int | None]] = [(after, None)]
        while ahead:
            wait, behind = ahead.pop()
            for member in () if wait is None else self.plan.waits[wait].members:
                if member in follows:
                    continue
                follows[member] = behind
                ahead.append((self.plan.after[member], member))
        if to not in follows:
            return None
        way = [to]
        while (behind := follows[way[-1]]) is not None:
            way.append(behind)
        return way

    def _told(self, after: int | None) -> str:
        if after is None:
            return "first"
        return "after " + ", ".join(self.plan.jobs[member].task for member in self.plan.waits[after].members[:3])


def taken_by(new: NewJob, parents: Sequence[NewJob], gives: str) -> str | None:
    """The parameter of a job that is given what its parents return: the one it lacks, or else its first free one.

    None if it has none. Raises ConfigurationError where what is known of both says that it cannot fit.
    """
    signature = _task(new).signature
    free = signature.free(read_json(new.args))
    takes = new.lacks or (free[0] if free else None)
    if takes is None:
        return None
    names = ", ".join(dict.fromkeys(parent.task for parent in parents[:3]))
    if gives == "result" and parents and _task(parents[0]).signature.returns_nothing:
        if new.lacks is None:
            return None
        if not signature.takes(takes, None):
            raise ConfigurationError(
                f"{names!r} returns None, and {new.task!r} after it takes {takes!r} from it, which cannot be None. Bind {takes}, or "
                f"have {names} return it."
            )
    if gives == "results" and signature.annotation(takes) in _NO_LISTS:
        raise ConfigurationError(
            f"{new.task!r} is given the list of what the jobs of a group ({names}) return, and its parameter {takes!r} takes no list."
        )
    return takes


_NO_LISTS = (bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta, UUID)


def _gives(node: Any) -> str:
    while isinstance(node, Chain):
        node = node.step
    return "results" if isinstance(node, Group) else "result"


def _ends(node: Any) -> list[NewJob]:
    """The calls at the end of a node, as far as they tell what it gives."""
    while isinstance(node, Chain):
        node = node.step
    return [node] if isinstance(node, NewJob) else [end for member in node.members[:3] for end in _ends(member)]


def _heads(node: Any) -> list[NewJob]:
    while isinstance(node, Chain):
        node = node.before
    return [node] if isinstance(node, NewJob) else [head for member in node.members for head in _heads(member)]


def _task(new: NewJob) -> Any:
    if new.source is None:
        raise ConfigurationError(f"{new!r} was not made by task.bind(...), so it cannot be part of a chain.")
    return new.source


def _home(node: Any) -> Any:
    calls = _heads(node) or _ends(node)
    if not calls:
        raise ConfigurationError("group([]) has no job, so there is nothing to enqueue. Give it one, or a then(...).")
    return _task(calls[0]).home


def _shown(child: Any) -> str:
    return f"a call of {child.task!r}" if isinstance(child, NewJob) else f"a {type(child).__name__.lower()}"


START_BATCHES = statement("start_batches", "select {schema}.now(), {schema}.start_batches(%(batches)s::text::jsonb)")


def _start_batches(waits: Sequence[Wait]) -> Query[tuple[datetime, list[int]]]:
    """Make a batch for each; returns when that was, and their ids."""
    batches = [
        {
            "of": None if each.of is None else each.of + 1,
            "name": each.name,
            "total": len(each.members),
            "gives": each.gives,
            "on_failure": each.on_failure,
        }
        for each in waits
    ]
    return START_BATCHES.query({"batches": dumps(batches)}, read=lambda rows: (rows[0][0], list(rows[0][1])))


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a plan: its jobs in order, and the ids of its batches."""

    jobs: list[Job[Any]]
    batches: list[int]
    at: datetime | None


def put_plan(plan: Plan, app: Owner, *, codec: Codec | None = None, trace: str | None = None) -> Steps[Put]:
    """Put the jobs and the batches they make, in one transaction.

    Raises JobExists where a unique one does already: it could not be waited for by others than those who put it.
    """
    at, ids = (yield _start_batches(plan.waits)) if plan.waits else (None, [])

    def numbered(place: int | None) -> int | None:
        return None if place is None else ids[place]

    new = [
        replace(
            each,
            batch=numbered(batch),
            after=numbered(after),
            unique=None if each.unique is None else replace(each.unique, conflict="raise"),
        )
        for each, batch, after in zip(plan.jobs, plan.batch, plan.after, strict=True)
    ]
    added: list[Job[Any]] = []
    for part in in_batches(new):
        later = () if added else new[len(part) :]
        added += yield put_jobs(part, app, codec=codec, before=len(added), later=later, trace=trace)
    return Put(
        [job if each.after is None else replace(job, state="blocked") for job, each in zip(added, new, strict=True)],
        ids,
        at,
    )
