"""Rota in a Django project, of any version that is supported: the app of the settings, the command, the checks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.integrations.django.shops import PROJECT, SETTINGS, ManagedWorker, Project

from rota import Rota
from rota.testing import TestRota, until_sync

pytestmark = pytest.mark.one_server

ENQUEUE = """
from django.db import connection, transaction
from shop.models import Order
from shop.tasks import {task}
with transaction.atomic():
    order = Order.objects.create(name="an anvil")
    answer = {task}.on(connection).enqueue_sync(order.id).id
"""


def sessions(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "select count(*) from pg_stat_activity where application_name = 'the shop' and datname = current_database()"
        ).fetchone()[0]  # type: ignore[index]


@pytest.mark.long
@pytest.mark.parametrize("task", ["ship", "ship_async"])
def test_a_worker_of_manage_py_runs_what_was_enqueued_in_a_transaction(
    project: Project, rota_app: TestRota, task: str
) -> None:
    id = project.run(ENQUEUE.format(task=task))

    project.drain()

    assert rota_app.jobs.get_sync(id).result == "an anvil"
    assert project.run("from shop.models import Order; answer = list(Order.objects.values_list('shipped'))") == [[True]]


@pytest.mark.parametrize("task", ["ship", "ship_async"])
@pytest.mark.long
def test_a_body_leaves_no_connection_of_django_behind(
    project: Project, worker: Callable[..., ManagedWorker], rota_app: TestRota, rota_database: str, task: str
) -> None:
    worker()

    rota_app.jobs.get_sync(project.run(ENQUEUE.format(task=task))).wait_sync("20s")

    until_sync(lambda: sessions(rota_database) == 0, 20)


@pytest.mark.long
def test_a_poll_leaves_no_connection_of_django_behind(
    project: Project, worker: Callable[..., ManagedWorker], rota_database: str
) -> None:
    project.run("from shop.models import Order; answer = Order.objects.create(name='polled').id")
    worker()

    with psycopg.connect(rota_database, autocommit=True) as connection:
        until_sync(
            lambda: connection.execute("select from shop_order where shipped and polled_at is not null").rowcount, 10
        )

    until_sync(lambda: sessions(rota_database) == 0, 20)


@pytest.mark.long
def test_a_connection_that_broke_is_replaced_before_the_next_body(rota_database: str, rota_app: TestRota) -> None:
    kept = Project(rota_database, SHOP_CONN_MAX_AGE=None)
    kept.manage("migrate", "shop")
    first = kept.run(ENQUEUE.format(task="ship"))
    broken = """
from django.db import connection
from rota.integrations.django import app
@app.task(retry=None)
def break_it():
    with connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pg_backend_pid())")
break_it.enqueue_sync()
from shop.tasks import ship
answer = ship.enqueue_sync({first}).id
app.work_sync(drain=True, concurrency=1)
answer = [app.jobs.get_sync(answer).attempt, app.jobs.list_sync(state="dead")[0].task]
"""

    assert kept.run(broken.format(first=1)) == [1, "break_it"]
    assert rota_app.jobs.get_sync(first).state == "succeeded"


@pytest.mark.long
def test_a_connection_that_grew_too_old_while_no_body_ran_is_not_used(rota_database: str) -> None:
    aged = """
from django.db import connection
from rota.integrations.django.bodies import with_connections
from rota.jobs.running import running

def session():
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return cursor.fetchone()[0]

running.set("a job")
body = with_connections(session)
first, again = body(), body()
connection.close_at = 0
answer = [first == again, body() == first]
"""

    assert Project(rota_database, SHOP_CONN_MAX_AGE=None).run(aged) == [True, False]


@pytest.mark.long
def test_a_task_that_is_called_where_it_stands_keeps_the_connections_of_its_caller(project: Project) -> None:
    same = """
from django.db import connection
from shop.models import Order
from shop.tasks import ship
order = Order.objects.create(name="an anvil")
before = connection.connection
answer = [ship(order.id), connection.connection is before]
"""

    assert project.run(same) == ["an anvil", True]


@pytest.mark.long
def test_a_body_in_a_process_of_its_own_has_django_set_up(rota_database: str, rota_app: TestRota) -> None:
    project = Project(rota_database, ROTA={"DISCOVER": ["tasks", "crunch"]})
    project.manage("migrate", "shop")
    id = project.run("from shop.crunch import count; answer = count.enqueue_sync().id")

    project.drain()

    assert rota_app.jobs.get_sync(id).result == 0


@pytest.mark.long
def test_the_rota_command_sets_django_up_for_itself(project: Project, rota_app: TestRota) -> None:
    id = project.run(ENQUEUE.format(task="ship"))

    subprocess.run(
        [sys.executable, "-m", "rota", "worker", "rota.integrations.django:app", "--drain"],
        cwd=PROJECT,
        env={**project.env, "DJANGO_SETTINGS_MODULE": SETTINGS},
        check=True,
        timeout=60,
    )

    assert rota_app.jobs.get_sync(id).state == "succeeded"


@pytest.mark.long
def test_the_command_has_the_app_and_the_database_of_the_settings(
    project: Project, rota_app: TestRota, tmp_path: Path
) -> None:
    id = project.run(ENQUEUE.format(task="ship"))

    assert "nothing to apply" in project.manage("rota", "migrate", "--check", cwd=tmp_path)
    assert f'"id": {id}' in project.manage("rota", "jobs", "list", "--json", cwd=tmp_path)
    assert "There is no job 99" in project.manage("rota", "jobs", "show", "99", fails=1)
    assert "manage.py rota [OPTIONS] COMMAND" in project.manage("rota", "--help")
    assert "manage.py rota [OPTIONS] COMMAND" in project.manage("help", "rota")


@pytest.mark.long
def test_the_doctor_proposes_commands_of_manage_py(rota_database: str, rota_app: TestRota) -> None:
    project = Project(rota_database, ROTA={"SCHEMA": "ours"})
    rota_app.jobs.list_sync()

    said = project.manage("rota", "doctor", fails=5)
    project.manage("rota", "migrate")
    project.run("from shop.tasks import ship; answer = ship.enqueue_sync(1).id")
    after = project.manage("rota", "doctor", fails=6)

    assert "(from the settings of the project)" in said
    assert "Run `manage.py rota migrate" in said
    assert "-> manage.py rota migrate\n" in said
    assert "-> manage.py rota worker\n" in after
    assert "-> rota" not in said + after


@pytest.mark.long
def test_processes_that_the_command_starts_find_the_project_from_any_folder(project: Project, tmp_path: Path) -> None:
    dev = ManagedWorker(project, cwd=tmp_path, command="dev")

    with dev.start():
        dev.wait_for_output("working on", 40)
        dev.signal(signal.SIGINT)
        assert dev.wait() == 0


@pytest.mark.long
def test_the_command_can_be_called_from_code(project: Project) -> None:
    call = """
from django.core.management import CommandError, call_command
call_command("rota", "migrate", "--check")
try:
    call_command("rota", "jobs", "show", "99")
except CommandError as error:
    answer = error.returncode
"""

    assert project.run(call) == 1


@pytest.mark.long
def test_migrate_makes_the_tables_of_rota_unless_told_not_to(project: Project, rota_database: str) -> None:
    without = Project(rota_database, ROTA={"SCHEMA": "ours", "MIGRATE": False})
    without.manage("migrate")
    assert "rota.W004" in without.manage("check", "--database", "default")

    within = Project(rota_database, ROTA={"SCHEMA": "ours"})
    assert "Applied rota.0001" in within.manage("migrate")

    assert "rota.W004" not in without.manage("check", "--database", "default")
    with Rota(rota_database, schema="ours") as app:
        assert app.jobs.list_sync() == []


@pytest.fixture
def two_databases(rota_database: str) -> Iterator[Project]:
    """A project whose models are in one database, and Rota's tables in another."""
    models = f"models_{uuid4().hex[:12]}"
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(f"create database {models}")
    where = conninfo_to_dict(rota_database)
    jobs = where.pop("dbname")
    engine = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": where}
    databases = {"default": {**engine, "NAME": models}, "jobs": {**engine, "NAME": jobs}}
    try:
        yield Project(rota_database, DATABASES=databases, ROTA={"DATABASE": "jobs", "SCHEMA": "ours"})
    finally:
        with psycopg.connect(rota_database, autocommit=True) as db:
            db.execute(f"drop database {models} with (force)")


@pytest.mark.long
def test_of_several_databases_the_one_that_the_settings_name_has_the_tables_and_the_jobs(
    two_databases: Project, rota_database: str
) -> None:
    assert "Applied rota" not in two_databases.manage("migrate")
    assert "Applied rota.0001" in two_databases.manage("migrate", "--database", "jobs")

    seen = two_databases.run("""
from django.db import connection, connections, transaction
from rota.integrations.django import app
from shop.models import Order
from shop.tasks import ship

def undone(using, on):
    try:
        with transaction.atomic(using=using):
            job = ship.on(on).enqueue_sync(order.id)
            raise LookupError
    except LookupError:
        return job.id in [each.id for each in app.jobs.list_sync()]

order = Order.objects.create(name="an anvil")
answer = [app.database.dsn.database, app.connection.alias]
answer += [undone("default", app.connection), undone("jobs", connections["jobs"])]
try:
    ship.on(connection).enqueue_sync(order.id)
except Exception as error:
    answer += [type(error).__name__]
""")
    two_databases.drain()
    shipped = two_databases.run("from shop.models import Order; answer = list(Order.objects.values_list('shipped'))")

    # a transaction of the other database is not that of the job
    assert seen == [conninfo_to_dict(rota_database)["dbname"], "jobs", True, False, "ProgrammingError"]
    assert shipped == [[True]]
    assert "rota.W004" not in two_databases.manage("check", "--database", "jobs")


@pytest.mark.long
@pytest.mark.parametrize("tests", ["Tests", "Quiet"])
def test_the_test_runner_of_django_has_a_database_of_its_own_for_rota(project: Project, tests: str) -> None:
    assert "OK" in project.manage("test", f"shop.tests.{tests}", "--no-input")


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ROTA": {"DATABASE": "lite"}}, "rota.E002"),
        ({"ROTA": {"DATABASE": "nowhere"}}, "DATABASES has only 'default', 'lite'"),
        ({"ROTA": {"SCHMEA": "x", "dsn": "y"}}, "does not know 'SCHMEA', 'dsn'"),
        ({"ROTA": {"LEASE": "1ms"}}, "The lease cannot be"),
        ({"ROTA": {"CODEC": "shop.nothing.Codec"}}, "No module named 'shop.nothing'"),
    ],
)
def test_a_check_says_what_is_wrong_with_the_settings(
    rota_database: str, settings: dict[str, object], told: str
) -> None:
    said = Project(rota_database, **settings).manage("check", fails=1)

    assert told in said
    assert "Traceback" not in said


@pytest.mark.long
def test_a_check_warns_of_a_pool_that_is_smaller_than_a_worker(rota_database: str) -> None:
    said = Project(rota_database, SHOP_POOL={"max_size": 5}).manage("check")

    assert "rota.W003" in said
    assert "has 5 connections, and a worker runs 20 bodies" in said
    assert "rota.W003" not in Project(rota_database, SHOP_POOL={"max_size": 20}).manage("check")


@pytest.mark.long
def test_the_sessions_of_rota_say_what_they_are_for(project: Project) -> None:
    assert "the shop" not in project.run("from rota.integrations.django import app; answer = app.database.dsn.conninfo")


def test_nothing_of_django_is_imported_with_the_app(tmp_path: Path) -> None:
    code = "import rota, sys; rota.Rota('dbname=x'); import rota.cli.worker; print('django' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)

    assert said.stdout.strip() == "False"
