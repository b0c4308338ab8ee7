"""One line whenever the condition of a worker changes, for someone who sits in front of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rota.facts import (
    ControlLost,
    ControlRestored,
    DatabaseAwaited,
    EndingBegan,
    Fact,
    Facts,
    LoopBlocked,
    LoopFree,
    ResourceAwaited,
    WorkerStarted,
)

__all__ = ["announce_condition"]

_DATABASE = "the database is away"
_LOOP = "something blocks the event loop"
_RESOURCE = "a resource cannot be opened"
_FACTS = (
    WorkerStarted,
    DatabaseAwaited,
    ResourceAwaited,
    ControlLost,
    ControlRestored,
    LoopBlocked,
    LoopFree,
    EndingBegan,
)


def announce_condition(facts: Facts, say: Callable[[str], None]) -> Callable[[], None]:
    """Say `ready`, or why it is not, when that has changed; returns how to stop. Facts come from any thread."""
    lock = threading.Lock()
    troubles: list[str] = ["starting"]
    said: list[str] = []

    def note(fact: Fact) -> None:
        with lock:
            match fact:
                case WorkerStarted():
                    troubles.clear()
                case DatabaseAwaited() | ControlLost():
                    troubles.append(_DATABASE)
                case ResourceAwaited() if troubles:  # one that works on waits in a child, for a job
                    troubles.append(_RESOURCE)
                case LoopBlocked():
                    troubles.append(_LOOP)
                case EndingBegan():
                    troubles.append("stopping")
                case ControlRestored():
                    troubles[:] = [each for each in troubles if each != _DATABASE]
                case LoopFree():
                    troubles[:] = [each for each in troubles if each != _LOOP]
            condition = f"not ready: {troubles[-1]}" if troubles else "ready"
            if said != [condition]:
                said[:] = [condition]
                say(condition)

    return facts.subscribe(note, *_FACTS)
