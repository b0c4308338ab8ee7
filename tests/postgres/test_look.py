"""Who looks does so in sessions that are set up for it, statement by statement, and knows how many that were."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from rota.postgres.look import LOOKING, look
from rota.postgres.query import Query, Steps, scalar, statement
from rota.postgres.spent import counting
from rota.testing import TestRota

pytestmark = [pytest.mark.one_server, pytest.mark.writes_nothing]

TRANSACTION = statement(
    "transaction", "select virtualtransaction from pg_locks where pid = pg_backend_pid() limit 1"
).query(read=scalar)
SLEEP = statement("sleep", "select pg_sleep(0.001)").query(read=scalar)


def setting(name: str) -> Query[Any]:
    return statement("setting", "select current_setting(%(name)s)").query({"name": name}, read=scalar)


def settings() -> Steps[dict[str, str]]:
    told = {}
    for name in LOOKING:
        told[name] = yield setting(name)
    return told


def three() -> Steps[set[str]]:
    first: str = yield TRANSACTION
    yield SLEEP
    last: str = yield TRANSACTION
    return {first, last}


async def test_a_session_for_looking_is_set_up_as_a_look_elsewhere_is(rota_app: TestRota) -> None:
    there = await rota_app.looking.run_steps(look(settings()))
    elsewhere = await rota_app.database.run_steps(look(settings()))

    assert there == elsewhere == LOOKING


async def test_each_statement_of_a_look_is_a_transaction_of_its_own_where_nothing_else_is_done(
    rota_app: TestRota,
) -> None:
    alone = await rota_app.looking.run_steps(look(three()))
    together = await rota_app.database.run_steps(look(three()))

    assert (len(alone), len(together)) == (2, 1)


async def test_statements_are_counted_with_what_begins_and_ends_their_transaction(rota_app: TestRota) -> None:
    with counting() as looking:
        await rota_app.looking.run_steps(look(three()))
    with counting() as elsewhere:
        await rota_app.database.run_steps(look(three()))
    with counting() as one:
        await rota_app.looking.run(TRANSACTION)

    # begin, what sets it up, and commit
    assert (looking.statements, elsewhere.statements, one.statements) == (3, 6, 1)


async def test_what_others_ask_at_the_same_time_is_not_counted(rota_app: TestRota) -> None:
    async def ask(times: int) -> int:
        with counting() as spent:
            for _ in range(times):
                await rota_app.looking.run(SLEEP)
        return spent.statements

    assert await asyncio.gather(ask(2), ask(5)) == [2, 5]


async def test_every_session_for_looking_ends_a_statement_that_takes_long(rota_app: TestRota) -> None:
    limits = [await rota_app.looking.run(setting(name)) for name in ("statement_timeout", "lock_timeout")]

    assert limits == ["2s", "500ms"]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        async with rota_app.looking.transaction() as connection:
            await connection.execute("create table written (id int)")
