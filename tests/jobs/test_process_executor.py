from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from rota.cli.target import find_app
from rota.facts import (
    Facts,
    JobCancelled,
    JobClaimLost,
    JobFailed,
    JobLost,
    JobRaisedAfterSuccess,
    JobSucceeded,
)
from rota.failure import StandIn
from rota.jobs import children as children_module
from rota.jobs.children import Children
from rota.jobs.claim import ClaimedJob
from rota.jobs.definition import Task
from rota.jobs.outcome import Buried, Cancelled, HandedBack, Lost, Outcome, Retried, Snoozed, Succeeded
from rota.jobs.places import check_process_task
from rota.jobs.running import Desk, Held
from rota.jobs.settle import find_settled
from rota.postgres.dsn import Dsn
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.service.points import set_hook
from rota.testing import TestRota, WorkerProcess, until

pytestmark = pytest.mark.usefixtures("history_aside")

TASKS = '''
import asyncio, atexit, ctypes, os, resource, signal, subprocess, sys, time
from datetime import date, timedelta
from pathlib import Path

from rota import Discard, Limit, Retry, Rota, Snooze, current_job

app = Rota("postgresql://nobody@127.0.0.1:1/nowhere", pool_size=1)
task = app.task
RETRY = Retry(3, backoff="constant", base=7.0, jitter=False)


@task(executor="process")
def later(day: date, days: int) -> date:
    return day + timedelta(days)


@task(executor="process")
async def later_async(day: date, days: int) -> date:
    await asyncio.sleep(0)
    return day + timedelta(days)


@task(executor="process")
def pid() -> int:
    return os.getpid()


@task(executor="process", limit=Limit(running=1, by="key"), retry=None)
def in_line(key: str, number: int) -> int:
    return number


@task(executor="process")
async def loop() -> list[int]:
    return [os.getpid(), id(asyncio.get_running_loop())]


@task(executor="process")
def abort() -> None:
    os.abort()


@task(executor="process")
def leave() -> None:
    os._exit(3)


@task(executor="process")
def crash() -> None:
    ctypes.string_at(0)


@task(executor="process")
async def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(executor="process")
def wait_for(file: Path) -> int:
    while not file.exists():
        time.sleep(0.01)
    return os.getpid()


@task(executor="process")
def repeat(text: str, times: int) -> str:
    return text * times


@task(executor="process")
def database() -> str:
    return app.database.dsn.conninfo


@task(executor="process")
def is_stopping() -> bool:
    return current_job().stopping


@task(executor="process")
def meet(folder: Path, all_of_them: int) -> None:
    (folder / str(os.getpid())).touch()
    while len(os.listdir(folder)) < all_of_them:
        time.sleep(0.01)


@task(executor="process", retry=RETRY)
def outgrow() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    bytearray(2**31)


@task(executor="process", retry=RETRY)
def fail(text: str) -> None:
    raise ValueError(text)


@task(executor="process", retry=RETRY)
async def fail_async(text: str) -> None:
    raise ValueError(text)


@task(executor="process", retry=None)
def fail_for_good() -> None:
    raise LookupError("never")


@task(executor="process", retry=RETRY)
def leave_politely() -> None:
    sys.exit("enough")


@task(executor="process", retry=RETRY)
def interrupt() -> None:
    raise KeyboardInterrupt


@task(executor="process", retry=RETRY)
async def cancel_itself() -> None:
    raise asyncio.CancelledError


@task(executor="process")
def snooze() -> None:
    raise Snooze("5m")


@task(executor="process")
def discard() -> None:
    raise Discard("no such user")


def hold(file: Path) -> None:
    """Hang, and say so; when interrupted, say that too."""
    file.write_text(str(os.getpid()))
    try:
        time.sleep(3600)
    finally:
        file.with_suffix(".cleaned").touch()


@task(executor="process", name="hold")
def hold_task(file: Path) -> None:
    hold(file)


@task(executor="process")
async def hold_async(file: Path) -> None:
    file.write_text(str(os.getpid()))
    try:
        await asyncio.sleep(3600)
    finally:
        file.with_suffix(".cleaned").touch()


@task(executor="process")
def hold_on(file: Path) -> None:
    """Hang whatever comes."""
    while True:
        try:
            hold(file)
        except BaseException:
            pass


@task(executor="process", timeout=0.5, retry=RETRY)
def hold_too_long(file: Path) -> None:
    hold(file)


@task(executor="process", timeout=0.5, retry=RETRY)
async def hold_too_long_async(file: Path) -> None:
    await hold_async(file)


@task(executor="process", timeout=0.5, retry=RETRY)
def hold_on_too_long(file: Path) -> None:
    hold_on(file)


@task(executor="process", timeout=0.2)
def be_quick() -> None:
    """Takes less than its timeout, and no Python starts and imports Rota in that time."""


@task(executor="process")
def wait_until_stopping(file: Path) -> str:
    file.touch()
    while not current_job().stopping:
        time.sleep(0.01)
    return "stopping"


@task(executor="process")
def chat() -> str:
    print("said by a body", flush=True)
    os.write(1, b"and by its file descriptor\\n")
    print("loudly", file=sys.stderr)
    return sys.stdin.read() + os.read(0, 10).decode()


@task(executor="process")
def leave_a_fork(file: Path) -> None:
    if os.fork() == 0:
        file.write_text(str(os.getpid()))
        time.sleep(3600)
    while not file.exists():
        time.sleep(0.01)
    os._exit(0)


@task(executor="process")
def leave_a_daemon(file: Path) -> None:
    if os.fork() == 0:
        os.setsid()
        file.write_text(str(os.getpid()))
        time.sleep(3600)
    while not file.exists():
        time.sleep(0.01)
    os._exit(0)


@task(executor="process")
def leave_a_program(file: Path) -> None:
    file.write_text(str(subprocess.Popen(["sleep", "3600"]).pid))
    os._exit(0)


@task(executor="process")
def clean_up_at_exit(file: Path) -> None:
    atexit.register(file.touch)


@task(executor="process")
def handicap() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


@task(executor="process")
def report(go: Path) -> list[object]:
    job = current_job()
    job.progress_sync(0.5, "half")
    job.checkpoint_sync({"page": 3})
    wait_for(go)
    return [job.saved, job.idempotency_key, job.attempt]


@task(executor="process")
async def report_async(go: Path) -> list[object]:
    job = current_job()
    await job.progress(0.5, "half")
    await job.checkpoint({"page": 3})
    while not go.exists():
        await asyncio.sleep(0.01)
    return [job.saved, job.idempotency_key, job.attempt]


@task(executor="process")
def commit() -> str:
    with current_job().transaction() as tx:
        tx.execute("insert into public.written select 1")
        tx.result = "committed"
    raise ValueError("too late")


@task(executor="process")
async def commit_async() -> str:
    async with current_job().transaction() as tx:
        await tx.execute("insert into public.written select 1")
        tx.result = "committed"
    raise ValueError("too late")


@task(executor="process")
def commit_and_report() -> None:
    job = current_job()
    with job.transaction() as tx:
        tx.execute("insert into public.written select 1")
        job.progress_sync(0.5)
        job.checkpoint_sync("nearly")


@task(executor="process")
async def commit_and_report_async() -> None:
    job = current_job()
    async with job.transaction() as tx:
        await tx.execute("insert into public.written select 1")
        await job.progress(0.5)
        await job.checkpoint("nearly")


@task(executor="process")
def commit_and_go_on(go: Path) -> None:
    with current_job().transaction():
        pass
    wait_for(go)
    go.with_suffix(".after").touch()


@task(executor="process", timeout=0.5)
def commit_and(how: str, file: Path) -> None:
    with current_job().transaction():
        pass
    file.write_text(str(os.getpid()))
    if how == "crash":
        os._exit(3)
    time.sleep(3600)


@task(executor="process")
def leave_slowly(go: Path) -> None:
    atexit.register(wait_for, go)


@task(executor="process")
def count_up(file: Path) -> None:
    job = current_job()
    file.write_text(str(os.getpid()))
    count = job.saved or 0
    while True:
        count += 1
        job.checkpoint_sync(count)


@task
def in_a_thread(file: Path) -> int:
    return wait_for(file)
'''

NOWHERE = Dsn("postgresql://nobody:secret@127.0.0.1:1/nowhere")


def desk_of(dsn: Dsn = NOWHERE, schema: str = "rota") -> Desk:
    return Desk(Database(lambda: dsn, schema), None, lambda: False)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes a module to a file and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)

    def load(name: str, text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    for name in sys.modules.keys() - before:
        if getattr(sys.modules[name], "__file__", "").startswith(str(tmp_path)):  # type: ignore[union-attr]
            del sys.modules[name]


@pytest.fixture
def tasks(load: Callable[..., ModuleType]) -> ModuleType:
    return load("tasks_for_children", TASKS)


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    children = Children(2, desk_of(), lambda: NOWHERE, Facts())
    yield children
    await children.close()


def claimed(task: Task[..., Any], *args: Any) -> ClaimedJob:
    return ClaimedJob(7, "default", task.name, 0, 1, 0, 0.0, task.bind(*args).args, 42)


async def run(children: Children, task: Task[..., Any], *args: Any, told: str | None = None) -> Outcome:
    job = claimed(task, *args)
    attempt = Held(job, task.signature, desk_of())
    if told is not None:
        attempt.tell(told)
    return await children.run(task, job, attempt)


async def result(children: Children, task: Task[..., Any], *args: Any) -> str | None:
    outcome = await run(children, task, *args)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.result


async def started(file: Path) -> int:
    """The pid of the body that is to write it here."""
    return int(await until(lambda: file.exists() and file.read_text(), what="the body runs"))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("name", ["later", pytest.param("later_async", marks=pytest.mark.long)])
async def test_arguments_and_results_are_converted_as_in_any_task(
    children: Children, tasks: ModuleType, name: str
) -> None:
    assert await result(children, getattr(tasks, name), date(2024, 2, 28), 2) == '"2024-03-01"'


async def test_a_body_runs_in_another_process_and_the_next_one_in_the_same(
    children: Children, tasks: ModuleType
) -> None:
    pids = [await result(children, tasks.pid) for _ in range(3)]

    assert len(set(pids)) == 1
    assert pids[0] != str(os.getpid())


async def test_what_is_longer_than_the_line_holds_arrives_in_whole(children: Children, tasks: ModuleType) -> None:
    repeated = await result(children, tasks.repeat, "ab ☹ " * 40_000, 2)

    assert json.loads(repeated or "") == "ab ☹ " * 80_000


async def test_a_child_learns_when_the_address_of_the_database_changes(tasks: ModuleType) -> None:
    addresses = [Dsn(f"postgresql://nobody@127.0.0.1:{port}/nowhere") for port in (1, 1, 2)]
    asked = iter(addresses)
    children = Children(1, desk_of(), lambda: next(asked), Facts())

    known = [json.loads(await result(children, tasks.database) or "") for _ in addresses]
    await children.close()

    assert known == [address.conninfo for address in addresses]


async def test_a_body_ends_when_its_worker_hangs_up(children: Children, tasks: ModuleType, tmp_path: Path) -> None:
    running = asyncio.create_task(run(children, tasks.hold_on, tmp_path / "held"))
    pid = await started(tmp_path / "held")
    (child,) = children._children

    child._orders.close()

    await until(lambda: is_gone(pid), what="it is gone, though its worker is not")
    assert isinstance(await running, Lost)


async def test_async_bodies_of_one_child_share_an_event_loop(children: Children, tasks: ModuleType) -> None:
    assert await result(children, tasks.loop) == await result(children, tasks.loop)


@pytest.mark.long
async def test_no_more_children_are_started_than_allowed(
    children: Children, tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 6)
    others = own_processes()

    await asyncio.gather(*(result(children, tasks.pid) for _ in range(6)))

    assert len(own_processes() - others) <= 2


@pytest.fixture
async def many() -> AsyncIterator[Children]:
    children = Children(20, desk_of(), lambda: NOWHERE, Facts())
    yield children
    await children.close()


async def test_a_flood_of_small_bodies_starts_no_more_children_than_there_are_cores(
    many: Children, tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 2)
    monkeypatch.setattr(children_module, "_LONG_SECONDS", 3600)  # however slow the machine is, none waits for long
    others = own_processes()

    await asyncio.gather(*(result(many, tasks.pid) for _ in range(40)))

    assert len(own_processes() - others) <= 2


async def test_bodies_that_wait_get_a_child_each(
    many: Children, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 1)
    (tmp_path / "met").mkdir()

    outcomes = await asyncio.gather(*(run(many, tasks.meet, tmp_path / "met", 4) for _ in range(4)))

    assert [type(outcome) for outcome in outcomes] == [Succeeded] * 4


@pytest.fixture
async def one() -> AsyncIterator[Children]:
    children = Children(1, desk_of(), lambda: NOWHERE, Facts())
    yield children
    await children.close()


@pytest.mark.long
async def test_jobs_get_a_child_in_the_order_in_which_they_came(one: Children, tasks: ModuleType) -> None:
    ended: list[int] = []

    async def noted(number: int) -> None:
        await run(one, tasks.pid)
        ended.append(number)

    await asyncio.gather(*(noted(number) for number in range(9)))

    assert ended == list(range(9))


async def test_who_no_longer_waits_for_a_child_is_passed_over(one: Children, tasks: ModuleType, tmp_path: Path) -> None:
    running = asyncio.create_task(result(one, tasks.wait_for, tmp_path / "go"))
    waiting = [asyncio.create_task(result(one, tasks.pid)) for _ in range(3)]
    await until(lambda: len(one._waiting) == 3, what="one runs, and three wait")

    waiting[0].cancel()
    waiting[1].cancel()
    (tmp_path / "go").touch()

    assert await waiting[2] == await running
    assert [task.cancelled() for task in waiting] == [True, True, False]


@pytest.fixture
def given(one: Children, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is to be done in the next moments in which a child is given to a job that waits, before that job knows."""
    calls: list[Callable[[], object]] = []
    keep = one._keep

    def keep_and_call(child: Any) -> None:
        keep(child)
        if calls:
            calls.pop(0)()

    monkeypatch.setattr(one, "_keep", keep_and_call)
    return calls


async def test_a_child_that_was_given_to_a_job_in_the_moment_of_its_cancellation_goes_to_the_next(
    one: Children, tasks: ModuleType, tmp_path: Path, given: list[Callable[[], object]]
) -> None:
    running = asyncio.create_task(result(one, tasks.wait_for, tmp_path / "go"))
    cancelled, waiting = [asyncio.create_task(result(one, tasks.pid)) for _ in range(2)]
    await until(lambda: len(one._waiting) == 2, what="one runs, and two wait")

    given.append(cancelled.cancel)
    (tmp_path / "go").touch()

    assert await waiting == await running
    assert cancelled.cancelled()


@pytest.mark.long
async def test_a_child_that_dies_while_it_is_given_to_a_job_costs_no_attempt(
    one: Children, tasks: ModuleType, tmp_path: Path, given: list[Callable[[], object]]
) -> None:
    pid = int(await result(one, tasks.pid) or 0)
    running = asyncio.create_task(run(one, tasks.wait_for, tmp_path / "go"))
    waiting = asyncio.create_task(result(one, tasks.pid))
    await until(lambda: len(one._waiting) == 1, what="one runs, and one waits")

    given.append(lambda: os.kill(pid, signal.SIGKILL))
    (tmp_path / "go").touch()

    assert isinstance(await running, Succeeded)
    assert int(await waiting or 0) != pid


async def test_who_asked_for_a_child_that_cannot_be_started_is_told(
    children: Children, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", str(tmp_path / "no python"))
        with pytest.raises(FileNotFoundError):
            await run(children, tasks.pid)

    assert isinstance(await run(children, tasks.pid), Succeeded)


HANGING = """
import time
from rota import Rota
from rota.jobs.places import loading

app = Rota("postgresql://nobody@127.0.0.1:1/nowhere")

@app.task(executor="process")
def unreached() -> None: ...

if loading.get():
    time.sleep(3600)
"""


async def test_a_close_ends_the_children_that_are_just_started(
    children: Children, load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 1)
    hanging = load("hanging_tasks", HANGING)
    others = own_processes()
    waiting = [asyncio.create_task(run(children, hanging.unreached)) for _ in range(2)]
    await until(lambda: own_processes() - others, what="one is started, and both wait")

    await children.close()
    await asyncio.wait(waiting)

    assert [task.cancelled() for task in waiting] == [True, True]
    assert own_processes() <= others


@pytest.mark.long
async def test_a_close_ends_a_child_that_is_started_for_a_job_that_got_another(
    children: Children,
    tasks: ModuleType,
    load: Callable[..., ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 2)
    monkeypatch.setattr(children_module, "_SLOW_SECONDS", 3600)
    hanging = load("hanging_tasks", HANGING)
    others = own_processes()
    running = asyncio.create_task(run(children, tasks.wait_for, tmp_path / "go"))
    await until(lambda: children._children and not children._starts, timeout=60, what="a child is there")
    held = asyncio.create_task(run(children, hanging.unreached))
    await until(lambda: len(own_processes() - others) == 2, what="another one is started")
    (tmp_path / "go").touch()
    await running
    held.cancel()
    await asyncio.wait([held])
    assert len(own_processes() - others) == 1

    await children.close()

    assert own_processes() <= others


async def test_a_start_that_hangs_and_that_nobody_waits_for_is_ended(
    children: Children,
    tasks: ModuleType,
    load: Callable[..., ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 2)
    monkeypatch.setattr(children_module, "_SLOW_SECONDS", 3600)
    hanging = load("hanging_tasks", HANGING)
    running = asyncio.create_task(run(children, tasks.wait_for, tmp_path / "go"))
    await until(lambda: children._children and not children._starts, timeout=60, what="a child is there")
    held = asyncio.create_task(run(children, hanging.unreached))
    await until(lambda: children._starts, what="another one is started")
    (starting,) = children._starts
    (tmp_path / "go").touch()
    await running
    await until(lambda: not children._waiting, what="the other job has the child that is free")

    children._take_for_slow(starting)

    await until(starting.done, timeout=60, what="the start is given up")
    assert not children._slow_starts
    held.cancel()
    await asyncio.wait([held])


async def test_no_more_children_are_started_at_a_time_than_there_are_cores(
    many: Children, load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 2)
    monkeypatch.setattr(children_module, "_LONG_SECONDS", 0)
    hanging = load("hanging_tasks", HANGING)

    waiting = [asyncio.create_task(run(many, hanging.unreached)) for _ in range(6)]
    await until(lambda: len(many._waiting) == 6, what="all wait")

    assert len(many._starts) == 2
    await many.close()
    await asyncio.wait(waiting)


async def test_a_start_that_hangs_holds_up_nobody_else_and_goes_with_the_job_it_was_made_for(
    children: Children, tasks: ModuleType, load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 1)
    monkeypatch.setattr(children_module, "_SLOW_SECONDS", 0.1)
    hanging = load("hanging_tasks", HANGING)
    others = own_processes()
    held = asyncio.create_task(run(children, hanging.unreached))
    await until(lambda: own_processes() - others, what="a child is started")

    pid = await result(children, tasks.pid)
    held.cancel()

    await until(lambda: own_processes() - others == {pid}, what="the one that hangs is gone")
    assert held.cancelled()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param("abort", "was killed by SIGABRT", marks=pytest.mark.long),
        pytest.param("leave", "ended with exit code 3", marks=pytest.mark.long),
        pytest.param("crash", "was killed by SIGSEGV", marks=pytest.mark.long),
        ("be_killed", "out of memory?"),
    ],
)
async def test_a_child_that_dies_loses_its_own_job_and_no_other(
    children: Children, tasks: ModuleType, tmp_path: Path, name: str, how: str
) -> None:
    neighbour = asyncio.create_task(run(children, tasks.wait_for, tmp_path / "go"))

    lost = await run(children, getattr(tasks, name))
    after = await run(children, tasks.pid)
    (tmp_path / "go").touch()

    assert isinstance(lost, Lost)
    assert how in lost.failure.message
    assert isinstance(after, Succeeded)
    assert isinstance(await neighbour, Succeeded)


async def test_a_body_that_finds_no_memory_fails_like_any_other(children: Children, tasks: ModuleType) -> None:
    outcome = await run(children, tasks.outgrow)

    assert isinstance(outcome, Retried)
    assert outcome.failure.type == "MemoryError"


@pytest.mark.skipif(sys.platform != "linux", reason="the score is Linux's")
@pytest.mark.long
async def test_when_memory_runs_out_a_child_goes_before_its_worker(children: Children, tasks: ModuleType) -> None:
    ours = int(Path("/proc/self/oom_score_adj").read_text())

    assert int(await result(children, tasks.handicap) or 0) > ours


@pytest.mark.parametrize("name", ["fail", pytest.param("fail_async", marks=pytest.mark.long)])
async def test_what_a_body_raises_is_told_as_if_it_had_run_here(
    children: Children, tasks: ModuleType, name: str
) -> None:
    outcome = await run(children, getattr(tasks, name), "no luck ☹")

    assert isinstance(outcome, Retried)
    assert outcome.pause == 7.0
    assert (outcome.failure.type, outcome.failure.message) == ("ValueError", "no luck ☹")
    assert f'{tasks.__file__}", line' in outcome.failure.trace.splitlines()[1]
    assert isinstance(outcome.failure.error, StandIn)
    assert repr(outcome.failure.error) == "ValueError('no luck ☹')"


@pytest.mark.parametrize(
    ("name", "raised"),
    [("leave_politely", "SystemExit"), ("interrupt", "KeyboardInterrupt"), ("cancel_itself", "CancelledError")],
)
@pytest.mark.long
async def test_what_would_end_a_process_fails_the_attempt_and_the_child_goes_on(
    children: Children, tasks: ModuleType, name: str, raised: str
) -> None:
    before = await result(children, tasks.pid)

    outcome = await run(children, getattr(tasks, name))

    assert isinstance(outcome, Retried)
    assert raised in outcome.failure.message
    assert await result(children, tasks.pid) == before


async def test_a_body_chooses_its_outcome_in_a_child_too(children: Children, tasks: ModuleType) -> None:
    snoozed, discarded, buried = [
        await run(children, task) for task in (tasks.snooze, tasks.discard, tasks.fail_for_good)
    ]

    assert isinstance(snoozed, Snoozed)
    assert snoozed.pause == 300.0
    assert isinstance(discarded, Cancelled)
    assert discarded.reason == "no such user"
    assert isinstance(buried, Buried)
    assert buried.failure.type == "LookupError"


async def test_stored_arguments_that_do_not_fit_fail_the_attempt(children: Children, tasks: ModuleType) -> None:
    job = claimed(tasks.later, date(2024, 1, 1), 1)._replace(args='{"day": "soon"}')

    outcome = await children.run(tasks.later, job, Held(job, tasks.later.signature, desk_of()))

    assert isinstance(outcome, Retried)
    assert outcome.failure.type == "InvalidArguments"


@pytest.mark.parametrize("name", ["hold_too_long", pytest.param("hold_too_long_async", marks=pytest.mark.long)])
async def test_a_body_whose_time_is_up_may_clean_up_and_is_gone(
    children: Children, tasks: ModuleType, tmp_path: Path, name: str
) -> None:
    outcome = await run(children, getattr(tasks, name), tmp_path / "held")

    assert isinstance(outcome, Retried)
    assert outcome.failure.type == "TimeoutError"
    assert "0.5 s" in outcome.failure.message
    assert is_gone(await started(tmp_path / "held"))
    assert (tmp_path / "held.cleaned").exists()


@pytest.mark.long
async def test_a_body_that_will_not_end_is_killed_when_its_time_is_up(
    children: Children, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_PATIENCE_SECONDS", 0.2)

    outcome = await run(children, tasks.hold_on_too_long, tmp_path / "held")

    assert isinstance(outcome, Retried)
    assert outcome.failure.type == "TimeoutError"
    assert is_gone(await started(tmp_path / "held"))


@pytest.mark.long
async def test_the_start_of_a_child_is_not_the_bodys_time(children: Children, tasks: ModuleType) -> None:
    assert isinstance(await run(children, tasks.be_quick), Succeeded)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("cancelled", "hold"),
        (None, "hold_async"),
        pytest.param("cancelled", "hold_async", marks=pytest.mark.long),
        pytest.param(None, "hold", marks=pytest.mark.long),
    ],
)
async def test_a_cancelled_body_may_clean_up_and_is_gone(
    children: Children, tasks: ModuleType, tmp_path: Path, name: str, told: str | None
) -> None:
    running = asyncio.create_task(run(children, tasks.app.tasks[name], tmp_path / "held", told=told))
    pid = await started(tmp_path / "held")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert is_gone(pid)
    assert (tmp_path / "held.cleaned").exists()


@pytest.mark.parametrize(("told", "patience"), [("cancelled", "_PATIENCE_SECONDS"), (None, "_HURRY_SECONDS")])
@pytest.mark.long
async def test_a_cancelled_body_that_will_not_end_is_killed(
    children: Children,
    tasks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: str | None,
    patience: str,
) -> None:
    monkeypatch.setattr(children_module, patience, 0.1)
    running = asyncio.create_task(run(children, tasks.hold_on, tmp_path / "held", told=told))
    pid = await started(tmp_path / "held")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert is_gone(pid)


async def test_who_cancels_twice_does_not_wait_for_the_body(
    children: Children, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_PATIENCE_SECONDS", 3600)
    running = asyncio.create_task(run(children, tasks.hold_on, tmp_path / "held", told="cancelled"))
    pid = await started(tmp_path / "held")
    running.cancel()
    await until(lambda: (tmp_path / "held.cleaned").exists(), what="the body is interrupted, and goes on")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert is_gone(pid)


@pytest.mark.long
async def test_a_draining_worker_tells_the_bodies_that_run_and_those_that_begin(
    children: Children, tasks: ModuleType, tmp_path: Path
) -> None:
    running = asyncio.create_task(result(children, tasks.wait_until_stopping, tmp_path / "one"))
    await until(lambda: (tmp_path / "one").exists())

    children.stopping()

    assert await running == '"stopping"'
    assert await result(children, tasks.wait_until_stopping, tmp_path / "two") == '"stopping"'
    await children.close()
    assert await result(children, tasks.wait_until_stopping, tmp_path / "three") == '"stopping"'


async def test_a_body_that_begins_while_the_worker_drains_knows_it_from_the_start(
    children: Children, tasks: ModuleType
) -> None:
    before = await result(children, tasks.is_stopping)

    children.stopping()

    assert [before, await result(children, tasks.is_stopping)] == ["false", "true"]


DEADLY = """
import os, signal
from rota import Rota
from rota.jobs.places import loading

app = Rota("postgresql://nobody@127.0.0.1:1/nowhere")

@app.task(executor="process")
def unreached() -> None: ...

if loading.get():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
async def test_a_child_that_dies_at_its_start_costs_an_attempt_unless_the_worker_stops(
    children: Children, load: Callable[..., ModuleType]
) -> None:
    tasks = load("deadly_tasks", DEADLY)

    lost = await run(children, tasks.unreached)
    children.stopping()
    handed_back = await run(children, tasks.unreached)

    assert isinstance(lost, Lost)
    assert "before the body began" in lost.failure.message
    assert isinstance(handed_back, HandedBack)


@pytest.mark.long
async def test_a_child_that_dies_at_its_start_costs_nobody_else_an_attempt(
    children: Children, tasks: ModuleType, load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_CORES", 1)
    deadly = load("deadly_tasks", DEADLY)

    outcomes = await asyncio.gather(*(run(children, task) for task in [deadly.unreached, tasks.pid] * 3))

    assert [type(outcome) for outcome in outcomes] == [Lost, Succeeded] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
async def test_a_signal_from_elsewhere_is_left_to_the_worker(
    children: Children, tasks: ModuleType, tmp_path: Path, number: signal.Signals
) -> None:
    pid = int(await result(children, tasks.pid) or 0)
    running = asyncio.create_task(result(children, tasks.wait_for, tmp_path / "go"))
    os.kill(pid, number)

    (tmp_path / "go").touch()

    assert await running == str(pid)


@pytest.fixture
def typed() -> Iterator[None]:
    """Something to be read from this process's standard input."""
    before = os.dup(0)
    reads, writes = os.pipe()
    os.write(writes, b"typed")
    os.close(writes)
    os.dup2(reads, 0)
    os.close(reads)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.usefixtures("typed")
async def test_a_body_may_print_and_reads_nothing(
    children: Children, tasks: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await result(children, tasks.chat) == '""'

    assert capfd.readouterr() == ("said by a body\nand by its file descriptor\n", "loudly\n")


@pytest.mark.parametrize("name", ["leave_a_fork", "leave_a_program"])
@pytest.mark.long
async def test_what_a_body_started_goes_with_its_child(
    children: Children, tasks: ModuleType, tmp_path: Path, name: str
) -> None:
    outcome = await run(children, getattr(tasks, name), tmp_path / "left")

    assert isinstance(outcome, Lost)
    left = await started(tmp_path / "left")
    await until(lambda: is_gone(left) or is_zombie(left), what="it is gone, or waits for an init to notice")


@pytest.mark.long
async def test_a_daemon_that_a_body_left_does_not_hide_the_death_of_its_child(
    children: Children, tasks: ModuleType, tmp_path: Path
) -> None:
    outcome = await run(children, tasks.leave_a_daemon, tmp_path / "left")

    os.kill(await started(tmp_path / "left"), signal.SIGKILL)
    assert isinstance(outcome, Lost)


def is_zombie(pid: int) -> bool:
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.long
async def test_a_child_that_died_while_idle_costs_no_attempt(children: Children, tasks: ModuleType) -> None:
    pid = int(await result(children, tasks.pid) or 0)

    os.kill(pid, signal.SIGKILL)

    assert int(await result(children, tasks.pid) or 0) != pid


@pytest.mark.long
async def test_a_child_with_nothing_to_do_ends_after_a_while(
    children: Children, tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_IDLE_SECONDS", 0.01)

    pid = int(await result(children, tasks.pid) or 0)

    await until(lambda: is_gone(pid))


@pytest.mark.long
async def test_a_child_with_nothing_to_do_cleans_up_when_the_worker_closes(
    children: Children, tasks: ModuleType, tmp_path: Path
) -> None:
    await run(children, tasks.clean_up_at_exit, tmp_path / "cleaned")

    await children.close()

    assert (tmp_path / "cleaned").exists()


@pytest.mark.long
async def test_a_child_that_is_on_its_way_out_is_told_nothing_more(
    children: Children, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "_IDLE_SECONDS", 0)
    await run(children, tasks.leave_slowly, tmp_path / "go")
    await until(lambda: children._leaving, what="it is asked to leave, and takes its time")

    children.stopping()

    (tmp_path / "go").touch()
    await children.close()


def own_processes() -> set[str]:
    pids: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids.update((thread / "children").read_text().split())
    return pids


@pytest.mark.long
async def test_nothing_is_left_of_thirty_jobs_and_their_crashes(tasks: ModuleType, tmp_path: Path) -> None:
    others = own_processes()
    descriptors = Path("/proc/self/fd") if sys.platform == "linux" else Path("/dev/fd")
    before = len(os.listdir(descriptors))
    children = Children(3, desk_of(), lambda: NOWHERE, Facts())
    jobs = [tasks.pid, tasks.leave, tasks.loop, tasks.be_killed, tasks.snooze, tasks.leave_politely] * 5

    outcomes = await asyncio.gather(*(run(children, task) for task in jobs))
    held = asyncio.create_task(run(children, tasks.hold_on, tmp_path / "held"))
    await started(tmp_path / "held")
    held.cancel()
    await asyncio.wait([held])
    await children.close()

    assert sum(isinstance(outcome, Lost) for outcome in outcomes) == 10
    assert own_processes() <= others
    await until(lambda: len(os.listdir(descriptors)) <= before, what="all descriptors are closed")


POINTS = """
from rota import Rota
from rota.service.points import set_hook

app = Rota("postgresql://nobody@127.0.0.1:1/nowhere")
points = []
set_hook(points.append)

@app.task(executor="process")
def reached() -> list[str]:
    return list(points)
"""


async def test_the_moments_around_a_body_are_reached_in_the_child(
    children: Children, load: Callable[..., ModuleType]
) -> None:
    tasks = load("tasks_with_points", POINTS)
    set_hook(None)

    assert await result(children, tasks.reached) == '["run.before"]'
    assert await result(children, tasks.reached) == '["run.before","run.after","run.before"]'


APP = """
from rota import Rota, Package
app = Rota("postgresql://nobody@127.0.0.1:1/nowhere")
"""


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"main": APP + "f = app.task(name='f', executor='process')(lambda: 1)"}, id="a lambda"),
        pytest.param(
            {
                "main": APP
                + "class Group:\n    @app.task(name='f', executor='process')\n    def f() -> int:\n        return 1"
            },
            id="in a class",
        ),
        pytest.param(
            {
                "main": APP + "import library\napp.package(library.parts)",
                "library": "from rota import Package\nparts = Package()\n@parts.task(executor='process')\ndef f(): return 1",
            },
            id="of a package",
        ),
        pytest.param(
            {
                "main": "from core import app\nimport library\napp.package(library.parts)",
                "core": APP,
                "library": "from rota import Package\nparts = Package()\n@parts.task(executor='process')\ndef f(): return 1",
            },
            id="of a package that another module than the app's takes in",
        ),
        pytest.param(
            {
                "main": APP + "from circle import f",
                "circle": "from main import app\n@app.task(executor='process')\ndef f(): return 1",
            },
            id="in a circle of imports",
        ),
    ],
)
@pytest.mark.long
async def test_a_child_finds_a_task(
    children: Children, load: Callable[..., ModuleType], tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)

    main = load("main", files["main"])

    assert await result(children, main.app.tasks["f"]) == "1"


async def test_a_child_finds_a_task_in_a_file_that_cannot_be_imported_by_name(
    children: Children, load: Callable[..., ModuleType], tmp_path: Path
) -> None:
    file = tmp_path / "my.tasks.py"
    file.write_text(TASKS)

    app = find_app(str(file))

    assert await result(children, app.tasks["pid"])


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "holds no task 'pid'"), ("import rota\nraise OSError('the disk is full')", "OSError: the disk is full")],
)
@pytest.mark.long
async def test_a_task_that_is_not_there_in_the_child_fails_the_attempt(
    children: Children, tasks: ModuleType, text: str, why: str
) -> None:
    Path(str(tasks.__file__)).write_text(text)

    outcome = await run(children, tasks.pid)

    assert isinstance(outcome, Retried)
    assert outcome.failure.type == "ConfigurationError"
    assert "Task 'pid' runs in a process of its own, and was not found there" in outcome.failure.message
    assert why in outcome.failure.message
    assert "Traceback" not in outcome.failure.message
    assert ("raise OSError" in outcome.failure.trace) is ("raise" in text)
    assert str(tasks.__file__) in outcome.failure.message


def test_a_function_that_no_other_process_can_find_is_refused_with_the_reason(tasks: ModuleType) -> None:
    def inside() -> None: ...

    assert "inside another function" in (check_process_task(inside) or "")
    assert check_process_task(tasks.pid.function) is None


@pytest.fixture
def app(rota_database: str, tasks: ModuleType) -> Iterator[TestRota]:
    app = TestRota(rota_database, of=tasks.app)
    yield app
    app.close_everywhere()


def rows(app: TestRota, sql: str) -> list[Any]:
    with psycopg.connect(app.database.dsn.conninfo, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("name", ["report", pytest.param("report_async", marks=pytest.mark.long)])
async def test_a_job_in_a_child_reports_and_saves(app: TestRota, tasks: ModuleType, tmp_path: Path, name: str) -> None:
    job = await app.enqueue(tasks.app.tasks[name].bind(tmp_path / "go"))
    working = asyncio.create_task(app.work(drain=True))

    await until(
        lambda: rows(app, "select progress, progress_note, saved from rota.jobs") == [(0.5, "half", {"page": 3})]
    )
    (tmp_path / "go").touch()

    assert await job.wait() == [{"page": 3}, f"rota:{job.id}", 1]
    await working


async def test_a_job_of_a_limited_task_runs_in_a_child(app: TestRota, tasks: ModuleType) -> None:
    jobs = await app.enqueue_many([tasks.in_line.bind("a", number) for number in range(3)])

    await app.drain()

    assert [await job.wait(timeout=5) for job in jobs] == [0, 1, 2]


@pytest.mark.parametrize("name", ["commit", pytest.param("commit_async", marks=pytest.mark.long)])
async def test_a_transaction_in_a_child_commits_the_jobs_success_with_its_work(
    app: TestRota, tasks: ModuleType, name: str
) -> None:
    rows(app, "create table public.written (n integer)")
    job = await app.enqueue(tasks.app.tasks[name].bind())

    with app.facts.recorded(JobRaisedAfterSuccess) as raised:
        await app.drain()

    assert rows(app, "select * from public.written") == [(1,)]
    assert await job.wait() == "committed"
    assert [str(each.error) for each in raised] == ["too late"]


@pytest.mark.parametrize("name", ["commit_and_report", "commit_and_report_async"])
@pytest.mark.long
async def test_a_body_in_a_child_reports_from_within_its_transaction(
    app: TestRota, tasks: ModuleType, name: str
) -> None:
    """Its app has one connection, and the transaction holds another."""
    rows(app, "create table public.written (n integer)")
    job = await app.enqueue(tasks.app.tasks[name].bind())

    await app.drain()

    assert rows(app, "select * from public.written") == [(1,)]
    assert [(each.state, each.attempt) for each in [await job.refresh()]] == [("succeeded", 1)]


@pytest.mark.long
async def test_a_body_that_kills_its_child_is_buried_and_its_neighbours_in_the_worker_notice_nothing(
    app: TestRota, tasks: ModuleType, tmp_path: Path
) -> None:
    neighbours = [
        await app.enqueue(tasks.app.tasks[name].bind(tmp_path / "go")) for name in ("in_a_thread", "wait_for")
    ]
    killer = await app.enqueue(tasks.be_killed.bind())
    working = asyncio.create_task(app.work(drain=True))

    await until(lambda: app.jobs.get_sync(killer.id).state == "dead", timeout=30, what="the third loss buries it")
    (tmp_path / "go").touch()
    await working

    assert [(await app.jobs.get(job.id)).attempt for job in neighbours] == [1, 1]
    assert rows(app, "select reason, losses from rota.dead") == [("lost", 3)]
    assert rows(app, "select outcome, count(*) from rota.attempts group by 1") == [("lost", 3)]
    assert "out of memory?" in rows(app, "select error_message from rota.dead")[0][0]


@pytest.mark.parametrize("name", ["hold", pytest.param("hold_async", marks=pytest.mark.long)])
async def test_a_job_that_is_cancelled_ends_with_its_process(
    app: TestRota, tasks: ModuleType, tmp_path: Path, name: str
) -> None:
    job = await app.enqueue(tasks.app.tasks[name].bind(tmp_path / "held"))
    working = asyncio.create_task(app.work(drain=True))
    pid = await started(tmp_path / "held")

    await job.cancel()
    await working

    assert is_gone(pid)
    assert (await app.jobs.get(job.id)).state == "cancelled"


@pytest.mark.long
async def test_a_body_that_goes_on_after_its_transaction_is_not_taken_for_one_that_lost_its_claim(
    app: TestRota, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def find_and_note(jobs: Sequence[ClaimedJob]) -> Query[Any]:
        query = find_settled(jobs)
        return dataclasses.replace(query, read=lambda rows: asked.append(rows) or query.read(rows))

    monkeypatch.setattr("rota.jobs.rounds.find_settled", find_and_note)
    job = await app.enqueue(tasks.commit_and_go_on.bind(tmp_path / "go"))
    other = await app.enqueue(tasks.hold_task.bind(tmp_path / "held"))
    with app.facts.recorded(JobSucceeded, JobCancelled, JobClaimLost) as told:
        working = asyncio.create_task(app.work(drain=True))
        await until(lambda: app.jobs.get_sync(job.id).state == "succeeded", what="it has committed")
        await started(tmp_path / "held")
        await other.cancel()  # by which the worker looks at all it runs
        await until(lambda: asked, what="it has asked what became of the claim")
        (tmp_path / "go").touch()
        await working

    assert (tmp_path / "go.after").exists()
    assert sorted((type(each).__name__, each.job) for each in told) == [
        ("JobCancelled", other.id),
        ("JobSucceeded", job.id),
    ]


@pytest.mark.parametrize("how", ["crash", "take too long"])
@pytest.mark.long
async def test_a_body_that_has_committed_in_a_child_has_succeeded_however_the_child_ends(
    app: TestRota, tasks: ModuleType, tmp_path: Path, how: str
) -> None:
    await app.enqueue(tasks.commit_and.bind(how, tmp_path / "committed"))

    with app.facts.recorded(JobSucceeded, JobFailed, JobLost, JobClaimLost) as told:
        await app.drain()

    assert [type(each) for each in told] == [JobSucceeded]


@pytest.mark.long
async def test_a_body_that_has_committed_in_a_child_and_is_ended_by_a_stop_has_succeeded(
    app: TestRota, tasks: ModuleType, tmp_path: Path
) -> None:
    await app.enqueue(tasks.commit_and_go_on.bind(tmp_path / "never"))
    with app.facts.recorded(JobSucceeded, JobFailed, JobLost, JobClaimLost) as told:
        working = asyncio.create_task(app.work(grace=0.01))
        await until(lambda: rows(app, "select state from rota.history") == [("succeeded",)], what="it has committed")
        app.stop()
        await working

    assert [type(each) for each in told] == [JobSucceeded]


@pytest.mark.long
async def test_a_stop_hands_back_what_will_not_end_and_its_process_is_gone(
    app: TestRota, tasks: ModuleType, tmp_path: Path
) -> None:
    job = await app.enqueue(tasks.hold_on.bind(tmp_path / "held"))
    working = asyncio.create_task(app.work(grace=0.01))
    pid = await started(tmp_path / "held")

    app.stop()
    await working

    assert is_gone(pid)
    assert [(job.state, job.attempt) for job in [await app.jobs.get(job.id)]] == [("queued", 0)]


@pytest.mark.long
async def test_who_cancels_a_worker_again_and_again_leaves_no_process_and_no_claim_behind(
    app: TestRota, tasks: ModuleType, tmp_path: Path
) -> None:
    job = await app.enqueue(tasks.hold_on.bind(tmp_path / "held"))
    working = asyncio.create_task(app.work(grace=60))
    pid = await started(tmp_path / "held")

    working.cancel()
    await until(lambda: (tmp_path / "held.cleaned").exists(), what="the body is interrupted, and goes on")
    while not working.done():
        working.cancel()
        await asyncio.sleep(0)

    assert working.cancelled()
    assert is_gone(pid)
    assert [(job.state, job.attempt) for job in [await app.jobs.get(job.id)]] == [("queued", 0)]
    await until(lambda: [each.end_reason for each in app.members_sync(ended=True)] == ["left"], what="it has left")


@pytest.mark.long
async def test_a_stop_ends_a_body_at_its_next_checkpoint(app: TestRota, tasks: ModuleType, tmp_path: Path) -> None:
    job = await app.enqueue(tasks.count_up.bind(tmp_path / "counting"))
    working = asyncio.create_task(app.work(grace=60))
    pid = await started(tmp_path / "counting")

    app.stop()
    await working

    assert is_gone(pid)
    assert [(job.state, job.attempt) for job in [await app.jobs.get(job.id)]] == [("queued", 0)]
    assert rows(app, "select saved::text::integer > 0 from rota.jobs") == [(True,)]


@pytest.mark.chaos
@pytest.mark.one_server
@pytest.mark.long
async def test_no_child_outlives_a_killed_worker(
    app: TestRota, tasks: ModuleType, tmp_path: Path, rota_worker: Callable[..., WorkerProcess]
) -> None:
    worker = rota_worker(tasks.__file__)
    await app.enqueue_many([tasks.hold_on.bind(tmp_path / "one"), tasks.hold_async.bind(tmp_path / "two")])
    pids = [await started(tmp_path / "one"), await started(tmp_path / "two")]

    worker.kill()

    await until(lambda: all(is_gone(pid) or is_zombie(pid) for pid in pids))


SCRIPT = """
import os, sys
from rota import Rota

app = Rota(sys.argv[1])

@app.task(executor="process", retry=None)
def pid() -> int:
    return os.getpid()
"""
GUARDED = """
if __name__ == "__main__":
    job = pid.enqueue_sync()
    app.work_sync(drain=True)
    print(app.jobs.get_sync(job.id).state, job.wait_sync() != os.getpid())
"""
UNGUARDED = """
if not app.jobs.list_sync():
    pid.enqueue_sync()
app.work_sync(drain=True)
print(app.jobs.get_sync(app.jobs.list_sync()[0].id).errors[0].message)
"""


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("text", "said"),
    [(GUARDED, "succeeded True"), (UNGUARDED, 'Put what starts it behind `if __name__ == "__main__":`')],
)
@pytest.mark.long
def test_a_script_is_loaded_without_being_run(rota_database: str, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + text)

    ran = subprocess.run(
        [sys.executable, "script.py", rota_database],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert said in ran.stdout, ran.stderr
