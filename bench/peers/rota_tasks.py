"""The tasks that Rota is measured with, for the peer's processes and for whoever puts their jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rota import Limit, Rota, Task

KEYS = 1_000  # of limits by key


def define(
    app: Rota, began: Callable[[int], object] = lambda i: None, *, in_thread: bool = False
) -> dict[str, Task[..., Any]]:
    """By name: `noop`, and others like it under a limit."""

    async def noop(i: int) -> None:
        began(i)

    def noop_in_thread(i: int) -> None:
        began(i)

    first = app.task(name="noop")(noop_in_thread) if in_thread else app.task(name="noop")(noop)
    tasks: dict[str, Any] = {"noop": first}
    for name, limit in {
        # never reached, and asked for at every claim all the same
        "limited": Limit(running=100_000),
        "by_key": Limit(running=1_000, by=lambda i: str(i % KEYS)),
        # one at a time: what is used elsewhere, and piles up there
        "one_by_one": Limit(running=1, by=lambda i: str(i % KEYS)),
    }.items():
        tasks[name] = app.task(name=name, limit=limit)(noop)
    return tasks
