"""`app.on_event`: a job for each event, enqueued in the transaction that moves the checkpoint: exactly one, and none is lost."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from rota.errors import ConfigurationError
from rota.events.event import Event
from rota.jobs.definition import Task
from rota.jobs.job import Job, NewJob
from rota.projections.feed import Readable
from rota.projections.projections import Projections
from rota.projections.trouble import OnError, Stop

__all__ = ["OnEvent"]

T = TypeVar("T", bound=Task[..., Any])

_FIELDS = tuple(field.name for field in fields(Event))
_STOP = Stop()


class Home(Protocol):
    """The app whose tasks are enqueued."""

    projections: Projections

    def enqueue_many(self, new: Iterable[NewJob], *, on: Any = None) -> Awaitable[list[Job[Any]]]: ...


class OnEvent:
    """Makes subscriptions of an app: projections whose handler enqueues."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def on_event(
        self,
        *,
        source: Readable,
        types: Sequence[str] | None = None,
        streams: Sequence[str] | None = None,
        name: str | None = None,
        batch: int = 500,
        on_error: OnError = _STOP,
    ) -> Callable[[T], T]:
        """Have a task enqueued once for each event: above `@app.task`, whose parameters choose what it is given of the event.

        They are named like the fields of an Event (`stream`, `version`, `type`, `data`, `metadata`, `position`, `order_xid`,
        `created_at`), and converted by their annotations. The job is committed together with the checkpoint, so there is exactly one;
        that it runs at least once is the queue's promise. `name` is that of the projection, `on_event/TASK` without one. The others
        are those of `app.projection`; an event that does not fit the task's signature is one that cannot be taken in.
        """

        def register(task: T) -> T:
            given = _chosen(task)

            async def enqueue(events: list[Event], connection: Any) -> None:
                new = [task.bind(**{name: getattr(event, name) for name in given}) for event in events]
                await self._home.enqueue_many(new, on=connection)

            self._home.projections.projection(
                name or f"on_event/{task.name}",
                source=source,
                types=types,
                streams=streams,
                batch=batch,
                on_error=on_error,
            )(enqueue)
            return task

        return register


def _chosen(task: Any) -> list[str]:
    """The parameters that are fields of an event. Raises ConfigurationError."""
    if not isinstance(task, Task):
        raise ConfigurationError(f"@app.on_event stands above @app.task, and {task!r} is no task.")
    parameters = inspect.signature(task.function).parameters
    unknown = [
        each.name
        for each in parameters.values()
        if each.name not in _FIELDS and each.name not in task.wants and each.default is each.empty
    ]
    if unknown:
        raise ConfigurationError(
            f"Task {task.name!r} cannot be given {', '.join(unknown)} of an event: its parameters are named like what an event has, "
            f"{', '.join(_FIELDS)}."
        )
    return [name for name in parameters if name in _FIELDS]
