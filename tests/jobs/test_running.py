"""What a body does through current_job(): progress, checkpoints, and work that commits with the job's success."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from rota import ClaimLost, InvalidArguments, JobCancelled, PayloadTooLarge, Retry, Rota, RotaError, current_job
from rota.facts import Drained, JobClaimLost, JobFailed, JobRaisedAfterSuccess, JobSucceeded
from rota.testing import TcpProxy, TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def ledger(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table public.ledger (entry text)")
        yield db


def entries(db: psycopg.Connection[Any]) -> list[str]:
    return [entry for (entry,) in db.execute("select entry from public.ledger")]


def take_away(db: psycopg.Connection[Any], id: int) -> None:
    """What rescue does when the holder of a job is ended: the token is gone."""
    db.execute("update rota.jobs set state = 'queued', token = null, member = null where id = %s", [id])


@pytest.fixture
def admin(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as db:
        yield db


async def test_progress_is_seen_while_the_job_runs_and_gone_with_the_attempt(rota_app: TestRota) -> None:
    seen: list[Any] = []

    @rota_app.task(retry=Retry(attempts=2, base=60))
    async def resize(fail: bool) -> None:
        job = current_job()
        await job.progress(0.4, "resizing")
        seen.append(await rota_app.jobs.get(job.id))
        if fail:
            raise ValueError

    await resize.enqueue(False)
    failing = await resize.enqueue(True)
    await rota_app.drain()

    assert [(round(job.progress, 3), job.progress_note) for job in seen] == [(0.4, "resizing")] * 2
    assert (await failing.refresh()).progress is None


def test_sync_bodies_report_in_their_own_colour(rota_app: TestRota) -> None:
    seen: list[Any] = []

    @rota_app.task
    def resize() -> Any:
        job = current_job()
        job.progress_sync(1, "done")
        job.checkpoint_sync([1, 2])
        seen.append(rota_app.jobs.get_sync(job.id).progress)
        return job.saved

    job = resize.enqueue_sync()
    rota_app.drain_sync()

    assert job.wait_sync() == [1, 2]
    assert seen == [1.0]


@pytest.mark.by_default("1.1", "nan", "half")
@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", None])
async def test_progress_that_says_nothing_is_refused(rota_app: TestRota, fraction: Any) -> None:
    refused: list[Exception] = []

    @rota_app.task
    async def resize() -> None:
        try:
            await current_job().progress(fraction)
        except InvalidArguments as error:
            refused.append(error)

    await resize.enqueue()
    await rota_app.drain()

    assert len(refused) == 1


async def test_an_attempt_resumes_from_the_last_checkpoint(rota_app: TestRota) -> None:
    saved: list[Any] = []

    @rota_app.task(retry=Retry(attempts=3, base=0, jitter=False))
    async def crawl() -> int:
        job = current_job()
        saved.append(job.saved)
        page = job.saved["page"] if job.saved else 0
        if page < 2:
            await job.checkpoint({"page": page + 1})
            raise ConnectionError
        return int(page)

    job = await crawl.enqueue()
    await rota_app.drain()

    assert await job.wait() == 2
    assert saved == [None, {"page": 1}, {"page": 2}]


@pytest.mark.parametrize(("value", "error"), [({1, 2}, InvalidArguments), ("x" * 2_000_000, PayloadTooLarge)])
async def test_a_checkpoint_that_cannot_be_stored_is_refused(rota_app: TestRota, value: Any, error: Any) -> None:
    refused: list[Exception] = []

    @rota_app.task
    async def crawl() -> None:
        try:
            await current_job().checkpoint(value)
        except InvalidArguments as problem:
            refused.append(problem)

    await crawl.enqueue()
    await rota_app.drain()

    assert [type(problem) for problem in refused] == [error]


@pytest.mark.by_default("sync")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_checkpoint_while_the_worker_stops_hands_the_job_back_free_of_charge(
    rota_app: TestRota, kind: str
) -> None:
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()
    ended: list[str] = []

    @rota_app.task(name="async")
    async def crawl() -> int:
        job = current_job()
        if job.saved:
            return int(job.saved)
        entered.set()
        while not job.stopping:
            await asyncio.sleep(0.01)
        try:
            await job.checkpoint(7)
        except Exception:
            ended.append("caught")
        ended.append("went on")
        return 0

    @rota_app.task(name="sync")
    def crawl_sync() -> int:
        job = current_job()
        if job.saved:
            return int(job.saved)
        loop.call_soon_threadsafe(entered.set)
        while not job.stopping:
            threading.Event().wait(0.01)
        job.checkpoint_sync(7)
        ended.append("went on")
        return 0

    job = await rota_app.tasks[kind].enqueue()
    working = asyncio.create_task(rota_app.work())
    await entered.wait()
    rota_app.stop()
    await working

    stopped = await job.refresh()
    assert (stopped.state, stopped.attempt, stopped.errors, ended) == ("queued", 0, (), [])
    await rota_app.drain()
    assert await job.wait() == 7
    assert (await job.refresh()).attempt == 1


@pytest.mark.parametrize("verb", ["progress", "checkpoint", "transaction"])
async def test_an_attempt_that_lost_its_claim_is_told_and_changes_nothing(
    rota_app: TestRota, admin: psycopg.Connection[Any], ledger: psycopg.Connection[Any], verb: str
) -> None:
    told: list[BaseException] = []

    @rota_app.task
    async def late() -> None:
        job = current_job()
        if job.attempt > 1:
            return
        take_away(admin, job.id)
        try:
            if verb == "progress":
                await job.progress(0.5)
            elif verb == "checkpoint":
                await job.checkpoint("stale")
            else:
                async with job.transaction() as tx:
                    await tx.execute("insert into public.ledger values ('stale')")
        except ClaimLost as error:
            told.append(error)
            raise

    job = await late.enqueue()
    with rota_app.facts.recorded(JobClaimLost) as lost:
        await rota_app.drain()

    assert [type(error) for error in told] == [ClaimLost]
    assert [each.job for each in lost] == [job.id]
    assert entries(ledger) == []
    assert (await job.refresh()).state == "succeeded"
    assert (await job.refresh()).attempt == 2


async def test_work_in_the_jobs_transaction_commits_with_its_success(
    rota_app: TestRota, ledger: psycopg.Connection[Any]
) -> None:
    @rota_app.task
    async def pay(amount: int) -> str:
        async with current_job().transaction() as tx:
            await tx.execute("insert into public.ledger values (%s)", [f"paid {amount}"])
            await tx.connection.execute("insert into public.ledger values ('twice')")
            tx.result = "receipt"
        return "ignored"

    job = await pay.enqueue(7)
    with rota_app.facts.recorded(JobSucceeded) as succeeded:
        assert await rota_app.drain() == 1

    assert entries(ledger) == ["paid 7", "twice"]
    assert await job.wait() == "receipt"
    assert [each.job for each in succeeded] == [job.id]


async def test_names_are_found_in_the_transaction_as_the_user_has_them(
    rota_app: TestRota, ledger: psycopg.Connection[Any]
) -> None:
    @rota_app.task(name="async")
    async def pay() -> None:
        async with current_job().transaction() as tx:
            await tx.execute("insert into ledger values (current_setting('statement_timeout'))")

    @rota_app.task(name="sync")
    def pay_sync() -> None:
        with current_job().transaction() as tx:
            tx.execute("insert into ledger values (current_setting('statement_timeout'))")

    await pay.enqueue()
    await pay_sync.enqueue()
    await rota_app.drain()

    assert entries(ledger) == ["0", "0"]


async def test_jobs_can_be_enqueued_in_the_transaction_of_a_job(rota_app: TestRota) -> None:
    @rota_app.task
    async def follow_up() -> str:
        return "done"

    @rota_app.task(retry=Retry(attempts=2, base=0))
    async def pay() -> None:
        async with current_job().transaction() as tx:
            async with tx.cursor() as cursor:
                await cursor.execute("select 1")
            await follow_up.on(tx).enqueue()
            if current_job().attempt == 1:
                raise ConnectionError

    await pay.enqueue()
    await rota_app.drain()

    assert len(await rota_app.jobs.list(task=follow_up.name)) == 1


def test_sync_bodies_have_the_same_transaction(rota_app: TestRota, ledger: psycopg.Connection[Any]) -> None:
    @rota_app.task
    def pay() -> int:
        with current_job().transaction() as tx:
            tx.execute("insert into public.ledger values ('paid')")
            tx.result = 3
        return 0

    job = pay.enqueue_sync()
    rota_app.drain_sync()

    assert entries(ledger) == ["paid"]
    assert job.wait_sync() == 3


BODIES = 6


@pytest.mark.parametrize("whose", ["ours", "the user's"])
async def test_bodies_in_transactions_leave_the_connections_that_others_need(
    rota_app: TestRota, ledger: psycopg.Connection[Any], whose: str
) -> None:
    """Each holds a connection when it reports and enqueues, and there are more bodies than the app has connections."""
    dsn = rota_app.database.dsn.conninfo
    async with contextlib.AsyncExitStack() as stack:
        pool: Any = None
        if whose == "the user's":
            kwargs = {"autocommit": True}
            pool = await stack.enter_async_context(AsyncConnectionPool(dsn, min_size=0, max_size=BODIES, kwargs=kwargs))
        app = await stack.enter_async_context(Rota(dsn, pool=pool, pool_size=2))
        all_inside = asyncio.Barrier(BODIES)

        @app.task
        async def pay(entry: str) -> None:
            job = current_job()
            async with job.transaction() as tx:
                await tx.execute("insert into public.ledger values (%s)", [entry])
                async with asyncio.timeout(30):
                    await all_inside.wait()
                await job.progress(0.5)
                await job.checkpoint(entry)
                if whose == "ours":
                    await thank.enqueue(entry)

        @app.task
        async def thank(entry: str) -> None: ...

        jobs = await app.enqueue_many([pay.bind(str(n)) for n in range(BODIES)])
        await app.work(drain=True)

        assert [(await job.refresh()).attempt for job in jobs] == [1] * BODIES
    assert sorted(entries(ledger)) == [str(n) for n in range(BODIES)]


def test_sync_bodies_in_transactions_leave_the_connections_that_others_need(
    rota_app: TestRota, ledger: psycopg.Connection[Any]
) -> None:
    all_inside = threading.Barrier(BODIES)
    with Rota(rota_app.database.dsn.conninfo, pool_size=2) as app:

        @app.task
        def pay(entry: str) -> None:
            job = current_job()
            with job.transaction() as tx:
                tx.execute("insert into public.ledger values (%s)", [entry])
                all_inside.wait(30)
                job.progress_sync(0.5)

        jobs = app.enqueue_many_sync([pay.bind(str(n)) for n in range(BODIES)])
        app.work_sync(drain=True)

        assert [job.refresh_sync().attempt for job in jobs] == [1] * BODIES
    assert sorted(entries(ledger)) == [str(n) for n in range(BODIES)]


async def test_a_transaction_that_raises_commits_nothing_and_the_job_is_tried_again(
    rota_app: TestRota, ledger: psycopg.Connection[Any]
) -> None:
    @rota_app.task(retry=Retry(attempts=2, base=0))
    async def pay() -> None:
        async with current_job().transaction() as tx:
            await tx.execute("insert into public.ledger values (%s)", [f"attempt {current_job().attempt}"])
            if current_job().attempt == 1:
                raise ConnectionError

    job = await pay.enqueue()
    await rota_app.drain()

    assert entries(ledger) == ["attempt 2"]
    assert (await job.refresh()).state == "succeeded"


async def test_an_exception_after_the_transaction_is_reported_and_not_retried(
    rota_app: TestRota, ledger: psycopg.Connection[Any]
) -> None:
    @rota_app.task
    async def pay() -> None:
        async with current_job().transaction() as tx:
            await tx.execute("insert into public.ledger values ('paid')")
        raise ValueError("too late")

    job = await pay.enqueue()
    with rota_app.facts.recorded(JobRaisedAfterSuccess) as reported:
        await rota_app.drain()

    assert entries(ledger) == ["paid"]
    assert [str(each.error) for each in reported] == ["too late"]
    assert ((await job.refresh()).state, (await job.refresh()).errors) == ("succeeded", ())


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError()], ids=repr)
async def test_a_body_that_has_committed_has_succeeded_whatever_it_raises(
    rota_app: TestRota, raised: BaseException
) -> None:
    @rota_app.task
    async def pay() -> None:
        async with current_job().transaction():
            pass
        raise raised

    await pay.enqueue()
    with rota_app.facts.recorded(JobSucceeded, JobFailed, JobClaimLost) as told:
        await rota_app.drain()

    assert [type(each) for each in told] == [JobSucceeded]


async def test_a_body_that_has_committed_is_not_handed_back_by_a_stop(rota_app: TestRota) -> None:
    committed = asyncio.Event()

    @rota_app.task
    async def pay() -> None:
        async with current_job().transaction():
            pass
        committed.set()
        await asyncio.sleep(3600)

    await pay.enqueue()
    working = asyncio.create_task(rota_app.work(grace=0.01))
    await committed.wait()
    with rota_app.facts.recorded(JobSucceeded, JobClaimLost, Drained) as told:
        rota_app.stop()
        await working

    assert [type(each) for each in told] == [JobSucceeded, Drained]
    assert told[1].handed_back == 0


async def test_a_body_that_has_committed_and_refuses_to_end_has_succeeded(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.jobs.execute._PATIENCE_SECONDS", 0.1)
    release = asyncio.Event()

    @rota_app.task(timeout=1)  # time enough to commit, on a busy machine and behind a pooler too
    async def pay() -> None:
        async with current_job().transaction():
            pass
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    await pay.enqueue()
    with rota_app.facts.recorded(JobSucceeded, JobFailed, JobClaimLost) as told:
        working = asyncio.create_task(rota_app.work(drain=True))
        await until(lambda: told, what="it is told")
        release.set()
        await working

    assert [type(each) for each in told] == [JobSucceeded]


async def test_a_session_of_the_users_commits_with_the_success(
    rota_app: TestRota, ledger: psycopg.Connection[Any], rota_database: str
) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(rota_database))

    @rota_app.task(retry=Retry(attempts=2, base=0))
    def pay() -> None:
        with Session(engine) as session, current_job().transaction(on=session) as tx:
            assert tx.connection is session
            session.execute(text("insert into public.ledger values (:n)"), {"n": f"attempt {current_job().attempt}"})
            if current_job().attempt == 1:
                raise ConnectionError

    job = await pay.enqueue()
    await rota_app.drain()
    engine.dispose()

    assert entries(ledger) == ["attempt 2"]
    assert (await job.refresh()).state == "succeeded"


@pytest.mark.by_default("async")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_commit_whose_reply_was_lost_is_found_and_not_repeated(
    rota_app: TestRota, ledger: psycopg.Connection[Any], rota_database: str, kind: str
) -> None:
    went_on: list[str] = []
    with TcpProxy(rota_database) as proxy:
        through = Rota(proxy.dsn(rota_database))

        @through.task(name="async")
        async def pay() -> None:
            async with current_job().transaction() as tx:
                await tx.execute("insert into public.ledger values ('paid')")
                proxy.cut_after(b"COMMIT")
            went_on.append("async")

        @through.task(name="sync")
        def pay_sync() -> None:
            with current_job().transaction() as tx:
                tx.execute("insert into public.ledger values ('paid')")
                proxy.cut_after(b"COMMIT")
            went_on.append("sync")

        job = await through.tasks[kind].enqueue()
        with through.facts.recorded(JobSucceeded, JobFailed) as told:
            await through.work(drain=True)
        await through.close()

    assert proxy.cuts == 1
    assert went_on == [kind]
    assert [type(each) for each in told] == [JobSucceeded]
    assert entries(ledger) == ["paid"]
    assert ((await rota_app.jobs.get(job.id)).state, (await rota_app.jobs.get(job.id)).attempt) == ("succeeded", 1)


async def test_a_second_transaction_or_a_checkpoint_after_the_first_is_refused(rota_app: TestRota) -> None:
    refused: list[str] = []

    @rota_app.task
    async def pay() -> None:
        job = current_job()
        async with job.transaction():
            pass
        for again in (job.transaction, lambda: job.checkpoint(1).send(None)):
            try:
                again()
            except RotaError as error:
                refused.append(str(error))

    await pay.enqueue()
    await rota_app.drain()

    assert len(refused) == 2
    assert all("has succeeded already" in each for each in refused)


async def test_a_job_cancelled_while_it_runs_ends_at_its_next_checkpoint(rota_app: TestRota) -> None:
    running = threading.Event()

    @rota_app.task
    def crawl() -> None:
        running.set()
        while True:
            current_job().checkpoint_sync(1)
            threading.Event().wait(0.01)

    job = await crawl.enqueue()
    working = asyncio.create_task(rota_app.work())
    await until(running.is_set)
    await job.cancel("enough")

    with pytest.raises(JobCancelled, match="enough"):
        await job.wait(10)
    rota_app.stop()
    await working


def test_inline_bodies_may_report_too(rota_app: TestRota) -> None:
    @rota_app.task
    def crawl() -> Any:
        current_job().progress_sync(0.5)
        current_job().checkpoint_sync(3)
        return current_job().saved

    with rota_app.inline():
        assert crawl.enqueue_sync().wait_sync() == 3


def test_inline_bodies_have_no_transaction_and_are_told_so(rota_app: TestRota) -> None:
    @rota_app.task
    def pay() -> None:
        with current_job().transaction():
            pass

    with rota_app.inline(), pytest.raises(RotaError, match="runs inline, without one"):
        pay.enqueue_sync()
