from __future__ import annotations

from uuid import uuid4

from rota.facts import (
    ControlLost,
    ControlRestored,
    DatabaseAwaited,
    EndingBegan,
    Facts,
    LoopBlocked,
    LoopFree,
    ResourceAwaited,
    WorkerStarted,
)
from rota.runtime.announce import announce_condition


def test_a_condition_is_said_when_it_changes_and_only_then() -> None:
    facts, said, member = Facts(), [], uuid4()
    stop = announce_condition(facts, said.append)

    for fact in (
        DatabaseAwaited("refused"),
        DatabaseAwaited("no password"),
        ResourceAwaited("refused"),
        WorkerStarted(member, None, (), 20),
        ResourceAwaited("refused, in a child"),
        LoopBlocked(1.0, "stack"),
        ControlLost(member, "gone"),
        LoopFree(2.0),
        ControlRestored(member),
        EndingBegan("SIGTERM"),
    ):
        facts.emit(fact)
    stop()
    facts.emit(ControlLost(member, "gone"))

    assert said == [
        "not ready: the database is away",
        "not ready: a resource cannot be opened",
        "ready",
        "not ready: something blocks the event loop",
        "not ready: the database is away",
        "ready",
        "not ready: stopping",
    ]
