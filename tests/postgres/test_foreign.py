from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import asyncpg
import django
import psycopg
import pytest
from django.core.cache import cache
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection as django_connection
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, InternalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.drivers import (
    ASYNC,
    SYNC,
    Mine,
    Oops,
    User,
    asyncpg_connection,
    asyncpg_pooled,
    django_proxy,
    django_wrapper,
    opened_by,
    psycopg_async,
    psycopg_connection,
    sqlalchemy_async_connection,
    sqlalchemy_async_session,
    sqlalchemy_connection,
    sqlalchemy_session,
)

from rota import ConfigurationError
from rota.postgres.foreign import foreign
from rota.postgres.query import Query, nothing, scalar, statement

pytestmark = pytest.mark.one_server  # what is shown here is up to the drivers

INSERT = statement("insert", "insert into {schema}.jobs (task) values (%(task)s::text) returning id")
LOOK = statement(
    "look",
    "select %(large)s::bigint, 1 + %(small)s::int, %(half)s::float8, %(text)s::text, %(none)s::text is null, "
    "cardinality(%(tags)s::text[]), %(text)s::text || '100%%', ':a ::b \\:c $1 ?', "
    "timestamptz '2026-03-04 05:06:07+00', %(args)s::text::jsonb ->> 'a'",
)
BARE = statement("bare", "select '100%%'::text")
ROWLESS = statement("rowless", "update {schema}.jobs set queue = %(queue)s::text where false")
PID = statement("pid", "select pg_backend_pid()")
FAIL = statement("fail", "select 1 / %(zero)s::int")

TEXT = "grüße 'x' \\ % :y %(z)s $1"
LOOK_PARAMS = {
    "large": 5_000_000_000,
    "small": 1,
    "half": 0.5,
    "text": TEXT,
    "none": None,
    "tags": ["a,b", 'c"d', "e"],
    "args": '{"a": "b"}',
}
SEEN = (
    5_000_000_000,
    2,
    0.5,
    TEXT,
    True,
    3,
    f"{TEXT}100%",
    ":a ::b \\:c $1 ?",
    datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
    "b",
)
MINE = "create table if not exists public.mine (n int); insert into public.mine values (1)"


def insert(task: str) -> Query[int]:
    return INSERT.query({"task": task}, read=scalar)


def look() -> Query[list[tuple[Any, ...]]]:
    return LOOK.query(LOOK_PARAMS, read=list)


@pytest.fixture(params=opened_by(SYNC, "psycopg", "sqlalchemy_connection", "sqlalchemy_session", "django_proxy"))
def user(request: pytest.FixtureRequest, rota_database: str) -> Iterator[User]:
    with request.param(rota_database) as opened:
        yield opened


@pytest.fixture(
    params=opened_by(
        ASYNC,
        "psycopg",
        "asyncpg",
        "sqlalchemy_connection_psycopg",
        "sqlalchemy_session_psycopg",
        "sqlalchemy_session_asyncpg",
    )
)
def opening(request: pytest.FixtureRequest) -> Any:
    """Opened by the test: SQLAlchemy's scoped session is that of the task it is opened in."""
    return request.param


def read(dsn: str, sql: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute(sql)]


def tasks(dsn: str) -> list[str]:
    return read(dsn, "select task from rota.jobs order by id")


def mine(dsn: str) -> list[int]:
    return read(dsn, "select n from public.mine")


def test_on_a_sync_connection_our_rows_commit_with_the_users(user: User, rota_database: str) -> None:
    on = foreign(user.native)

    with user.transaction():
        user.execute(MINE)
        job_id = on.run_sync(insert("committed"), "rota")
        invisible = tasks(rota_database)
        user.execute("insert into public.mine values (2)")

    assert not on.is_async
    assert on.native is user.native
    assert job_id == 1
    assert invisible == []
    assert tasks(rota_database) == ["committed"]
    assert mine(rota_database) == [1, 2]


async def test_on_an_async_connection_our_rows_commit_with_the_users(opening: Any, rota_database: str) -> None:
    async with opening(rota_database) as user:
        on = foreign(user.native)

        async with user.transaction():
            await user.execute("create table public.mine (n int)")
            job_id = await on.run(insert("committed"), "rota")
            invisible = tasks(rota_database)
            await user.execute("insert into public.mine values (2)")

        assert on.is_async
        assert on.native is user.native
        assert job_id == 1
        assert invisible == []
        assert tasks(rota_database) == ["committed"]
        assert mine(rota_database) == [2]


def test_on_a_sync_connection_our_rows_are_rolled_back_with_the_users(user: User, rota_database: str) -> None:
    with suppress(Oops), user.transaction():
        foreign(user.native).run_sync(insert("rolled back"), "rota")
        raise Oops

    assert tasks(rota_database) == []


async def test_on_an_async_connection_our_rows_are_rolled_back_with_the_users(opening: Any, rota_database: str) -> None:
    async with opening(rota_database) as user:
        with suppress(Oops):
            async with user.transaction():
                await foreign(user.native).run(insert("rolled back"), "rota")
                raise Oops

        assert tasks(rota_database) == []


@pytest.mark.writes_nothing
def test_a_sync_connection_gives_plain_tuples(user: User) -> None:
    on = foreign(user.native)

    with user.transaction():
        rows = on.run_sync(look(), "rota")

        assert rows == [SEEN]
        assert type(rows[0]) is tuple
        assert rows[0][8].utcoffset() is not None
        assert on.run_sync(BARE.query(read=scalar), "rota") == "100%"
        on.run_sync(ROWLESS.query({"queue": "x"}, read=nothing), "rota")


@pytest.mark.writes_nothing
async def test_an_async_connection_gives_plain_tuples(opening: Any, rota_database: str) -> None:
    async with opening(rota_database) as user, user.transaction():
        on = foreign(user.native)

        rows = await on.run(look(), "rota")

        assert rows == [SEEN]
        assert type(rows[0]) is tuple
        assert await on.run(BARE.query(read=scalar), "rota") == "100%"
        await on.run(ROWLESS.query({"queue": "x"}, read=nothing), "rota")


@pytest.mark.writes_nothing
@pytest.mark.parametrize("schema", ['odd "schema" 100% :a ::b $1 %(c)s'])
async def test_any_name_of_a_schema_reaches_any_driver_as_it_is(opening: Any, schema: str, rota_database: str) -> None:
    name = statement("name", "select {schema} from (values (1)) as {schema}({schema}) where 1 = %(one)s::int")

    async with opening(rota_database) as user, user.transaction():
        assert await foreign(user.native).run(name.query({"one": 1}, read=scalar), schema) == 1


def test_the_session_of_a_sync_connection_is_left_as_it_was(user: User, rota_database: str) -> None:
    shown = "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings where source = 'session'"
    settled = statement("settled", shown)
    on = foreign(user.native)
    with user.transaction():
        before = on.run_sync(settled.query(read=scalar), "rota")

    with user.transaction():
        on.run_sync(insert("one"), "rota")

    with user.transaction():
        assert on.run_sync(settled.query(read=scalar), "rota") == before


@pytest.mark.writes_nothing
def test_a_sync_connection_in_an_aborted_transaction_raises_its_drivers_error(user: User) -> None:
    on = foreign(user.native)
    broken = (psycopg.errors.InFailedSqlTransaction, InternalError, TransactionManagementError, django.db.InternalError)

    with suppress(Oops), user.transaction():
        with pytest.raises((psycopg.errors.DivisionByZero, DBAPIError, django.db.DataError)):
            on.run_sync(FAIL.query({"zero": 0}, read=scalar), "rota")
        with pytest.raises(broken):
            on.run_sync(insert("never"), "rota")
        raise Oops


@pytest.mark.writes_nothing
async def test_an_async_connection_in_an_aborted_transaction_raises_its_drivers_error(
    opening: Any, rota_database: str
) -> None:
    broken = (psycopg.errors.InFailedSqlTransaction, asyncpg.InFailedSQLTransactionError, DBAPIError)

    async with opening(rota_database) as user:
        with suppress(Oops):
            async with user.transaction():
                with pytest.raises((psycopg.errors.DivisionByZero, asyncpg.DivisionByZeroError, DBAPIError)):
                    await foreign(user.native).run(FAIL.query({"zero": 0}, read=scalar), "rota")
                with pytest.raises(broken):
                    await foreign(user.native).run(insert("never"), "rota")
                raise Oops


async def test_a_closed_connection_raises_its_drivers_error(rota_database: str) -> None:
    with psycopg_connection(rota_database) as sync:
        sync.native.close()
        with pytest.raises(psycopg.OperationalError, match="closed"):
            foreign(sync.native).run_sync(insert("never"), "rota")
    async with asyncpg_connection(rota_database) as user:
        await user.native.close()
        with pytest.raises(asyncpg.InterfaceError, match="closed"):
            await foreign(user.native).run(insert("never"), "rota")


def test_begin_and_commit_on_a_sync_connection_commit_the_users_writes_and_ours(user: User, rota_database: str) -> None:
    on = foreign(user.native)

    on.begin_sync()
    user.execute(MINE)
    on.run_sync(insert("committed"), "rota")
    assert tasks(rota_database) == []
    on.commit_sync()

    assert tasks(rota_database) == ["committed"]
    assert mine(rota_database) == [1]
    with user.transaction():
        on.run_sync(insert("later"), "rota")
    assert tasks(rota_database) == ["committed", "later"]


async def test_begin_and_commit_on_an_async_connection_commit_the_users_writes_and_ours(
    opening: Any, rota_database: str
) -> None:
    async with opening(rota_database) as user:
        on = foreign(user.native)

        await on.begin()
        await user.execute("create table public.mine (n int)")
        await on.run(insert("committed"), "rota")
        assert tasks(rota_database) == []
        await on.commit()

        assert tasks(rota_database) == ["committed"]
        assert mine(rota_database) == []
        async with user.transaction():
            await on.run(insert("later"), "rota")
        assert tasks(rota_database) == ["committed", "later"]


def test_begin_and_rollback_on_a_sync_connection_undo_both(user: User, rota_database: str) -> None:
    on = foreign(user.native)

    on.begin_sync()
    on.run_sync(insert("rolled back"), "rota")
    on.rollback_sync()
    on.begin_sync()
    on.run_sync(insert("second try"), "rota")
    on.commit_sync()

    assert tasks(rota_database) == ["second try"]


async def test_begin_and_rollback_on_an_async_connection_undo_both(opening: Any, rota_database: str) -> None:
    async with opening(rota_database) as user:
        on = foreign(user.native)

        await on.begin()
        await on.run(insert("rolled back"), "rota")
        await on.rollback()
        await on.begin()
        await on.run(insert("second try"), "rota")
        await on.commit()

        assert tasks(rota_database) == ["second try"]


DEFERRED = """
    create table public.parent (id int primary key);
    create table public.child (id int references public.parent deferrable initially deferred);
"""


def test_a_commit_that_fails_on_a_sync_connection_raises_and_may_be_rolled_back(user: User, rota_database: str) -> None:
    with psycopg.connect(rota_database) as connection:
        connection.execute(DEFERRED)
    on = foreign(user.native)
    on.begin_sync()
    user.execute("insert into public.child values (1)")
    on.run_sync(insert("never"), "rota")

    with pytest.raises((psycopg.errors.ForeignKeyViolation, DBAPIError, django.db.IntegrityError)):
        on.commit_sync()
    on.rollback_sync()

    assert tasks(rota_database) == []
    with user.transaction():
        on.run_sync(insert("later"), "rota")
    assert tasks(rota_database) == ["later"]


async def test_a_commit_that_fails_on_an_async_connection_raises_and_may_be_rolled_back(
    opening: Any, rota_database: str
) -> None:
    with psycopg.connect(rota_database) as connection:
        connection.execute(DEFERRED)
    async with opening(rota_database) as user:
        on = foreign(user.native)
        await on.begin()
        await user.execute("insert into public.child values (1)")
        await on.run(insert("never"), "rota")

        with pytest.raises((psycopg.errors.ForeignKeyViolation, asyncpg.ForeignKeyViolationError, DBAPIError)):
            await on.commit()
        await on.rollback()

        assert tasks(rota_database) == []
        async with user.transaction():
            await on.run(insert("later"), "rota")
        assert tasks(rota_database) == ["later"]


@pytest.mark.parametrize("opened", [psycopg_connection, sqlalchemy_connection, sqlalchemy_session])
def test_a_transaction_that_is_open_is_committed_as_a_whole(opened: Any, rota_database: str) -> None:
    with opened(rota_database) as user:
        on = foreign(user.native)
        user.execute(MINE)

        on.begin_sync()
        on.run_sync(insert("committed"), "rota")
        on.commit_sync()

        assert tasks(rota_database) == ["committed"]
        assert mine(rota_database) == [1]


def test_a_connection_of_djangos_without_autocommit_is_committed_as_a_whole(rota_database: str) -> None:
    with django_wrapper(rota_database) as user:
        user.native.set_autocommit(False)
        on = foreign(user.native)
        user.execute(MINE)

        on.begin_sync()
        on.run_sync(insert("committed"), "rota")
        on.commit_sync()
        on.begin_sync()
        on.run_sync(insert("rolled back"), "rota")
        on.rollback_sync()

        user.native.set_autocommit(True)
        assert tasks(rota_database) == ["committed"]
        assert mine(rota_database) == [1]


@pytest.mark.parametrize("opened", [psycopg_connection, django_proxy])
def test_a_block_of_the_users_around_ours_is_refused(opened: Any, rota_database: str) -> None:
    with opened(rota_database) as user, user.transaction():
        with pytest.raises(ConfigurationError, match=r"inside a `.+\(\)` block already.+Leave that block"):
            foreign(user.native).begin_sync()

        assert foreign(user.native).run_sync(insert("goes on"), "rota") == 1


@pytest.mark.parametrize("opened", [psycopg_async, asyncpg_connection, asyncpg_pooled])
async def test_an_async_block_of_the_users_around_ours_is_refused(opened: Any, rota_database: str) -> None:
    async with opened(rota_database) as user, user.transaction():
        with pytest.raises(ConfigurationError, match=r"inside a `connection\.transaction\(\)` block already"):
            await foreign(user.native).begin()

        assert await foreign(user.native).run(insert("goes on"), "rota") == 1


@pytest.mark.parametrize(
    "opened",
    [lambda dsn: sqlalchemy_connection(dsn, isolation_level="AUTOCOMMIT")],
)
def test_begin_refuses_a_sync_connection_on_which_nothing_commits_together(opened: Any, rota_database: str) -> None:
    with opened(rota_database) as user, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        foreign(user.native).begin_sync()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_begin_refuses_an_async_connection_on_which_nothing_commits_together(
    driver: str, rota_database: str
) -> None:
    async with sqlalchemy_async_connection(rota_database, driver, isolation_level="AUTOCOMMIT") as user:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            await foreign(user.native).begin()


def test_begin_on_an_autocommit_connection_keeps_its_isolation_level(rota_database: str) -> None:
    level = statement("level", "select current_setting('transaction_isolation')")
    with psycopg_connection(rota_database, autocommit=True) as user:
        user.native.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        on = foreign(user.native)

        on.begin_sync()
        seen = on.run_sync(level.query(read=scalar), "rota")
        on.run_sync(insert("committed"), "rota")
        hidden = tasks(rota_database)
        on.commit_sync()

        assert seen == "serializable"
        assert hidden == []
        assert tasks(rota_database) == ["committed"]


def test_a_connection_that_is_lost_is_never_said_to_have_committed(user: User, rota_database: str) -> None:
    on = foreign(user.native)
    on.begin_sync()
    on.run_sync(insert("never"), "rota")
    backend = on.run_sync(PID.query(read=scalar), "rota")
    read(rota_database, f"select pg_terminate_backend({backend}, 5000)")

    with pytest.raises((psycopg.OperationalError, DBAPIError, django.db.Error)):
        on.commit_sync()
    on.rollback_sync()

    assert tasks(rota_database) == []


async def test_an_async_connection_that_is_lost_is_never_said_to_have_committed(
    opening: Any, rota_database: str
) -> None:
    async with opening(rota_database) as user:
        on = foreign(user.native)
        await on.begin()
        await on.run(insert("never"), "rota")
        backend = await on.run(PID.query(read=scalar), "rota")
        read(rota_database, f"select pg_terminate_backend({backend}, 5000)")

        with pytest.raises((psycopg.OperationalError, DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await on.commit()
        await on.rollback()

        assert tasks(rota_database) == []


def test_a_psycopg_connection_closed_in_our_block_is_never_said_to_have_committed(rota_database: str) -> None:
    with psycopg_connection(rota_database) as user:
        on = foreign(user.native)
        on.begin_sync()
        on.run_sync(insert("never"), "rota")
        user.native.close()

        with pytest.raises(psycopg.OperationalError, match="closed"):
            on.commit_sync()
        on.rollback_sync()


def test_a_block_of_djangos_marked_for_rollback_is_never_said_to_have_committed(rota_database: str) -> None:
    with django_proxy(rota_database) as user:
        on = foreign(user.native)
        on.begin_sync()
        on.run_sync(insert("never"), "rota")
        transaction.set_rollback(True)

        with pytest.raises(TransactionManagementError):
            on.commit_sync()
        on.rollback_sync()

        assert tasks(rota_database) == []
        assert user.native.get_autocommit()


def test_what_django_does_on_commit_happens_on_ours(rota_database: str) -> None:
    happened: list[str] = []
    with django_proxy(rota_database) as user:
        on = foreign(user.native)

        on.begin_sync()
        transaction.on_commit(lambda: happened.append("committed"))
        on.commit_sync()

    assert happened == ["committed"]


class Loud(TextLoader):
    def load(self, data: Any) -> str:
        return f"not {data!r}"


TAUGHT = ["int4", "int8", "bool", "float8", "text", "timestamptz"]
ODD_CURSORS = [psycopg.ClientCursor, psycopg.RawCursor]
ODD_ASYNC_CURSORS = [psycopg.AsyncClientCursor, psycopg.AsyncRawCursor]


@pytest.mark.parametrize("cursor", ODD_CURSORS)
def test_what_a_psycopg_connection_makes_of_rows_is_not_ours_to_read(cursor: Any, rota_database: str) -> None:
    with psycopg_connection(rota_database, row_factory=dict_row, cursor_factory=cursor) as user:
        teach(user.native)

        rows = foreign(user.native).run_sync(look(), "rota")

        assert rows == [SEEN]
        assert type(rows[0]) is tuple


@pytest.mark.parametrize("cursor", ODD_ASYNC_CURSORS)
async def test_what_an_async_psycopg_connection_makes_of_rows_is_not_ours_to_read(
    cursor: Any, rota_database: str
) -> None:
    async with psycopg_async(rota_database, row_factory=dict_row, cursor_factory=cursor) as user:
        teach(user.native)

        rows = await foreign(user.native).run(look(), "rota")

        assert rows == [SEEN]
        assert type(rows[0]) is tuple


def teach(connection: Any) -> None:
    for name in TAUGHT:
        connection.adapters.register_loader(name, Loud)


def test_nothing_is_prepared_on_a_psycopg_connection(rota_database: str) -> None:
    with psycopg_connection(rota_database, prepare_threshold=0) as user:
        foreign(user.native).run_sync(insert("one"), "rota")

        assert user.native.execute("select count(*) from pg_prepared_statements", prepare=False).fetchone() == (0,)


class AttributeRecord(asyncpg.Record):
    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())


async def test_a_record_class_and_a_jsonb_codec_of_asyncpg_change_nothing(rota_database: str) -> None:
    async with asyncpg_connection(rota_database, record_class=AttributeRecord) as user:
        await user.native.set_type_codec("jsonb", schema="pg_catalog", encoder=repr, decoder=repr)

        assert await foreign(user.native).run(look(), "rota") == [SEEN]


def test_a_sqlalchemy_connection_that_streams_can_insert(rota_database: str) -> None:
    with sqlalchemy_connection(rota_database, execution_options={"stream_results": True, "yield_per": 1}) as user:
        on = foreign(user.native)

        assert on.run_sync(insert("one"), "rota") == 1
        assert on.run_sync(look(), "rota") == [SEEN]


def test_a_sqlalchemy_session_is_neither_flushed_nor_expired(rota_database: str) -> None:
    with sqlalchemy_session(rota_database) as user:
        pending = Mine(n=1)
        user.native.add(pending)

        foreign(user.native).run_sync(insert("one"), "rota")

        assert pending in user.native.new


def test_a_sqlalchemy_session_that_does_not_begin_by_itself_is_begun(rota_database: str) -> None:
    with sqlalchemy_session(rota_database, autobegin=False) as user:
        on = foreign(user.native)

        on.begin_sync()
        on.run_sync(insert("committed"), "rota")
        on.commit_sync()

        assert tasks(rota_database) == ["committed"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_sync_session_inside_an_async_one_is_used_by_sync_calls(driver: str, rota_database: str) -> None:
    async with sqlalchemy_async_session(rota_database, driver) as user, user.native.begin():
        job_id = await user.native.run_sync(lambda session: foreign(session).run_sync(insert("one"), "rota"))

    assert job_id == 1
    assert tasks(rota_database) == ["one"]


async def test_a_sync_connection_is_used_directly_by_async_calls(rota_database: str) -> None:
    with psycopg_connection(rota_database) as user:
        on = foreign(user.native)

        await on.begin()
        job_id = await on.run(insert("one"), "rota")
        await on.commit()

    assert job_id == 1
    assert tasks(rota_database) == ["one"]


async def test_django_says_itself_that_it_is_not_for_an_event_loop(rota_database: str) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        await foreign(django_connection).run(insert("never"), "rota")


def test_statements_on_djangos_connection_pass_what_is_hung_on_it(rota_database: str) -> None:
    passed: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        passed.append(sql)
        return execute(sql, params, many, context)

    with django_proxy(rota_database) as user, user.native.execute_wrapper(wrapper):
        user.native.force_debug_cursor = True
        assert foreign(user.native).run_sync(look(), "rota") == [SEEN]
        user.native.force_debug_cursor = False

    assert passed == [LOOK.sql("rota")]


async def test_in_a_pipeline_of_the_users_the_answer_is_waited_for(rota_database: str) -> None:
    async with psycopg_async(rota_database) as user, user.native.pipeline():
        await user.native.execute("select 1")

        assert await foreign(user.native).run(insert("one"), "rota") == 1


async def test_in_a_pipeline_of_the_users_an_error_is_the_drivers_own(rota_database: str) -> None:
    async with psycopg_async(rota_database) as user:
        with pytest.raises(psycopg.errors.UndefinedTable):
            async with user.native.pipeline():
                await foreign(user.native).run(insert("one"), "nowhere")


@pytest.mark.writes_nothing
async def test_sync_calls_on_an_async_connection_are_refused_in_words(opening: Any, rota_database: str) -> None:
    async with opening(rota_database) as user:
        on = foreign(user.native)

        with pytest.raises(
            ConfigurationError, match=r"can only be used with await.+`await task.on\(connection\).enqueue"
        ):
            on.run_sync(insert("never"), "rota")
        with pytest.raises(ConfigurationError, match="sync call"):
            on.begin_sync()
        with pytest.raises(ConfigurationError, match="sync call"):
            on.commit_sync()
        with pytest.raises(ConfigurationError, match="sync call"):
            on.rollback_sync()


@pytest.mark.parametrize("given", [None, "dbname=x", create_engine("sqlite://"), sessionmaker(), connections])
def test_what_is_no_connection_is_refused_in_words(given: object) -> None:
    with pytest.raises(
        ConfigurationError, match=f"(?s)of a .*{type(given).__name__}.*It takes a psycopg.*pass what you get"
    ):
        foreign(given)


@pytest.mark.parametrize("given", [connections["lite"], cache])
def test_djangos_other_connections_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="leads to .+ Rota's tables are in PostgreSQL"):
        foreign(given)


@pytest.mark.parametrize(
    "opened", [lambda engine: engine.connect(), Session, lambda e: scoped_session(sessionmaker(e))]
)
def test_sqlalchemy_on_another_database_is_refused(opened: Callable[[Any], Any]) -> None:
    engine = create_engine("sqlite://")
    native = opened(engine)

    with pytest.raises(ConfigurationError, match="leads to sqlite, and Rota's tables are in PostgreSQL"):
        foreign(native).run_sync(insert("never"), "rota")
    with pytest.raises(ConfigurationError, match="leads to sqlite"):
        foreign(native).begin_sync()

    native.close()
    engine.dispose()


def test_a_driver_of_sqlalchemys_whose_parameters_are_written_otherwise_is_refused(rota_database: str) -> None:
    with sqlalchemy_connection(rota_database) as user:
        user.native.dialect.driver = "pg8000"

        with pytest.raises(ConfigurationError, match="uses the driver pg8000.+Use postgresql\\+psycopg://"):
            foreign(user.native).run_sync(insert("never"), "rota")
