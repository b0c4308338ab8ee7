"""Who holds a lock and who waits for it, told by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rota import Rota
from rota.testing import until


@pytest.fixture
async def app(rota_database: str) -> AsyncIterator[Rota]:
    async with Rota(rota_database) as app:
        yield app


async def hold(app: Rota, name: str) -> None:
    async with app.lock(name):
        pass


@pytest.mark.parametrize("name", ["nightly", "größe 工", "back\\slash", "C:\\new\\x"])
async def test_a_lock_is_told_with_who_holds_it_and_who_waits(app: Rota, name: str) -> None:
    async with app.lock(name) as connection:
        holder = connection.info.backend_pid
        waiting = asyncio.create_task(hold(app, name))
        await until(lambda: _locks(app, 2), 30, "someone waits")
        locks = await app.leaders.locks()
    await waiting

    assert [(lock.name, lock.is_held) for lock in locks] == [(name, True), (name, False)]
    assert locks[0].pid == holder
    assert locks[0].since is not None
    assert (locks[0].seconds or 0.0) >= 0.0
    assert app.leaders.locks_sync() == []


async def test_in_a_section_within_a_section_no_lock_has_the_name_of_the_other(app: Rota) -> None:
    async with app.lock("outer") as outer, app.lock("inner") as inner:
        locks = await app.leaders.locks()

    assert {(lock.name, lock.pid) for lock in locks} == {
        ("outer", outer.info.backend_pid),
        ("inner", inner.info.backend_pid),
    }


async def test_a_name_too_long_to_be_shown_is_told_as_far_as_it_is(app: Rota) -> None:
    async with app.lock("n" * 100):
        locks = await app.leaders.locks()

    assert [lock.name for lock in locks] == ["n" * 53]


async def test_a_lock_of_another_schema_is_not_ours(app: Rota, rota_database: str) -> None:
    async with Rota(rota_database, schema="other") as other, other.lock("nightly"):
        assert await app.leaders.locks() == []


async def _locks(app: Rota, number: int) -> bool:
    return len(await app.leaders.locks()) == number
