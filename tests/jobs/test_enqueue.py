"""Putting jobs there, whatever the way."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from rota import Retry, Rota, RotaError
from rota.jobs import copy as copy_room
from rota.jobs import enqueue as enqueue_room
from rota.postgres.notify import wake_channel
from rota.testing import TestRota


@pytest.fixture
def fill_notifications(own_server: Any) -> Iterator[Callable[[], None]]:
    """Brings its server to refuse every commit that notifies: some session listens, and sleeps in a transaction."""
    if own_server.binaries.major < 17:
        pytest.skip("before PostgreSQL 17 the queue always has 8 GB, which take minutes to fill")
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("alter system set max_notify_queue_pages = 64")
    own_server.restart("fast")
    with (
        psycopg.connect(own_server.dsn, autocommit=True) as admin,
        psycopg.connect(own_server.dsn, autocommit=True) as listener,
    ):

        def fill() -> None:
            listener.execute("listen something")
            listener.execute("begin")
            listener.execute("select 1")
            with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
                while True:
                    admin.execute(
                        "select pg_notify('something', repeat('x', 4000) || n) from generate_series(1, 5) as n"
                    )

        yield fill


def test_a_full_queue_of_notifications_stops_nobody_who_adds_repeats_or_erases_jobs(
    own_server: Any, fill_notifications: Callable[[], None]
) -> None:
    app = TestRota(own_server.dsn)

    @app.task(retry=Retry(attempts=1))
    def invert(n: int) -> float:
        return 1 / n

    settled, dead = app.enqueue_many_sync([invert.bind(1), invert.bind(0)])
    app.drain_sync()
    waiting = invert.using(delay="1h").enqueue_sync(2)
    running = invert.using(tags=["ada"]).enqueue_sync(0)
    with psycopg.connect(own_server.dsn, autocommit=True) as db:
        db.execute(
            "update rota.jobs set state = 'running', token = 1, member = gen_random_uuid() where id = %s", [running.id]
        )
        fill_notifications()

        app.jobs.retry_sync(waiting.id)
        app.jobs.retry_sync(settled.id)
        app.dead.retry_sync(dead.id)
        app.jobs.erase_sync(tag="ada")
        invert.enqueue_sync(3)
        app.enqueue_many_sync([invert.bind(4)])
        invert.using(unique="once").enqueue_sync(5)
        db.execute("""select rota.enqueue('invert', '{"n": 6}')""")
        with psycopg.connect(own_server.dsn) as user:
            invert.on(user).enqueue_sync(7)

    assert sorted(job.args["n"] for job in app.jobs.list_sync(state="queued")) == list(range(8))
    app.close_everywhere()


def test_a_wake_up_costs_no_call_of_its_own(rota_database: str) -> None:
    with psycopg.connect(rota_database) as db:
        rows = db.execute("explain (verbose, costs off) select rota.notify('channel', 'queue')").fetchall()

    assert any("CASE WHEN (pg_notification_queue_usage() < '0.9'" in row for (row,) in rows)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs are as many as one statement carries."""
    monkeypatch.setattr(enqueue_room, "BATCH_ROWS", 2)


@pytest.mark.parametrize("parts", ["one statement", "several"])
async def test_jobs_put_together_are_as_they_are_read(
    rota_app: TestRota, request: pytest.FixtureRequest, parts: str
) -> None:
    if parts == "several":
        request.getfixturevalue("small_parts")

    @rota_app.task(queue="mail", priority=3, retention="short")
    async def send(to: str, *, urgent: bool = False) -> None: ...

    @rota_app.task(redact=["password"])
    async def sign_in(name: str, password: str) -> None: ...

    alike = await rota_app.enqueue_many([send.bind(name) for name in ("ada", 'b"o\\', "zoë\n", "\U0001f600", "e")])
    mixed = await rota_app.enqueue_many(
        [
            send.bind("eve", urgent=True),
            sign_in.bind("ada", "secret"),
            send.using(delay="1h", tags=["late", 'q"x']).bind(to="kim"),
            sign_in.bind("bo", password="hidden"),
            send.bind("ann"),
        ]
    )

    odd = send.using(delay="1h", tags=["late", 'q"x', "a\\b"], key="\\N", queue="q\\x")
    others = await rota_app.enqueue_many([send.bind("x"), odd.bind("y"), send.bind("z")])

    jobs = [*alike, *mixed, *others]
    assert [job.args.get("to") or job.args["name"] for job in jobs] == [
        *("ada", 'b"o\\', "zoë\n", "\U0001f600", "e"),
        *("eve", "ada", "kim", "bo", "ann"),
        *("x", "y", "z"),
    ]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert [await rota_app.jobs.get(job.id) for job in jobs] == jobs


@pytest.mark.direct("nobody hears anything there")
@pytest.mark.usefixtures("small_parts")
async def test_very_many_jobs_tell_the_workers_of_each_queue_once(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task
    async def count(n: int) -> None: ...

    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(f'listen "{wake_channel("rota")}"')
        quiet = count.using(queue="quiet", wake=False)
        await rota_app.enqueue_many(
            [*(count.bind(n) for n in range(3)), *(count.using(queue="b").bind(n) for n in range(3)), quiet.bind(1)]
        )

        assert [note.payload for note in db.notifies(timeout=5, stop_after=2)] == ["b", "default"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_very_many_jobs_are_stored_as_they_are_whatever_the_session_speaks(
    rota_database: str, colour: str
) -> None:
    app = Rota(f"{rota_database} client_encoding=latin1")

    @app.task
    async def greet(name: str) -> None: ...

    bound = [greet.bind(name) for name in ("é", "ñ", "ß")]
    jobs = app.enqueue_many_sync(bound) if colour == "sync" else await app.enqueue_many(bound)

    with psycopg.connect(rota_database) as db:
        stored = db.execute("select args ->> 'name' from rota.jobs order by id").fetchall()
    assert stored == [("é",), ("ñ",), ("ß",)]
    assert [job.args["name"] for job in jobs] == ["é", "ñ", "ß"]
    await app.close()
    app.close_sync()


@pytest.mark.usefixtures("small_parts")
async def test_very_many_jobs_go_into_a_schema_of_any_name(rota_database: str) -> None:
    async with Rota(rota_database, schema='a%b"c') as app:
        await app.migrate()

        @app.task
        async def count(n: int) -> None: ...

        jobs = await app.enqueue_many([count.bind(n) for n in range(5)])

        assert [await app.jobs.get(job.id) for job in jobs] == jobs


@pytest.mark.usefixtures("small_parts")
async def test_the_secrets_of_very_many_jobs_are_stored_as_such_and_told_to_nobody(
    rota_app: TestRota, rota_database: str
) -> None:
    @rota_app.task(redact=["password"])
    async def sign_in(password: str) -> None: ...

    with psycopg.connect(rota_database, autocommit=True) as db:
        await rota_app.enqueue_many([sign_in.bind("geheim") for _ in range(5)])
        stored = db.execute("select redact from rota.jobs").fetchall()
        # what a COPY of text says of this shows the row
        db.execute(
            "create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;"
            "create trigger refuse before insert on rota.jobs for each row execute function refuse()"
        )
        with pytest.raises(RotaError) as refused:
            await rota_app.enqueue_many([sign_in.bind("geheim".upper()) for _ in range(5)])

    assert stored == [(["password"],)] * 5
    assert "GEHEIM" not in "".join(traceback.format_exception(refused.value))


async def test_secrets_of_many_jobs_are_not_kept(rota_app: TestRota) -> None:
    @rota_app.task(redact=["password"])
    async def sign_in(name: str, password: str) -> None: ...

    jobs = await rota_app.enqueue_many([sign_in.bind("ada", "secret"), sign_in.bind("bo", "hidden")])

    assert [job.args["name"] for job in jobs] == ["ada", "bo"]
    assert not any(secret in repr(vars(job)) for job in jobs for secret in ("secret", "hidden"))


@pytest.mark.usefixtures("small_parts")
async def test_of_jobs_in_several_statements_all_are_added_or_none(rota_app: TestRota) -> None:
    @rota_app.task
    async def count(n: int) -> None: ...

    refused = dataclasses.replace(count.bind(4), queue="q" * 201)

    with pytest.raises(RotaError):
        await rota_app.enqueue_many([*(count.bind(n) for n in range(4)), refused, count.bind(5)])
    with pytest.raises(RotaError):
        rota_app.enqueue_many_sync([*(count.bind(n) for n in range(4)), refused, count.bind(5)])

    assert await rota_app.jobs.list() == []
    assert [job.args for job in await rota_app.enqueue_many([count.bind(n) for n in range(3)])] == [
        {"n": 0},
        {"n": 1},
        {"n": 2},
    ]


@pytest.mark.usefixtures("small_parts")
async def test_who_gives_up_on_many_jobs_has_added_none(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task
    async def count(n: int) -> None: ...

    async with await psycopg.AsyncConnection.connect(rota_database) as other:
        await other.execute("lock table rota.jobs in share mode")
        adding = asyncio.create_task(rota_app.enqueue_many([count.bind(n) for n in range(5)]))
        async with await psycopg.AsyncConnection.connect(rota_database, autocommit=True) as admin:
            while not (await (await admin.execute(WAITING)).fetchone()):
                await asyncio.sleep(0.01)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding

    assert await rota_app.jobs.list() == []
    assert len(await rota_app.enqueue_many([count.bind(n) for n in range(5)])) == 5


@pytest.mark.one_server
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("takes", "copies"), [(0.0, 1), (6.0, 3)])
async def test_one_copy_takes_no_more_than_there_is_time_for(
    rota_database: str, monkeypatch: pytest.MonkeyPatch, takes: float, copies: int
) -> None:
    """A codec may ask a key service for each of them, and a statement has a limit of time."""
    now = 0.0

    class Slow:
        def encode(self, text: str) -> str:
            nonlocal now
            now += takes
            return text

        def decode(self, text: str) -> str:
            return text

    monkeypatch.setattr(copy_room, "boottime", lambda: now)
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "create sequence copies;"
            "create function counted() returns trigger language plpgsql as "
            "$$ begin perform nextval('public.copies'); return null; end $$;"
            "create trigger counted after insert on rota.jobs for each statement execute function counted()"
        )
        async with Rota(rota_database, codec=Slow()) as app:

            @app.task(name="count")
            async def count(n: int) -> None: ...

            jobs = await app.enqueue_many([count.bind(n) for n in range(6)])

            assert [job.args for job in jobs] == [{"n": n} for n in range(6)]
            assert {job.id for job in await app.jobs.list()} == {job.id for job in jobs}
        assert db.execute("select last_value from copies").fetchone() == (copies,)


WAITING = (
    "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%rota:copy_jobs%' "
    "and datname = current_database()"
)
