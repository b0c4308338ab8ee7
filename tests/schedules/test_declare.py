"""Schedules that code declares: upserted when a worker starts, by one of many processes, of two versions, beside rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.schedules.rounds import give_out

from rota import ConfigurationError, DatabaseUnavailable, InvalidArguments, Rota, Task
from rota.facts import ScheduleOrphaned, SchedulesDeclared, SchedulesNotDeclared
from rota.postgres import connection
from rota.schedules.declare import declare_schedules
from rota.testing import TestRota, until


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


class Process:
    """A process with some version of the code, as far as its peers can tell: a member, and what it declares."""

    def __init__(self, dsn: str, db: psycopg.Connection[Any], **crons: str) -> None:
        self.app = TestRota(dsn)
        self._db = db
        self._member: Any = None
        for name, expression in crons.items():
            self.app.cron(expression, name=name)(self.app.tasks.get("tick") or self.app.task(name="tick")(lambda: None))

    def start(self) -> Any:
        definitions = self.app.declared.definitions()
        said = {each.name: str(each.digest()) for each in definitions}
        if self._member is None:
            row = self._db.execute(
                "insert into rota.members (id, name, host, pid, release, expires_at, work) values "
                "(gen_random_uuid(), 'm', 'h', 1, '0', now() + interval '1 hour', %s) returning id",
                [psycopg.types.json.Jsonb({"schedules": said})],
            ).fetchone()
            assert row is not None
            self._member = row[0]
        return self.declare()

    def declare(self) -> Any:
        steps = declare_schedules(self.app.declared.definitions(), schema="rota", codec=None)
        return self.app.database.run_steps_sync(steps)

    def stop(self) -> None:
        self._db.execute("update rota.members set ended_at = now(), end_reason = 'left' where id = %s", [self._member])


@pytest.fixture
def process(rota_database: str, db: psycopg.Connection[Any]) -> Iterator[Any]:
    made: list[Process] = []

    def make(**crons: str) -> Process:
        made.append(Process(rota_database, db, **crons))
        return made[-1]

    yield make
    for each in made:
        each.app.close_everywhere()


def test_a_task_or_a_function_can_be_scheduled_and_stays_what_it_is(rota_app: TestRota) -> None:
    @rota_app.cron("0 9 * * *", tz="Europe/Berlin", args={"n": 2})
    @rota_app.task(queue="q")
    async def report(n: int) -> int:
        return n + 1

    @rota_app.every("30s")
    def tick() -> str:
        return "tock"

    @rota_app.every(5, name="other", args={"n": 3})
    @rota_app.cron("0 8 * * *", name="early", args={"n": 1})
    @rota_app.task
    def both(n: int) -> None: ...

    assert isinstance(report, Task)
    assert isinstance(tick, Task)
    assert tick() == "tock"
    said = {each.name: (each.task, each.kind, each.queue, each.args) for each in rota_app.declared.definitions()}
    assert said == {
        "report": ("report", "cron", "q", '{"n":2}'),
        "tick": ("tick", "every", "default", "{}"),
        "early": ("both", "cron", "default", '{"n":1}'),
        "other": ("both", "every", "default", '{"n":3}'),
    }


async def test_a_worker_declares_what_its_code_says(rota_app: TestRota) -> None:
    runs: list[int] = []
    rota_app.every("1h", args={"n": 7})(rota_app.task(name="tick")(lambda n: runs.append(n)))

    with rota_app.facts.recorded(SchedulesDeclared) as told:
        await rota_app.drain()
        await rota_app.drain()
    rota_app.advance("1h")
    await rota_app.drain()

    assert told == [SchedulesDeclared(("tick",), (), ())]
    assert runs == [7]
    seen = await rota_app.schedules.get("tick")
    assert (seen.owner, seen.revision, seen.runs) == ("code", 1, 1)


async def test_all_mistakes_are_told_before_a_worker_starts(rota_app: TestRota) -> None:
    @rota_app.task
    def tick(n: int) -> None: ...

    rota_app.cron("61 * * * *", name="a", args={"n": 1})(tick)
    rota_app.every("soon", name="b", args={"n": 1})(tick)
    rota_app.every("1s", name="c")(tick)
    rota_app.every("1s", name="d", args={"n": 1})(tick)
    rota_app.every("2s", name="d", args={"n": 1})(tick)

    with pytest.raises(ConfigurationError) as told:
        await rota_app.work()

    for part in (
        "4 schedules are wrong",
        "'a' was not put",
        "'b' was not put",
        "'c' was not put: n is missing",
        "called 'd'",
    ):
        assert part in str(told.value)
    assert await rota_app.members() == []


async def test_one_mistake_is_told_as_what_it_is(rota_app: TestRota) -> None:
    rota_app.every("1s")(rota_app.task(name="tick")(lambda n: None))

    with pytest.raises(InvalidArguments, match="Schedule 'tick' was not put: n is missing"):
        await rota_app.drain()


def test_a_module_that_is_imported_twice_declares_once() -> None:
    app = Rota("dbname=x")
    source = compile("@app.every('1s')\ndef tick(): ...", "module.py", "exec")
    for _ in range(2):
        exec(source, {"app": app})

    assert [each.name for each in app.declared.definitions()] == ["tick"]


def test_sixteen_processes_that_declare_the_same_at_once_make_one_of_each(process: Any) -> None:
    crons = {f"s{i}": "0 9 * * *" for i in range(10)}
    processes = [process(**crons) for _ in range(16)]

    with ThreadPoolExecutor(16) as threads:
        told = list(threads.map(lambda each: each.declare(), processes))

    assert sorted(len(each.put.added) for each in told) == [0] * 15 + [10]
    assert {each.revision for each in processes[0].app.schedules.list_sync()} == {1}


def test_a_rolling_deploy_does_not_flap(process: Any) -> None:
    old, new = process(s="0 1 * * *"), process(s="0 2 * * *")
    old.start()

    assert new.start().put.changed == ("s",)
    # old code that starts again meanwhile leaves it
    again = process(s="0 1 * * *").start()

    assert (again.put.changed, again.left) == ((), ("s",))
    seen = new.app.schedules.get_sync("s")
    assert (seen.cron, seen.revision) == ("0 2 * * *", 2)


def test_rolling_back_takes_effect_when_the_newer_code_is_gone(process: Any, db: psycopg.Connection[Any]) -> None:
    old, new = process(s="0 1 * * *"), process(s="0 2 * * *")
    old.start()
    new.start()
    assert old.declare().left == ("s",)
    new.stop()

    assert old.declare().put.changed == ("s",)
    assert db.execute("select cardinality(digests), digest = any (digests) from rota.schedules").fetchall() == [
        (1, False)
    ]
    # and now the newer one is what was said before
    assert process(s="0 2 * * *").start().left == ("s",)
    assert old.app.schedules.get_sync("s").cron == "0 1 * * *"


async def test_old_code_that_was_left_aside_looks_again(
    process: Any, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    old, new = process(s="0 1 * * *"), process(s="0 2 * * *")
    old.start()
    new.start()
    definitions = old.app.declared.definitions()

    async with old.app.declared.kept(definitions, rota_app.database, None, rota_app.facts, again=0.05):
        new.stop()

        async def is_back() -> bool:
            return (await rota_app.schedules.get("s")).cron == "0 1 * * *"

        await until(is_back, what="the old words are back")


async def test_old_code_that_never_went_away_takes_over_again_from_a_canary(
    process: Any, rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, canary = process(s="0 1 * * *"), process(s="0 2 * * *")
    old.start()
    definitions = old.app.declared.definitions()
    looks = 0
    ask = rota_app.database.run_steps

    async def counted(steps: Any) -> Any:
        nonlocal looks
        looks += 1
        return await ask(steps)

    monkeypatch.setattr(rota_app.database, "run_steps", counted)
    with rota_app.facts.recorded(SchedulesDeclared) as told:
        async with old.app.declared.kept(definitions, rota_app.database, None, rota_app.facts, again=0.05):
            canary.start()
            await until(lambda: told, what="it was left aside")
            seen = looks
            await until(lambda: looks > seen + 1, what="it has looked again")
            assert rota_app.schedules.get_sync("s").cron == "0 2 * * *"
            canary.stop()
            await until(lambda: len(told) == 2, what="the old words are back")
            assert rota_app.schedules.get_sync("s").cron == "0 1 * * *"

    # told once, however often it looked
    assert told == [SchedulesDeclared((), (), ("s",)), SchedulesDeclared((), ("s",), ())]


async def test_a_look_brings_back_nothing_that_was_deleted_and_mends_nothing(
    process: Any, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    ours = process(kept="0 1 * * *", gone="0 2 * * *")
    ours.start()
    rota_app.schedules.delete_sync("gone")
    db.execute("update rota.schedules set problem = 'odd'")

    looked = rota_app.database.run_steps_sync(
        declare_schedules(ours.app.declared.definitions(), schema="rota", codec=None, starts=False)
    )

    assert not looked.put
    assert [(each.name, each.problem) for each in rota_app.schedules.list_sync()] == [("kept", "odd")]
    assert ours.declare().put.added == ("gone",)


def test_a_look_at_words_that_hold_is_one_read(process: Any) -> None:
    ours = process(a="0 1 * * *", b="0 2 * * *")
    ours.start()
    steps = declare_schedules(ours.app.declared.definitions(), schema="rota", codec=None, starts=False)

    asked = next(steps)
    with pytest.raises(StopIteration):
        steps.send(ours.app.database.run_sync(asked))


def test_starting_mends_what_is_broken_but_not_what_people_put(
    process: Any, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    ours = process(code="0 1 * * *", hand="0 2 * * *")
    ours.start()
    rota_app.schedules.put_sync("hand", task="tick", cron="0 3 * * *", by="me")
    db.execute(
        "update rota.schedules set problem = 'an older leader could not read it', next_at = null, next_slot = null"
    )

    again = process(code="0 1 * * *", hand="0 2 * * *").start()

    assert again.put.changed == ("code",)
    mended, theirs = rota_app.schedules.get_sync("code"), rota_app.schedules.get_sync("hand")
    assert (mended.problem, mended.state, mended.revision) == (None, "active", 2)
    assert mended.next_at is not None
    assert (theirs.state, theirs.cron) == ("broken", "0 3 * * *")


async def test_a_worker_starts_while_someone_holds_its_schedule_and_insists(
    process: Any, rota_app: TestRota, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        connection._SESSION, "lock_timeout", "200ms"
    )  # which nobody here needs to see pass in its length
    process(s="0 1 * * *").start()
    newer = process(s="0 2 * * *").app

    with psycopg.connect(rota_database) as other, rota_app.facts.recorded(SchedulesNotDeclared) as told:
        other.execute("update rota.schedules set note = 'looking'")
        definitions = newer.declared.definitions()
        async with newer.declared.kept(definitions, rota_app.database, None, rota_app.facts, again=0.05):
            assert [type(each.error) for each in told] == [DatabaseUnavailable]
            other.rollback()

            await until(lambda: rota_app.schedules.get_sync("s").cron == "0 2 * * *", what="it is declared after all")


async def test_looking_survives_any_error(process: Any, rota_app: TestRota, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, newer = process(s="0 1 * * *"), process(s="0 2 * * *")
    ours.start()
    newer.start()
    asked = rota_app.database.run_steps

    async def fails(steps: Any, **options: Any) -> Any:
        steps.close()
        raise RuntimeError("out of the blue")

    definitions = ours.app.declared.definitions()
    with rota_app.facts.recorded(SchedulesNotDeclared) as told:
        async with ours.app.declared.kept(definitions, rota_app.database, None, rota_app.facts, again=0.05):
            monkeypatch.setattr(rota_app.database, "run_steps", fails)
            await until(lambda: told, what="an error was told")
            newer.stop()
            monkeypatch.setattr(rota_app.database, "run_steps", asked)

            await until(lambda: rota_app.schedules.get_sync("s").cron == "0 1 * * *", what="the old words are back")

    assert str(told[0].error) == "out of the blue"


def test_what_people_put_stays_until_code_says_something_new(process: Any) -> None:
    first = process(s="0 1 * * *")
    first.start()
    first.app.schedules.put_sync("s", task="tick", cron="30 4 * * *", by="me")

    again = process(s="0 1 * * *").start()
    kept = first.app.schedules.get_sync("s")
    newer = process(s="0 2 * * *").start()

    assert not again.put
    assert (kept.cron, kept.owner) == ("30 4 * * *", "me")
    assert newer.put.changed == ("s",)
    assert (first.app.schedules.get_sync("s").cron, first.app.schedules.get_sync("s").owner) == ("0 2 * * *", "code")


def test_code_takes_over_a_row_of_the_same_name(process: Any, rota_app: TestRota) -> None:
    rota_app.schedules.put_sync("s", task="tick", cron="0 1 * * *", by="me")
    rota_app.schedules.pause_sync("s")
    before = rota_app.schedules.get_sync("s")

    same = process(s="0 1 * * *").start()
    after = rota_app.schedules.get_sync("s")

    assert (same.put.changed, same.put.unchanged) == ((), ("s",))
    assert (after.owner, after.declared, after.revision, after.state) == ("code", True, before.revision, "paused")


def test_two_services_never_erase_each_others_schedules(process: Any, rota_app: TestRota) -> None:
    process(mine="0 1 * * *").start()
    told = process(yours="0 2 * * *").start()
    rota_app.schedules.put_many_sync([], prune_prefix="mine")

    assert told.orphans == ()
    assert [each.name for each in rota_app.schedules.list_sync()] == ["mine", "yours"]


def test_what_is_declared_no_more_is_told_and_goes_on(process: Any, rota_app: TestRota) -> None:
    before = process(kept="0 1 * * *", gone="*/5 * * * *")
    before.start()
    before.stop()

    after = process(kept="0 1 * * *").start()

    assert after.orphans == ("gone",)
    seen = rota_app.schedules.get_sync("gone")
    assert (seen.declared, seen.state) == (False, "active")
    assert rota_app.schedules.get_sync("kept").declared is True
    rota_app.advance("5m")
    assert give_out(rota_app) == 1


async def test_an_orphan_is_a_fact(process: Any, rota_app: TestRota) -> None:
    before = process(gone="0 1 * * *")
    before.start()
    before.stop()

    with rota_app.facts.recorded(ScheduleOrphaned) as told:
        await rota_app.drain()

    assert told == [ScheduleOrphaned("gone")]


def test_old_words_are_remembered_but_not_for_ever(process: Any, db: psycopg.Connection[Any]) -> None:
    for minute in range(53):
        process(s=f"{minute} 1 * * *").declare()

    ((kept, present),) = db.execute(
        "select cardinality(digests), digest = any (digests) from rota.schedules"
    ).fetchall()
    assert (kept, present) == (50, False)


async def test_what_a_worker_declares_is_seen_by_its_peers(rota_app: TestRota) -> None:
    rota_app.every("1h")(rota_app.task(name="tick")(lambda: None))

    async with working(rota_app):
        await until(rota_app.members, what="the worker has joined")
        (member,) = await rota_app.members()
        assert list(member.work["schedules"]) == ["tick"]

        async def is_declared() -> bool:
            listed = await rota_app.schedules.list()
            return [each.declared for each in listed] == [True]

        await until(is_declared, what="its schedule is declared")


@contextlib.asynccontextmanager
async def working(app: TestRota) -> AsyncIterator[None]:
    worker = asyncio.create_task(app.work())
    try:
        yield
    finally:
        app.stop()
        await worker
