"""What `@app.projection(...)` makes of a function: still callable, and able to say where it is."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from rota.clock import Deadline, Duration, seconds
from rota.errors import NotPossible, WaitTimedOut
from rota.facts import Facts
from rota.postgres.pool import Database
from rota.postgres.query import Steps
from rota.projections.checkpoint import declare_projection
from rota.projections.definition import ProjectionDefinition
from rota.projections.feed import Feed, Lag, Pair
from rota.projections.horizon import HorizonHolder, who_holds_the_horizon
from rota.projections.inspect import PartitionView, ProjectionStatus, ProjectionView, get_projection, show_builds

__all__ = ["Home", "Projection"]

P = ParamSpec("P")
R = TypeVar("R")

# What a status counts at most: more than anyone waits for, and read in a moment.
_MOST_COUNTED = 100_000
# Between looks of one who waits: soon at first, as most events are taken in at once.
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25


class Home(Protocol):
    """The app of a projection."""

    database: Database
    facts: Facts

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]: ...


class Projection(Generic[P, R]):
    """A function that takes in events. Calling it calls the function."""

    def __init__(self, definition: ProjectionDefinition, home: Home) -> None:
        self.definition = definition
        self._home = home
        functools.update_wrapper(self, definition.handler)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def version(self) -> int:
        return self.definition.version

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.definition.handler(*args, **kwargs)  # type: ignore[no-any-return]

    async def status(self) -> ProjectionStatus:
        """Where it is, who reads for it, what waits, and who holds that up; what waits is counted up to 100,000.

        Where only some types or streams concern it, no more than 100,000 of all events are gone through: `lag.more` then says so.
        """
        return await self._home.database.run_steps(self._status())

    def status_sync(self) -> ProjectionStatus:
        return self._home.database.run_steps_sync(self._status())

    async def wait_caught_up(self, timeout: Duration | None = None) -> None:
        """Return when everything that is committed by now was taken in: for tests, and to read what one has written.

        Events that are appended meanwhile are not waited for. Raises WaitTimedOut, or NotPossible at once when the projection is
        paused or stopped.
        """
        deadline = None if timeout is None else Deadline.after(seconds(timeout, "wait_caught_up(timeout=...)"))
        until = await self._home.database.run(self.definition.feed.last())
        pause = _FIRST_PAUSE
        while until is not None and await self._home.database.run_steps(self._waits(until)):
            self._check(deadline)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def wait_caught_up_sync(self, timeout: Duration | None = None) -> None:
        deadline = None if timeout is None else Deadline.after(seconds(timeout, "wait_caught_up(timeout=...)"))
        until = self._home.database.run_sync(self.definition.feed.last())
        pause = _FIRST_PAUSE
        while until is not None and self._home.database.run_steps_sync(self._waits(until)):
            self._check(deadline)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _status(self) -> Steps[ProjectionStatus]:
        yield from self._view()
        views: list[ProjectionView] = yield show_builds(self.name, self.version)
        rebuild: ProjectionStatus | None = None
        # the one that readers use comes first
        for view in reversed(views):
            rebuild = yield from self._status_of(view, rebuild)
        assert rebuild is not None, "it was declared at least now"
        return rebuild

    def _status_of(self, view: ProjectionView, rebuild: ProjectionStatus | None) -> Steps[ProjectionStatus]:
        lag, behind = Lag(0, None), list[int]()
        for each in view.partitions:
            its: Lag = yield self._feed(view, each).lag(_MOST_COUNTED)
            waited = [seconds for seconds in (lag.seconds, its.seconds) if seconds is not None]
            lag = Lag(lag.events + its.events, max(waited, default=None), lag.more or its.more)
            behind += [each.partition] if its.events else []
        held_by: HorizonHolder | None = None
        first, last = (yield self.definition.feed.first()), (yield self.definition.feed.last())
        progress = _progress(view, lag, first, last)
        eta = view.building_seconds * (1 - progress) / progress if lag.events and progress else None
        if behind:
            found = yield self.definition.feed_of(build=view.build, partition=behind[0]).look(1)
            if not found.rows:
                held_by = yield who_holds_the_horizon()
        return ProjectionStatus(view, lag, held_by, progress, eta if lag.events else 0.0, rebuild)

    def _feed(self, view: ProjectionView, partition: PartitionView) -> Feed:
        return self.definition.feed_of(build=view.build, partition=partition.partition)

    def _waits(self, until: Pair) -> Steps[bool]:
        """Whether something up to there is still to be taken in. Raises NotPossible when nobody will."""
        view = yield from self._view()
        for each in view.partitions:
            lag: Lag = yield self._feed(view, each).lag(1, until)
            if lag.events or lag.more:
                self._check_state(view, each)
                return True
        return False

    def _check_state(self, view: ProjectionView, partition: PartitionView) -> None:
        if partition.state == "running":
            return
        why = {
            "paused": f" by {partition.state_by}",
            "stopped": f": {partition.error_type}: {partition.error_message}",
            "retired": ", as a later version has taken its place",
        }[partition.state]
        which = f" in partition {partition.partition}" if len(view.partitions) > 1 else ""
        raise NotPossible(
            f"Projection {self.name!r} will not catch up: it is {partition.state}{which}{why}. To go on: rota projections resume "
            f"{self.name}."
        )

    def _view(self) -> Steps[ProjectionView]:
        view: ProjectionView | None = yield get_projection(self.name, self.version)
        if view is None:
            # no worker has begun yet: it is at the first event all the same
            definition = self.definition
            yield declare_projection(self.name, self.version, definition.told(), definition.partitions)
            view = yield get_projection(self.name, self.version)
            assert view is not None, "it was declared just now"
        return view

    def _check(self, deadline: Deadline | None) -> None:
        if deadline is not None and deadline.left <= 0:
            raise WaitTimedOut(
                f"Projection {self.name!r} has not caught up in time; it goes on. `rota projections show {self.name}` tells where it "
                "is, and who holds it up."
            )


def _progress(view: ProjectionView, lag: Lag, first: Pair | None, last: Pair | None) -> float:
    if not lag.events or first is None or last is None:
        return 1.0
    if view.position is None or last.position <= first.position:
        return 0.0
    # by positions, which have gaps and are not quite in order: for people
    return min(1.0, max(0.0, (view.position - first.position) / (last.position - first.position)))
