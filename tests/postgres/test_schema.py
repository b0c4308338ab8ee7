from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota import Rota
from rota.errors import ForeignDatabase, MigrationChanged, RotaError, SchemaMissing, SchemaTooNew
from rota.facts import MigrationApplied
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.schema import Applied, Migration, check_schema, migrate, migration_files, pending

ODD_NAMES = ["Rota", "my rota", 'quo"te', "grüße 🎉", "select", "100%", "a.b", "$$", "x" * 63, "{schema}", "it's"]


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def expand(folder: Path, number: int, sql: str, older_workers: str = "fine") -> None:
    (folder / f"{number:04}_test.sql").write_text(f"-- older workers: {older_workers}\n{sql};\n")


@pytest.mark.parametrize("schema", ODD_NAMES)
@pytest.mark.long
def test_any_schema_name_works_from_migration_to_result(rota_database: str, schema: str) -> None:
    app = Rota(rota_database, schema=schema)

    @app.task
    def double(n: int) -> int:
        return 2 * n

    with app:
        app.migrate_sync()
        app.adopt_sync()
        job = double.enqueue_sync(21)
        app.work_sync(drain=True)

        assert job.wait_sync(20) == 42


async def test_two_rotas_share_a_database_without_noticing_each_other(rota_database: str) -> None:
    one, other = Rota(rota_database, schema="one"), Rota(rota_database, schema="other")

    @one.task(name="where")
    def where_one() -> str:
        return "one"

    @other.task(name="where")
    def where_other() -> str:
        return "other"

    for app in (one, other):
        await app.migrate()
    first, second = await where_one.enqueue(), await where_other.enqueue()
    await other.work(drain=True)

    assert (await first.refresh()).state == "queued"
    assert await second.wait(20) == "other"
    assert [len(await app.members(ended=True)) for app in (one, other)] == [0, 1]
    for app in (one, other):
        await app.close()


def test_many_processes_may_migrate_at_once(rota_database: str, db: psycopg.Connection[Any]) -> None:
    def go(_: int) -> int:
        return len(Rota(rota_database, schema="fresh").migrate_sync())

    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(go, range(8)))

    assert sum(applied) == len(migration_files())
    assert db.execute("select count(*) from fresh.migrations").fetchone() == (len(migration_files()),)


def test_migrating_says_what_it_applied_and_can_stop_at_a_number(rota_database: str, tmp_path: Path) -> None:
    app = Rota(rota_database, schema="fresh")
    for number in (1, 2, 3):
        expand(tmp_path, number, f"create table {{schema}}.t{number} ()")
    known = migration_files(tmp_path)
    connector = Connector(Dsn(rota_database), "migrate")

    with app.facts.recorded(MigrationApplied) as heard:
        assert [m.number for m in migrate(connector, "fresh", known=known, to=2, facts=app.facts)] == [1, 2]
        assert [m.number for m in migrate(connector, "fresh", known=known, facts=app.facts)] == [3]

    assert [fact.number for fact in heard] == [1, 2, 3]


def test_a_failing_migration_leaves_nothing_behind(
    rota_database: str, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    expand(tmp_path, 1, "create table {schema}.first (); select 1/0")

    with pytest.raises(RotaError, match="division by zero"):
        migrate(Connector(Dsn(rota_database), "migrate"), "fresh", known=migration_files(tmp_path))

    assert db.execute("select to_regclass('fresh.first'), (select count(*) from fresh.migrations)").fetchone() == (
        None,
        0,
    )


KNOWN = [Migration(1, "one", "-- older workers: fine", True), Migration(2, "two", "-- older workers: fine", True)]
DONE = [Applied(m.number, m.name, m.checksum, m.compatible) for m in KNOWN]


def test_a_schema_of_this_release_or_a_newer_compatible_one_is_accepted() -> None:
    check_schema(DONE, KNOWN)
    check_schema([*DONE, Applied(3, "three", "abc", compatible=True)], KNOWN)


def test_a_schema_that_is_behind_is_refused_with_the_command_that_mends_it() -> None:
    with pytest.raises(SchemaMissing, match="0002 two.*rota migrate"):
        check_schema(DONE[:1], KNOWN)
    assert [m.number for m in pending(DONE[:1], KNOWN)] == [2]


def test_a_newer_breaking_schema_is_refused_with_exit_code_5() -> None:
    with pytest.raises(SchemaTooNew, match="0003 three.*Upgrade") as refused:
        check_schema([*DONE, Applied(3, "three", "abc", compatible=False)], KNOWN)
    assert refused.value.exit_code == 5


def test_a_migration_edited_after_it_was_applied_is_refused() -> None:
    with pytest.raises(MigrationChanged, match="0001 one"):
        pending([Applied(1, "one", "edited", True)], KNOWN)


async def test_a_worker_refuses_a_newer_breaking_schema(rota_database: str, db: psycopg.Connection[Any]) -> None:
    db.execute("insert into rota.migrations values (9999, 'contract', 'x', false)")

    async with Rota(rota_database) as app:
        with pytest.raises(SchemaTooNew):
            await app.work(drain=True)


async def test_a_worker_refuses_a_copy_of_the_database(rota_database: str, db: psycopg.Connection[Any]) -> None:
    async with Rota(rota_database) as app:
        await app.work(drain=True)
        for change in ("database = 'original'", "system_identifier = 1"):
            db.execute(f"update rota.meta set {change}")
            with pytest.raises(ForeignDatabase, match="rota adopt"):
                await app.work(drain=True)
            with pytest.raises(ForeignDatabase, match="rota adopt"):
                await app.check()  # before anything is joined
            await app.adopt()
            await app.work(drain=True)


async def test_a_worker_refuses_a_database_of_another_environment(rota_database: str) -> None:
    await Rota(rota_database, environment="production").adopt()

    async with Rota(rota_database, environment="staging") as app:
        with pytest.raises(ForeignDatabase, match="'production'.*'staging'"):
            await app.work(drain=True)
    async with Rota(rota_database, environment="production") as app:
        await app.work(drain=True)


def test_a_missing_schema_is_named_when_enqueueing(rota_database: str) -> None:
    with Rota(rota_database, schema="never_made") as app:

        @app.task
        def f() -> None: ...

        with pytest.raises(SchemaMissing, match="rota migrate"):
            f.enqueue_sync()


def test_a_file_that_does_not_say_whether_older_workers_can_live_with_it_is_no_migration(tmp_path: Path) -> None:
    (tmp_path / "0001_silent.sql").write_text("create table x ();")

    with pytest.raises(ValueError, match="older workers"):
        migration_files(tmp_path)


def test_every_shipped_migration_is_in_order_and_says_so() -> None:
    assert [m.number for m in migration_files()] == list(range(1, len(migration_files()) + 1))
