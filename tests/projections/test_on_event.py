"""A job for each event: enqueued with the checkpoint, exactly one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.projections.logs import Db, Log, append, append_many, positions, rows, working

from rota import ConfigurationError, Park
from rota.testing import TestRota, until


async def test_there_is_exactly_one_job_for_each_event_with_what_its_task_asks_for(rota_app: TestRota, db: Db) -> None:
    append_many(db, 30)
    append(db, "a", "Other")
    done: list[tuple[int, str, dict[str, Any]]] = []

    @rota_app.on_event(source=Log(), types=["Paid"], batch=7)
    @rota_app.task(name="thank")
    async def thank(position: int, stream: str, data: dict[str, Any]) -> None:
        done.append((position, stream, data))

    async with working(rota_app):
        await rota_app.projections["on_event/thank"].wait_caught_up(timeout=10)
        await until(lambda: len(done) == 30, what="all have run")

    assert sorted(done) == [(position, "many-1", {"n": n}) for n, position in enumerate(positions(db)[:30], 1)]
    assert rows(db, "select count(*) from rota.history where task = 'thank'") == [(30,)]


async def test_what_is_read_again_after_a_failure_is_enqueued_once(rota_app: TestRota, db: Db) -> None:
    append(db, "a", data={"n": 1})
    append(db, "a", data={"n": "none"})
    append(db, "a", data={"n": 3})

    @rota_app.on_event(source=Log(), on_error=Park())
    @rota_app.task(name="count")
    async def count(data: dict[str, int]) -> None: ...

    async with working(rota_app):
        await rota_app.projections["on_event/count"].wait_caught_up(timeout=10)
        await until(
            lambda: rows(db, "select count(*) from rota.history where task = 'count'") == [(2,)], what="both have run"
        )

    parked = await rota_app.projections.parked("on_event/count")
    assert [(each.position, each.error_type) for each in parked] == [(positions(db)[1], "InvalidArguments")]


def test_a_task_that_asks_for_what_no_event_has_is_refused(rota_app: TestRota) -> None:
    @rota_app.task
    async def thank(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be given order"):
        rota_app.on_event(source=Log())(thank)
    with pytest.raises(ConfigurationError, match="no task"):
        rota_app.on_event(source=Log())(print)  # type: ignore[type-var]
