"""Everything worth knowing, said once, as a typed value.

Code below the surface emits facts and never logs; logs, metrics, traces and tests subscribe. A subscriber runs at once
in the thread that emits, so it must be quick; one that raises is reported by the next and never harms the work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from inspect import get_annotations
from typing import Any, ClassVar, Literal, dataclass_transform
from uuid import UUID

__all__ = [
    "ControlLost",
    "ControlRestored",
    "DatabaseAwaited",
    "DatabaseBack",
    "DatabaseLost",
    "Drained",
    "Ended",
    "EndingBegan",
    "EndingHurried",
    "EventParked",
    "EventsProjected",
    "Fact",
    "Facts",
    "BulkEnded",
    "HistoryKept",
    "HookHindered",
    "JobCancelled",
    "JobClaimLost",
    "JobFailed",
    "JobLost",
    "JobRaisedAfterSuccess",
    "JobSnoozed",
    "JobStuck",
    "JobSucceeded",
    "JobsLocked",
    "LeadershipEnded",
    "LeadershipGained",
    "ListenerDeaf",
    "ListenerHeard",
    "LogLinesDropped",
    "LoopBlocked",
    "LoopFree",
    "MemberEnded",
    "MemberIdentityLost",
    "MemberJoined",
    "MemberLeft",
    "MigrationApplied",
    "PollerHindered",
    "PoolerDetected",
    "ProjectionAbandoned",
    "ProjectionFailed",
    "ProjectionHindered",
    "ProjectionStalled",
    "ProjectionStopped",
    "ResourceAwaited",
    "RowClaimLost",
    "RowFailed",
    "RowHindered",
    "RowLocked",
    "RowLost",
    "RowPolled",
    "RowRaisedAfterSuccess",
    "RowsClaimed",
    "RowsLeftOut",
    "ScheduleBroken",
    "ScheduleFired",
    "ScheduleMissed",
    "ScheduleOrphaned",
    "ScheduleRoundBegan",
    "ScheduleRoundEnded",
    "ScheduleSkipped",
    "ScheduleUnclaimed",
    "SchedulesDeclared",
    "SchedulesNotDeclared",
    "SuccessesRepeated",
    "SingletonFailed",
    "StageFailed",
    "StageStarted",
    "StageStopped",
    "StandingBy",
    "TakeoverHindered",
    "WishHeard",
    "WorkerStarted",
    "WorkerStopped",
]


@dataclass_transform(frozen_default=True)
class Fact:
    """The root of all facts: a value of the fields that its kind names, which cannot be changed.

    To type checkers and in `match` a kind is a frozen dataclass. It is made by hand, since Python takes longer to make sixty of
    those than to import all the rest of a room, and every process that starts would wait for it.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()
    _needed: ClassVar[int] = 0  # fields without a default, which come first

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = tuple(get_annotations(cls))  # type: ignore[misc]  # mypy takes it for that of a dataclass
        cls._needed = sum(not hasattr(cls, name) for name in cls.__match_args__)

    def __init__(self, *values: Any, **named: Any) -> None:
        told = vars(self)
        told.update(zip(self.__match_args__, values, strict=False))
        if named:
            told.update(named)
        if len(told) < self._needed:
            raise TypeError(f"{type(self).__name__} needs {', '.join(self.__match_args__[: self._needed])}")

    def fields(self) -> dict[str, Any]:
        """All it tells, by name and in order."""
        return {name: getattr(self, name) for name in self.__match_args__}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fact) and type(self) is type(other) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((type(self), *self.fields().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A fact cannot be changed: {name} of {self!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A fact cannot be changed: {name} of {self!r}")


class MigrationApplied(Fact):
    """A migration was applied to the schema."""

    number: int
    name: str
    seconds: float


class MemberJoined(Fact):
    """This process has a lease under this identity."""

    member: UUID
    name: str


class MemberLeft(Fact):
    """This process gave its lease back."""

    member: UUID


class WishHeard(Fact):
    """Someone wants this process to be `quiet` or to `drain`; or, if that is None, to go on as before."""

    member: UUID
    wish: str | None
    by: str | None


class MemberIdentityLost(Fact):
    """A peer ended this process's lease: all it held is given up, and it comes back under a new identity."""

    member: UUID


class MemberEnded(Fact):
    """This process ended the lease of a peer; what that peer held may now be taken."""

    member: UUID
    name: str
    reason: str


class LeadershipGained(Fact):
    """This process leads this now."""

    name: str
    epoch: int


EndKind = Literal["resigned", "asked", "handed over", "taken", "lost"]


class LeadershipEnded(Fact):
    """A term of this process is over, for this reason. `kind` is what to act on: `resigned` by itself, `asked` to step down,
    `handed over` to spread the load; or it was `taken` away, or `lost`."""

    name: str
    epoch: int
    reason: str
    kind: EndKind = "lost"


class SingletonFailed(Fact):
    """A singleton raised, or returned; it is started again after so many seconds."""

    name: str
    epoch: int
    error: BaseException
    pause: float


class ScheduleRoundBegan(Fact):
    """The scheduler, which this process leads or drains for, looks at what is due and what has ended."""


class ScheduleRoundEnded(Fact):
    """It has looked: so many schedules were given out, so many that were due someone else had taken, changed or locked, and
    conclusions were drawn from so many ends."""

    given_out: int
    elsewhere: int
    ends: int
    seconds: float


class ScheduleFired(Fact):
    """So many runs of a schedule were given out."""

    name: str
    runs: int


class ScheduleSkipped(Fact):
    """So many slots of a schedule were left out, as a run of it was still under way."""

    name: str
    runs: int


class ScheduleMissed(Fact):
    """So many slots of a schedule passed while nobody could give them out, and are not made up for."""

    name: str
    runs: int


class ScheduleUnclaimed(Fact):
    """A schedule has put a job for a task that no live worker knows. The job waits for one that does."""

    name: str
    task: str


class ScheduleBroken(Fact):
    """A schedule cannot go on, for this reason. It is left out until someone puts it anew or resumes it."""

    name: str
    problem: str


class SchedulesDeclared(Fact):
    """The code of this process put these schedules; and left some as they are, since live processes have newer code."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    left: tuple[str, ...]


class SchedulesNotDeclared(Fact):
    """What the code of this process says of schedules could not be put; that is tried again after so many seconds."""

    error: BaseException
    pause: float


class ScheduleOrphaned(Fact):
    """A schedule that code declared once is declared by no live process. It goes on until someone deletes it."""

    name: str


class StandingBy(Fact):
    """This process waits to lead this, as someone else does. Healthy."""

    name: str
    holder: str


class TakeoverHindered(Fact):
    """Nobody leads this, but its last leader left a session of one of these roles inside its transaction. This process has no
    right to end it, and waits for it."""

    name: str
    epoch: int
    roles: tuple[str, ...]


class ControlLost(Fact):
    """The control session broke, or could not be opened again, for this reason: nothing new is started until it is back."""

    member: UUID | None
    error: str


class ControlRestored(Fact):
    """The control session is back, under the same identity."""

    member: UUID


class PoolerDetected(Fact):
    """The database is behind a pooler in transaction mode: no session lock, no LISTEN; the lease and polling decide."""


class ListenerDeaf(Fact):
    """A probe sent to ourselves did not come back: polling more often until one does."""


class ListenerHeard(Fact):
    """Probes come back again."""


class DatabaseLost(Fact):
    """A part of this process cannot reach the database, for this reason; it holds what it has and tries again."""

    part: str
    error: str


class DatabaseBack(Fact):
    """The same part reaches the database again."""

    part: str


class DatabaseAwaited(Fact):
    """This process cannot start without the database, for this reason, and waits for it."""

    error: str


class ResourceAwaited(Fact):
    """This process cannot start, or run a job, without what an `@app.resource` provides, for this reason, and tries again."""

    error: str


class StageStarted(Fact):
    """A stage of the start of this process is there, after so many seconds: the database, its member, its pollers..."""

    name: str
    seconds: float


class StageStopped(Fact):
    """A stage was stopped on the way back, within so many seconds."""

    name: str
    seconds: float


class StageFailed(Fact):
    """A stage could not be stopped in order, for this reason. Those below it are stopped all the same."""

    name: str
    error: BaseException


class EndingBegan(Fact):
    """This process is to end, for this reason: it is not ready any more, claims nothing, and finishes what it has begun."""

    reason: str


class EndingHurried(Fact):
    """It was asked again: it does not wait any longer, and hands back what it has not finished."""


class Ended(Fact):
    """All stages are stopped, so many seconds after the process was asked to end."""

    seconds: float


class LoopBlocked(Fact):
    """Something has kept the event loop from turning for so long; `stack` is where it is. Until it ends, nothing else on that
    loop goes on; the lease is kept all the same."""

    seconds: float
    stack: str


class LoopFree(Fact):
    """The event loop turns again, after so many seconds."""

    seconds: float


class WorkerStarted(Fact):
    """A worker began to claim jobs. `queues` is None for all of them."""

    member: UUID
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...]
    concurrency: int


class WorkerStopped(Fact):
    """A worker has stopped and holds nothing any more. `statements` is what it asked of the database for its jobs."""

    member: UUID
    jobs: int
    statements: int


class Drained(Fact):
    """Claiming has stopped; what ran has finished, and the rest was handed back without costing an attempt."""

    finished: int
    handed_back: int
    abandoned: int


class JobsLocked(Fact):
    """Someone else has locked the rows of these jobs, so what became of them cannot be written down yet; all else goes on."""

    ids: tuple[int, ...]


class SuccessesRepeated(Fact):
    """PostgreSQL has crashed, and had forgotten so many successes of relaxed queues that it had not written to its disk yet. They are
    on record again; their jobs do not run once more."""

    jobs: int


class LogLinesDropped(Fact):
    """Bodies log more than can be written down: so many lines of this process found no room, and are not kept. Told once a minute."""

    lines: int


class JobSucceeded(Fact):
    """An attempt succeeded, and that is on record. `waited` is for how many seconds its job had been due when it was taken."""

    job: int
    task: str
    queue: str
    attempt: int
    seconds: float
    waited: float | None = None


class JobFailed(Fact):
    """An attempt failed, and that is on record. `retry_in` is None when it was the last and the job is dead."""

    job: int
    task: str
    queue: str
    attempt: int
    seconds: float
    error: BaseException | None
    retry_in: float | None
    waited: float | None = None


class JobLost(Fact):
    """An attempt went down with its process: a worker whose job was taken over, or the child that ran this job alone. `fate`
    is queued, dead, or cancelled."""

    job: int
    task: str
    queue: str
    attempt: int
    member: UUID
    fate: str
    error: str


class JobSnoozed(Fact):
    """An attempt asked for a later time, and that is on record."""

    job: int
    task: str
    queue: str
    attempt: int
    seconds: float
    pause: float
    waited: float | None = None


class JobCancelled(Fact):
    """An attempt ended as cancelled, by its own wish or somebody else's, and that is on record. Or a job was cancelled because one
    that it waited for has failed it; it had no attempt then, and `attempt` is 0."""

    job: int
    task: str
    queue: str
    attempt: int
    seconds: float
    reason: str | None
    waited: float | None = None


class JobStuck(Fact):
    """A body goes on although its attempt was ended: what it does is void, but its slot stays taken until it ends."""

    job: int
    task: str
    attempt: int


class JobRaisedAfterSuccess(Fact):
    """A body raised after its transaction had committed the job's success. The job has succeeded all the same."""

    job: int
    task: str
    attempt: int
    error: BaseException


class BulkEnded(Fact):
    """A bulk has come to its end by a turn of ours: `state` is finished or undone. So many of its jobs were changed, had changed by
    their turn, and could not be changed."""

    bulk: int
    action: str
    state: str
    done: int
    skipped: int
    failed: int


class HistoryKept(Fact):
    """Upkeep made or dropped partitions of the history, or removed what had reached its age. `hindered` says what it could not
    do, and why."""

    created: int
    dropped: int
    removed: int
    hindered: tuple[str, ...]


class JobClaimLost(Fact):
    """The claim of an attempt of ours has ended. `finished` when its outcome came too late and changed nothing; else it was
    told to stop, and whatever it still does is void."""

    job: int
    task: str
    attempt: int
    token: int
    finished: bool


class RowsClaimed(Fact):
    """A poller has taken so many rows."""

    poller: str
    rows: int


class RowPolled(Fact):
    """A row was polled, and that is written down. `fate` is done; changed when the row no longer fits the poller's `where`; gone
    when it was deleted meanwhile."""

    poller: str
    key: list[Any]
    seconds: float
    fate: str
    changed: bool


class RowFailed(Fact):
    """The handler of a poller raised. `retry_in` is None when the row was parked."""

    poller: str
    key: list[Any]
    attempt: int
    seconds: float
    error: BaseException | str
    retry_in: float | None


class RowLost(Fact):
    """A row was taken over from a process that was lost; after too many of them it is parked."""

    poller: str
    key: list[Any]
    member: UUID
    losses: int
    parked: bool


class RowClaimLost(Fact):
    """A poll ended after its claim had: it was taken over, or released by hand, and what became of it changes nothing."""

    poller: str
    key: list[Any]
    token: int


class RowLocked(Fact):
    """A row that was polled cannot be stamped, since someone has it locked; it is tried again until it can."""

    poller: str
    key: list[Any]


class RowHindered(Fact):
    """What became of a row cannot be written: PostgreSQL refuses it for a lock, for what others do at the same time, or since it
    takes too long. It is tried again; a stamp that is refused for half a minute makes its poll a failed one."""

    poller: str
    key: list[Any]
    error: str


class RowRaisedAfterSuccess(Fact):
    """A handler raised after its transaction had committed: the row is polled all the same."""

    poller: str
    key: list[Any]
    error: BaseException


class PollerHindered(Fact):
    """PostgreSQL refuses to look for due rows: the table has changed, rights are missing, or it takes too long. It is tried again."""

    poller: str
    error: str
    retry_in: float


class RowsLeftOut(Fact):
    """There are rows whose keys are too long to be claimed. They are left out for as long as this process runs. `find` is SQL
    that shows their keys, and maybe a few more that would do."""

    poller: str
    find: str


class EventsProjected(Fact):
    """A projection has taken in so many events, up to this place, and that is committed."""

    projection: str
    version: int
    events: int
    order_xid: int
    position: int
    seconds: float
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class ProjectionFailed(Fact):
    """An event cannot be taken in: it cannot be decoded, or the handler raised. It is tried again."""

    projection: str
    version: int
    position: int
    attempt: int
    error: BaseException
    retry_in: float
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class ProjectionStopped(Fact):
    """An event cannot be taken in, and nothing more is read until someone resumes the projection."""

    projection: str
    version: int
    position: int
    attempt: int
    error: BaseException
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class HookHindered(Fact):
    """Others hold a lock that the `prepare` or the `switch` of a projection needs. It is tried again until they let go."""

    projection: str
    version: int
    hook: str
    attempt: int
    error: BaseException
    retry_in: float
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class EventParked(Fact):
    """An event could not be taken in and is on the parked list; or it was to be replayed, failed again, and stays there."""

    projection: str
    version: int
    order_xid: int
    position: int
    attempt: int
    error: BaseException
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class ProjectionStalled(Fact):
    """A handler has been busy with one batch for so long, and is so still."""

    projection: str
    version: int
    position: int
    seconds: float
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class ProjectionAbandoned(Fact):
    """A handler has not ended although its process stops, or its term is over. Its session was ended, and what it wrote undone."""

    projection: str
    version: int
    epoch: int
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


class ProjectionHindered(Fact):
    """Events wait because an older transaction is open, which may still commit some that come before them."""

    projection: str
    version: int
    seconds: float
    holder: str
    #: of which build of it, and of which partition if it has some
    build: int = 1
    partition: int | None = None


Subscriber = Callable[[Any], None]


class Facts:
    """Where an app's facts go. Subscribing and emitting are safe from any thread."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Fact], tuple[Subscriber, ...]] = {}
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Subscriber, *kinds: type[Fact]) -> Callable[[], None]:
        """Call `subscriber` with each fact of these kinds (of all kinds when none is named); returns how to stop."""
        wanted = kinds or (Fact,)
        with self._lock:
            for kind in wanted:
                self._subscribers[kind] = (*self._subscribers.get(kind, ()), subscriber)

        def unsubscribe() -> None:
            with self._lock:
                for kind in wanted:
                    self._subscribers[kind] = tuple(s for s in self._subscribers[kind] if s is not subscriber)

        return unsubscribe

    @contextlib.contextmanager
    def recorded(self, *kinds: type[Fact]) -> Iterator[list[Any]]:
        """The facts emitted while the block runs, in order."""
        seen: list[Any] = []
        unsubscribe = self.subscribe(seen.append, *kinds)
        try:
            yield seen
        finally:
            unsubscribe()

    def wanted(self, kind: type[Fact]) -> bool:
        """Whether anyone listens; saves building a fact per job on the hot path."""
        return bool(self._subscribers.get(kind) or self._subscribers.get(Fact))

    def emit(self, fact: Fact) -> None:
        for subscriber in (*self._subscribers.get(type(fact), ()), *self._subscribers.get(Fact, ())):
            # a subscriber is a guest: what it does wrong must not change what the emitter does
            with contextlib.suppress(Exception):
                subscriber(fact)
