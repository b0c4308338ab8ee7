"""The connections that users of Rota have, each opened as its library does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connection as django_connection
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

settings.configure(
    DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql", "NAME": "replaced by each test"},
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    },
    USE_TZ=False,
    LOGGING_CONFIG=None,
)
django.setup()


class Oops(Exception):
    pass


@dataclass
class User:
    """A connection as its owner sees it."""

    native: Any
    transaction: Callable[[], Any]  # a block of the user's own
    execute: Callable[[str], Any]


class Base(DeclarativeBase):
    pass


class Mine(Base):
    __tablename__ = "mine"
    n: Mapped[int] = mapped_column(primary_key=True)


class SubclassedSession(Session):
    """As SQLModel's is."""


@contextmanager
def psycopg_connection(dsn: str, **options: Any) -> Iterator[User]:
    with psycopg.connect(dsn, **options) as connection:
        yield User(connection, connection.transaction, connection.execute)


@contextmanager
def sqlalchemy_engine(dsn: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def sqlalchemy_connection(dsn: str, **options: Any) -> Iterator[User]:
    with sqlalchemy_engine(dsn, **options) as engine, engine.connect() as connection:
        yield User(connection, connection.begin, connection.exec_driver_sql)


@contextmanager
def sqlalchemy_session(dsn: str, **options: Any) -> Iterator[User]:
    with sqlalchemy_engine(dsn) as engine, SubclassedSession(engine, **options) as session:
        yield User(session, session.begin, lambda sql: session.execute(sqlalchemy.text(sql)))


@contextmanager
def sqlalchemy_scoped_session(dsn: str) -> Iterator[User]:
    with sqlalchemy_engine(dsn) as engine:
        session = scoped_session(sessionmaker(engine))
        yield User(session, session.begin, lambda sql: session.execute(sqlalchemy.text(sql)))
        session.remove()


@contextmanager
def django_wrapper(dsn: str) -> Iterator[User]:
    wrapper = connections["default"]
    given = wrapper.settings_dict
    parts = conninfo_to_dict(dsn)
    address = {key.upper(): parts.pop(key, "") for key in ("host", "port", "user", "password")}
    wrapper.settings_dict = {**given, **address, "NAME": parts.pop("dbname"), "OPTIONS": parts}
    try:
        yield User(wrapper, transaction.atomic, django_execute)
    finally:
        wrapper.close()
        wrapper.settings_dict = given


@contextmanager
def django_proxy(dsn: str) -> Iterator[User]:
    with django_wrapper(dsn):
        yield User(django_connection, transaction.atomic, django_execute)


def django_execute(sql: str) -> None:
    with django_connection.cursor() as cursor:
        cursor.execute(sql)


@asynccontextmanager
async def psycopg_async(dsn: str, **options: Any) -> AsyncIterator[User]:
    async with await psycopg.AsyncConnection.connect(dsn, **options) as connection:
        yield User(connection, connection.transaction, connection.execute)


def asyncpg_address(dsn: str) -> dict[str, Any]:
    parts = conninfo_to_dict(dsn)
    return {
        "database": parts["dbname"],
        **{key: parts[key] for key in ("host", "port", "user", "password") if key in parts},
    }


@asynccontextmanager
async def asyncpg_connection(dsn: str, **options: Any) -> AsyncIterator[User]:
    connection = await asyncpg.connect(**asyncpg_address(dsn), **options)
    try:
        yield User(connection, connection.transaction, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(dsn: str) -> AsyncIterator[User]:
    async with (
        asyncpg.create_pool(**asyncpg_address(dsn), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        yield User(connection, connection.transaction, connection.execute)


@asynccontextmanager
async def async_engine(dsn: str, driver: str, **options: Any) -> AsyncIterator[Any]:
    connect = {
        "psycopg": lambda: psycopg.AsyncConnection.connect(dsn),
        "asyncpg": lambda: asyncpg.connect(**asyncpg_address(dsn)),
    }[driver]
    engine = create_async_engine(f"postgresql+{driver}://", async_creator=connect, **options)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection(dsn: str, driver: str = "psycopg", **options: Any) -> AsyncIterator[User]:
    async with async_engine(dsn, driver, **options) as engine, engine.connect() as connection:
        yield User(connection, connection.begin, connection.exec_driver_sql)


@asynccontextmanager
async def sqlalchemy_async_session(dsn: str, driver: str = "psycopg") -> AsyncIterator[User]:
    async with async_engine(dsn, driver) as engine, AsyncSession(engine) as session:
        yield User(session, session.begin, lambda sql: session.execute(sqlalchemy.text(sql)))


@asynccontextmanager
async def sqlalchemy_async_scoped_session(dsn: str) -> AsyncIterator[User]:
    async with async_engine(dsn, "psycopg") as engine:
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        yield User(session, session.begin, lambda sql: session.execute(sqlalchemy.text(sql)))
        await session.remove()


def on_asyncpg(opened: Callable[..., Any]) -> Callable[..., Any]:
    return lambda dsn: opened(dsn, "asyncpg")


SYNC = {
    "psycopg": psycopg_connection,
    "sqlalchemy_connection": sqlalchemy_connection,
    "sqlalchemy_session": sqlalchemy_session,
    "sqlalchemy_scoped_session": sqlalchemy_scoped_session,
    "django_proxy": django_proxy,
    "django_wrapper": django_wrapper,
}
ASYNC = {
    "psycopg": psycopg_async,
    "asyncpg": asyncpg_connection,
    "asyncpg_pooled": asyncpg_pooled,
    "sqlalchemy_connection_psycopg": sqlalchemy_async_connection,
    "sqlalchemy_connection_asyncpg": on_asyncpg(sqlalchemy_async_connection),
    "sqlalchemy_session_psycopg": sqlalchemy_async_session,
    "sqlalchemy_session_asyncpg": on_asyncpg(sqlalchemy_async_session),
    "sqlalchemy_scoped_session": sqlalchemy_async_scoped_session,
}


def opened_by(drivers: dict[str, Any], *short: str) -> list[Any]:
    """The parameters of a fixture: by default these, in the long form all. Each is in the short form of some tests."""
    return [
        pytest.param(opening, id=name, marks=[] if name in short else [pytest.mark.long])
        for name, opening in drivers.items()
    ]
