"""Chains, fan-out and join: what runs after what, with which results, and what becomes of it when a job before it fails."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.limits.test_lines import working

import rota.workers
from rota import (
    ConfigurationError,
    Debounce,
    Discard,
    InvalidArguments,
    JobCancelled,
    JobExists,
    Limit,
    NewJob,
    Retention,
    Retry,
    Rota,
    Unique,
    current_job,
    facts,
    group,
)
from rota.facts import DatabaseLost
from rota.jobs.chains import plan
from rota.jobs.close import close_batches
from rota.jobs.worker import WorkerSettings
from rota.testing import TestRota, until

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("history_aside")]


class Tasks:
    """What the chains of these tests are made of. `log` has each call in order."""

    def __init__(self, app: Rota) -> None:
        self.log: list[Any] = []
        self.broken: set[int] = set()

        @app.task(name="number")
        async def number(n: int) -> int:
            self.log.append(n)
            return n

        @app.task(name="add")
        async def add(n: int, more: int = 1) -> int:
            self.log.append(("add", n, more))
            return n + more

        @app.task(name="total")
        async def total(numbers: list[int | None]) -> int:
            self.log.append(numbers)
            return sum(each or 0 for each in numbers)

        @app.task(name="brittle", retry=Retry(attempts=1))
        async def brittle(n: int) -> int:
            self.log.append(("brittle", n))
            if n in self.broken:
                raise ValueError(f"{n} is broken")
            return n

        @app.task(name="note")
        async def note() -> None:
            self.log.append("note")

        @app.task(name="given")
        async def given(what: Any = "nothing") -> Any:
            self.log.append(("given", what))
            return what

        self.number, self.add, self.total, self.brittle, self.note, self.given = (
            number,
            add,
            total,
            brittle,
            note,
            given,
        )


@pytest.fixture
def tasks(rota_app: TestRota) -> Tasks:
    return Tasks(rota_app)


# What runs, and what it is given


async def test_what_a_job_returns_is_given_to_the_next(rota_app: TestRota, tasks: Tasks) -> None:
    flow = await tasks.number.bind(1).then(tasks.add).then(tasks.add, more=10).enqueue()
    states = [job.state for job in flow.jobs]
    await rota_app.drain()

    assert states == ["queued", "blocked", "blocked"]
    assert tasks.log == [1, ("add", 1, 1), ("add", 2, 10)]
    assert await flow.wait(5) == 12
    assert (await flow.last.refresh()).result == 12


async def test_a_bound_call_may_lack_what_the_job_before_it_gives(rota_app: TestRota, tasks: Tasks) -> None:
    bound: Any = tasks.add.bind
    flow = await tasks.number.bind(1).then(bound(more=5)).enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == 6
    with pytest.raises(InvalidArguments, match=r"Task 'add' was not enqueued: n is missing\."):
        await rota_app.enqueue(bound(more=5))
    with pytest.raises(InvalidArguments, match="n is missing"):
        await rota_app.enqueue_many([bound(more=5)])
    with pytest.raises(InvalidArguments, match="n is missing"):
        await bound(more=5).then(tasks.add).enqueue()


async def test_a_group_gives_its_results_in_the_order_written(rota_app: TestRota, tasks: Tasks) -> None:
    members = [tasks.number.using(priority=n).bind(n) for n in range(5)]
    flow = await group(members).then(tasks.total).enqueue()
    await rota_app.drain(concurrency=1)

    assert tasks.log == [4, 3, 2, 1, 0, [0, 1, 2, 3, 4]]
    assert await flow.wait(5) == 10


async def test_chains_groups_and_joins_nest(rota_app: TestRota, tasks: Tasks) -> None:
    side = group([tasks.add.bind(1).then(tasks.add), tasks.number.bind(5)])
    flow = await tasks.number.bind(7).then(group([tasks.add, tasks.given])).then(tasks.total).enqueue()
    other = await side.then(tasks.total).then(tasks.add, more=100).enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == 15
    assert await other.wait(5) == 108


async def test_one_call_may_be_followed_by_several(rota_app: TestRota, tasks: Tasks) -> None:
    first = tasks.number.bind(3)
    flow = await group([first.then(tasks.add), first.then(tasks.add, more=2)]).then(tasks.total).enqueue()
    await rota_app.drain()

    assert len(flow.jobs) == 4
    assert tasks.log.count(3) == 1
    assert await flow.wait(5) == 9


async def test_a_group_that_is_the_end_is_waited_for_as_a_list(rota_app: TestRota, tasks: Tasks) -> None:
    flow = await tasks.number.bind(1).then(group([tasks.add, tasks.add.bind(9)])).enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == [2, 9 + 1]
    with pytest.raises(ConfigurationError, match="no last job"):
        _ = flow.last


async def test_what_needs_nothing_is_given_nothing(rota_app: TestRota, tasks: Tasks) -> None:
    """None of a task that says it returns none is not put in the place of a default either."""
    await tasks.number.bind(1).then(tasks.note).then(tasks.given).then(tasks.note).enqueue()
    await rota_app.drain()

    assert tasks.log == [1, "note", ("given", "nothing"), "note"]


async def test_an_empty_group_gives_an_empty_list(rota_app: TestRota, tasks: Tasks) -> None:
    flow = await group([]).then(tasks.total).enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == 0


async def test_a_job_that_waits_is_due_no_sooner_than_it_asked(rota_app: TestRota, tasks: Tasks) -> None:
    flow = await tasks.number.bind(1).then(tasks.add.using(delay="1h")).enqueue()
    await rota_app.drain()

    assert (await flow.last.refresh()).state == "queued"
    rota_app.advance("1h")
    await rota_app.drain()
    assert await flow.wait(5) == 2


async def test_a_chain_is_part_of_the_callers_transaction(rota_app: TestRota, tasks: Tasks, rota_database: str) -> None:
    chain = tasks.number.bind(1).then(tasks.add)
    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        await chain.on(connection).enqueue()
        await connection.rollback()
        await rota_app.drain()
        rolled_back = list(tasks.log)
        flow = await chain.on(connection).enqueue()
        await connection.commit()
    await rota_app.drain()

    assert rolled_back == []
    assert await flow.wait(5) == 2


def test_sync_code_has_chains_too(rota_app: TestRota, tasks: Tasks) -> None:
    flow = group([tasks.number.bind(1), tasks.number.bind(2)]).then(tasks.total).enqueue_sync()
    rota_app.drain_sync()

    assert flow.wait_sync(5) == 3


async def test_chains_run_inline(tasks: Tasks, rota_app: TestRota) -> None:
    with rota_app.inline():
        flow = await group([tasks.number.bind(1), tasks.number.bind(2)]).then(tasks.total).then(tasks.add).enqueue()

    assert await flow.wait() == 4


async def test_results_that_a_codec_stored_are_handed_on(rota_app: TestRota) -> None:
    class Base64:
        def encode(self, text: str) -> str:
            return base64.b64encode(text.encode()).decode()

        def decode(self, text: str) -> str:
            return base64.b64decode(text).decode()

    app = Rota(rota_app.settings.dsn.conninfo if rota_app.settings.dsn else "", codec=Base64())
    tasks = Tasks(app)
    async with app:
        flow = (
            await group([tasks.given.bind({"a": 1}), tasks.number.bind(2)])
            .then(tasks.given)
            .then(tasks.given)
            .enqueue()
        )
        await app.work(drain=True)

        assert await flow.wait(5) == [{"a": 1}, 2]


async def test_a_chain_of_jobs_that_commit_by_themselves_goes_on(rota_app: TestRota) -> None:
    @rota_app.task
    async def first() -> int:
        async with current_job().transaction() as tx:
            tx.result = 5
        return 0

    flow = await first.bind().then(Tasks(rota_app).add).enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == 6


async def test_middleware_admits_the_jobs_of_chains_and_batches(rota_app: TestRota, tasks: Tasks) -> None:
    @rota_app.middleware
    class Mark:
        def enqueue(self, new: NewJob) -> NewJob:
            args = json.loads(new.args)
            return replace(new, tags=("seen",), args=json.dumps({**args, "more": 5} if new.task == "add" else args))

    flow = await tasks.number.bind(1).then(tasks.add).enqueue()
    await rota_app.batches.start([tasks.number.bind(2)], then=tasks.given)
    await rota_app.drain()
    with rota_app.inline():
        inline = await tasks.number.bind(1).then(tasks.add).enqueue()

    assert await flow.wait(5) == await inline.wait() == 6
    assert {job.tags for job in await rota_app.jobs.list()} == {("seen",)}


# What becomes of those that wait


async def test_who_waits_for_a_dead_job_goes_on_when_that_is_retried(rota_app: TestRota, tasks: Tasks) -> None:
    tasks.broken = {2}
    members = [tasks.brittle.bind(n) for n in (1, 2, 3)]
    flow = await group(members).then(tasks.total).then(tasks.add).enqueue()
    await rota_app.drain()
    blocked = (await flow.jobs[3].refresh()).state
    explained = str(await rota_app.jobs.explain(flow.jobs[3].id))
    await rota_app.dead.retry(flow.jobs[1].id)
    await rota_app.drain()
    still = (await flow.jobs[3].refresh()).state
    (letter,) = await rota_app.dead.list()
    tasks.broken = set()
    await rota_app.dead.retry(letter.id)
    await rota_app.drain()

    assert (blocked, still) == ("blocked", "blocked")
    assert f"Job {flow.jobs[1].id} (brittle), which it waits for, is dead" in explained
    assert [1, 2, 3] in tasks.log
    assert await flow.wait(5) == 7


@pytest.mark.by_default("acknowledge", "erase")
@pytest.mark.parametrize("verb", ["acknowledge", "discard", "erase"])
async def test_who_waits_for_a_dead_job_ends_when_that_is_put_away(rota_app: TestRota, tasks: Tasks, verb: str) -> None:
    tasks.broken = {1}
    flow = await tasks.brittle.using(tags=["x"]).bind(1).then(tasks.add).then(tasks.add).enqueue()
    await rota_app.drain()
    if verb == "acknowledge":
        await rota_app.dead.acknowledge(flow.jobs[0].id, "hopeless")
    elif verb == "discard":
        await rota_app.jobs.discard(flow.jobs[0].id, "hopeless")
    else:
        await rota_app.jobs.erase(tag="x")
    await rota_app.drain()

    middle, last = [await job.refresh() for job in flow.jobs[1:]]
    if verb == "erase":  # nobody knows what became of it, nor what it returned
        assert (middle.state, middle.errors[-1].type) == ("dead", "ResultsMissing")
        assert last.state == "blocked"
    else:
        assert (middle.state, last.state) == ("cancelled", "cancelled")
        assert f"job {flow.jobs[0].id} (brittle), which it waited for" in str(middle.reason)
        assert f"job {middle.id} (add), which it waited for, was cancelled" in str(last.reason)


async def test_a_dead_job_cancels_who_asked_for_that_and_runs_who_asked_for_that(
    rota_app: TestRota, tasks: Tasks
) -> None:
    tasks.broken = {1}
    first = tasks.brittle.bind(1)
    flow = await group(
        [
            first.then(tasks.add, on_failure="cancel"),
            first.then(tasks.given, on_failure="run"),
            first.then(tasks.number, on_failure="block"),
        ]
    ).enqueue()
    await rota_app.drain()

    cancelled, run, blocked = [await job.refresh() for job in flow.ends]
    assert (cancelled.state, run.state, blocked.state) == ("cancelled", "succeeded", "blocked")
    assert cancelled.reason == f"job {flow.jobs[0].id} (brittle), which it waited for, is dead: ValueError: 1 is broken"
    assert tasks.log == [("brittle", 1), ("given", None)]


async def test_to_cancel_the_first_ends_all_that_follow(rota_app: TestRota, tasks: Tasks) -> None:
    flow = await tasks.number.bind(1).then(group([tasks.add, tasks.add])).then(tasks.total).then(tasks.add).enqueue()
    await flow.jobs[0].cancel("not wanted")
    with rota_app.facts.recorded(facts.JobCancelled) as told:
        await rota_app.drain()

    assert tasks.log == []
    assert [(fact.job, fact.task, fact.attempt) for fact in told] == [(job.id, job.task, 0) for job in flow.jobs[1:]]
    assert told[0].reason == f"job {flow.jobs[0].id} (number), which it waited for, was cancelled: not wanted"
    assert {(await job.refresh()).state for job in flow.jobs} == {"cancelled"}
    with pytest.raises(JobCancelled, match="which it waited for, was cancelled"):
        await flow.wait(5)


@pytest.mark.direct("nobody is woken there")
@pytest.mark.by_default("cancel", "delete")
@pytest.mark.parametrize("verb", ["cancel", "discard", "delete", "acknowledge"])
async def test_who_waits_for_what_someone_took_away_ends_at_once(
    rota_app: TestRota, tasks: Tasks, rota_database: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nobody looks by itself meanwhile
    monkeypatch.setattr(rota.workers, "WorkerSettings", functools.partial(WorkerSettings, rescue_every=600.0))
    tasks.broken = {1}
    first = tasks.brittle if verb == "acknowledge" else tasks.number.using(delay="1h")
    flow = await first.bind(1).then(tasks.add).then(tasks.add, on_failure="run").enqueue()
    id = flow.jobs[0].id

    async def gone(fact: type[facts.Fact]) -> None:
        await until(lambda: any(isinstance(each, fact) for each in told), what=f"a {fact.__name__}")

    with rota_app.facts.recorded(facts.JobFailed, facts.JobCancelled, facts.JobSucceeded) as told:
        async with working(rota_app):
            await (await tasks.number.bind(7).then(tasks.given).enqueue()).wait(10)
            if verb == "cancel":
                await rota_app.jobs.cancel(id)
            elif verb == "discard":
                await rota_app.jobs.discard(id)
            elif verb == "delete":
                with psycopg.connect(rota_database) as db:
                    db.execute("delete from rota.jobs where id = %s", [id])
            else:
                await gone(facts.JobFailed)
                await rota_app.dead.acknowledge(id)
            await gone(facts.JobFailed if verb == "delete" else facts.JobCancelled)


async def test_a_job_that_ends_itself_ends_what_follows(rota_app: TestRota, tasks: Tasks) -> None:
    @rota_app.task
    async def leave() -> int:
        raise Discard("nothing to do")

    flow = await leave.bind().then(tasks.add).enqueue()
    await rota_app.drain()

    assert (
        await flow.last.refresh()
    ).reason == f"job {flow.jobs[0].id} (leave), which it waited for, was cancelled: nothing to do"


async def test_a_flow_can_be_cancelled_whole(rota_app: TestRota, tasks: Tasks) -> None:
    flow = await tasks.number.bind(1).then(tasks.add, on_failure="run").enqueue()
    await flow.cancel("enough")
    await rota_app.drain()

    assert tasks.log == []
    assert {(await job.refresh()).reason for job in flow.jobs} == {"enough"}


async def test_a_dependant_that_fails_is_tried_again_with_what_it_was_given(rota_app: TestRota, tasks: Tasks) -> None:
    tasks.broken = {1}
    flow = await tasks.number.bind(1).then(tasks.brittle).enqueue()
    await rota_app.drain()
    tasks.broken = set()
    again = await rota_app.dead.retry(flow.last.id)
    await rota_app.drain()
    repeated = await rota_app.jobs.retry(again.id)
    await rota_app.drain()

    assert tasks.log == [1, ("brittle", 1), ("brittle", 1), ("brittle", 1)]
    assert (await repeated.refresh()).state == "succeeded"


async def test_a_dependant_may_be_retried_with_another_argument_beside_what_it_was_given(
    rota_app: TestRota, tasks: Tasks
) -> None:
    @rota_app.task(retry=Retry(attempts=1))
    async def divide(n: int, by: int = 0) -> int:
        return n // by

    flow = await tasks.number.bind(6).then(divide).enqueue()
    await rota_app.drain()
    again = await rota_app.dead.retry(flow.last.id, {"by": 2})
    await rota_app.drain()

    assert await again.wait(5) == 3


# What cannot be handed on


@pytest.mark.long
async def test_results_that_are_too_large_together_fail_who_waits_for_them(rota_app: TestRota, tasks: Tasks) -> None:
    members = [tasks.given.bind("x" * 1_000_000) for _ in range(9)]
    flow = await group(members).then(tasks.total).enqueue()
    await rota_app.drain()

    last = await flow.last.refresh()
    assert (last.state, last.attempt, last.errors[-1].type) == ("dead", 1, "ResultsMissing")
    assert "the 9 result(s) it waited for take 9000018 bytes as JSON, and no more than 8388608" in str(
        last.errors[-1].message
    )
    await rota_app.dead.retry(last.id, {"numbers": [1, 2]})
    await rota_app.drain()
    assert tasks.log[-1] == [1, 2]


async def test_results_that_history_forgot_fail_who_waits_for_them(
    rota_app: TestRota, tasks: Tasks, rota_database: str
) -> None:
    tasks.broken = {2}
    flow = await group([tasks.number.bind(1), tasks.brittle.bind(2)]).then(tasks.total).enqueue()
    await rota_app.drain()
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("delete from rota.history")
    tasks.broken = set()
    await rota_app.dead.retry(flow.jobs[1].id)
    await rota_app.drain()

    last = await flow.last.refresh()
    assert (last.state, last.errors[-1].type) == ("dead", "ResultsMissing")
    assert "1 of the 2 results it waited for are gone" in str(last.errors[-1].message)
    await rota_app.dead.retry(last.id, {"numbers": [1, 2]})
    await rota_app.drain()
    assert tasks.log[-1] == [1, 2]


async def test_a_result_that_its_class_keeps_no_longer_is_missing_and_not_none(
    rota_app: TestRota, rota_database: str
) -> None:
    app = Rota(rota_database, retention={"short": Retention(history="1d", results="1m")})
    tasks = Tasks(app)

    @app.task(name="brief", retention="short")
    async def brief() -> int:
        return 1

    async with app:
        flow = await group([brief.bind(), tasks.number.using(delay="2m").bind(2)]).then(tasks.total).enqueue()
        await app.work(drain=True)
        rota_app.advance("2m")
        await app.work(drain=True)

        assert (await flow.last.refresh()).errors[-1].type == "ResultsMissing"


# What is refused where it is written


@pytest.mark.writes_nothing
def test_a_call_that_comes_back_is_refused_with_the_way(rota_app: TestRota, tasks: Tasks) -> None:
    twice = tasks.add.bind(1)

    with pytest.raises(ConfigurationError, match=r"has passed: add -> given -> add\. Bind"):
        twice.then(tasks.given).then(twice).enqueue_sync()
    with pytest.raises(ConfigurationError, match=r"has passed: add -> number -> given -> add\. Bind"):
        tasks.number.bind(1).then(twice).then(group([tasks.number])).then(tasks.given).then(twice).enqueue_sync()
    with pytest.raises(ConfigurationError, match="in a group twice"):
        group([twice, twice]).enqueue_sync()
    with pytest.raises(ConfigurationError, match=r"'add' is in two places: after number, and after given"):
        group([tasks.number.bind(1).then(twice), tasks.given.bind(1).then(twice)]).enqueue_sync()
    with pytest.raises(ConfigurationError, match="'add' is waited for twice"):
        group([twice, twice.then(tasks.given)]).then(tasks.total).enqueue_sync()
    assert rota_app.jobs.list_sync() == []


@pytest.mark.writes_nothing
def test_a_call_in_two_places_is_refused_soon_however_long_and_wide_the_way(rota_app: TestRota) -> None:
    @rota_app.task(name="step")
    async def step(given: Any = None) -> int: ...

    first = step.bind()
    long, wide = first.then(step), step.bind().then(step)
    for _ in range(2000):
        long = long.then(step)
    for _ in range(60):  # on as many ways as 2 ** 60
        wide = wide.then(group([step.bind(), step.bind()]))
    with pytest.raises(ConfigurationError, match="cannot come back"):
        plan(long.then(first))
    with pytest.raises(ConfigurationError, match="in two places"):
        plan(group([first.then(step), wide.then(first)]))


@pytest.mark.writes_nothing
def test_what_cannot_be_part_of_a_chain_is_refused_where_it_is_written(rota_app: TestRota, tasks: Tasks) -> None:
    first = tasks.number.bind(1)

    @rota_app.task(name="two")
    async def two(a: int, b: int) -> None: ...

    @rota_app.task(name="limited", limit=Limit(running=1, by="n"))
    async def limited(n: int) -> None: ...

    with pytest.raises(
        InvalidArguments, match=r"'limited' was not enqueued: n is missing, and its key is made of .* using\(key="
    ):
        first.then(limited)
    with pytest.raises(
        InvalidArguments, match=r"'add' was not enqueued: n is missing, and its unique key .* using\(unique="
    ):
        first.then(tasks.add.using(unique=True))
    with pytest.raises(ConfigurationError, match=r"'add' makes one job of several calls"):
        first.then(tasks.add.using(unique=Debounce("1m", by="all"))).enqueue_sync()
    with pytest.raises(ConfigurationError, match=r"on_failure cannot be 'ignore'"):
        first.then(tasks.add, on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"then\(\.\.\.\) was given 7, which is no job"):
        first.then(7)
    with pytest.raises(InvalidArguments, match=r"Task 'two' was not enqueued: a, b is missing"):
        first.then(two)
    with pytest.raises(ConfigurationError, match=r"'note' returns None, and 'add' after it takes 'n' from it"):
        tasks.note.bind().then(tasks.add)
    with pytest.raises(
        ConfigurationError, match=r"'add' is given the list .*\(number\) return, and its parameter 'n' takes no list"
    ):
        group([first]).then(tasks.add)
    with pytest.raises(ConfigurationError, match="ends with, a group"):
        group([first.then(group([tasks.add]))])
    with pytest.raises(ConfigurationError, match=r"item 1 of the group is 7"):
        group([first, 7])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="an empty group can only be the first step"):
        first.then(group([]))
    with pytest.raises(ConfigurationError, match=r"was given more for a call of 'add', which has its arguments"):
        first.then(tasks.add.bind(1), more=2)


async def test_a_unique_job_that_exists_keeps_the_whole_chain_out(rota_app: TestRota, tasks: Tasks) -> None:
    await tasks.add.using(unique=Unique(by="one")).enqueue(1)

    with pytest.raises(JobExists):
        await tasks.number.bind(1).then(tasks.add.using(unique="one")).enqueue()

    assert len(await rota_app.jobs.list()) == 1


async def test_a_dependant_whose_task_has_a_limit_comes_into_line(rota_app: TestRota, tasks: Tasks) -> None:
    at_once = most = 0

    @rota_app.task(limit=Limit(running=1))
    async def alone(n: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        return n

    flow = await group([tasks.number.bind(n).then(alone) for n in range(4)]).then(tasks.total).enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == 6
    assert most == 1


@pytest.mark.writes_nothing
def test_a_chain_may_be_longer_than_the_stack(tasks: Tasks) -> None:
    chain = tasks.number.bind(0).then(tasks.add)
    for _ in range(5_000):
        chain = chain.then(tasks.add)

    assert len(plan(chain).jobs) == 5_002


async def test_a_long_chain_is_planned_and_runs(rota_app: TestRota, tasks: Tasks) -> None:
    chain = tasks.number.bind(0).then(tasks.add)
    for _ in range(12):
        chain = chain.then(tasks.add)
    flow = await chain.enqueue()
    await rota_app.drain()

    assert await flow.wait(5) == 13


# The mechanism


async def test_a_worker_goes_on_with_a_chain_as_soon_as_it_has_settled_a_job(rota_app: TestRota, tasks: Tasks) -> None:
    """And not when it next looks by itself, which is every five seconds."""
    chain = tasks.number.bind(0).then(tasks.add)
    for _ in range(5):
        chain = chain.then(tasks.add)
    working = asyncio.create_task(rota_app.work())
    flow = await chain.enqueue()
    result = await flow.wait(15)
    rota_app.stop()
    await working

    assert result == 6


async def test_a_worker_that_cannot_look_at_batches_says_so_and_goes_on(
    rota_app: TestRota, tasks: Tasks, rota_database: str
) -> None:
    with psycopg.connect(rota_database, autocommit=True) as db, rota_app.facts.recorded(DatabaseLost) as told:
        db.execute("alter function rota.close_batches rename to elsewhere")
        working = asyncio.create_task(rota_app.work())
        flow = await tasks.number.bind(1).then(tasks.add).enqueue()
        plain = await (await tasks.number.enqueue(2)).wait(10)
        first = await flow.jobs[0].wait(10)
        db.execute("alter function rota.elsewhere rename to close_batches")
        await tasks.number.bind(1).then(tasks.add).enqueue()
        last = await flow.wait(20)
        rota_app.stop()
        await working

    assert (plain, first, last) == (2, 1, 2)
    assert {each.part for each in told} == {"jobs: close batches"}


async def test_a_worker_frees_what_another_left_closings_for(
    rota_app: TestRota, tasks: Tasks, rota_database: str
) -> None:
    """A worker that settles and dies leaves a closing; so do those who are no workers."""
    flow = await tasks.number.bind(1).then(tasks.given, on_failure="run").enqueue()
    await flow.jobs[0].cancel()
    with psycopg.connect(rota_database) as db:
        assert db.execute("select count(*) from rota.closings").fetchone() == (1,)
    working = asyncio.create_task(rota_app.work())
    result = await flow.wait(20)
    rota_app.stop()
    await working

    assert result is None
    assert await rota_app.database.run(close_batches()) == (0, 0, [])
