"""Calls that a type checker must accept, with the types it must see. Read by the checkers, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, assert_type

from psycopg import AsyncConnection, Connection

from rota import (
    Appended,
    Batch,
    Chain,
    Debounce,
    Discard,
    Event,
    EventLog,
    EventTable,
    Exclude,
    Flow,
    Job,
    NewEvent,
    NewJob,
    Package,
    Progress,
    Retry,
    Rota,
    RunningJob,
    Schedule,
    ScheduleRun,
    SchedulesPut,
    Snooze,
    Task,
    Throttle,
    Unique,
    current_job,
    group,
    inject,
)
from rota.facts import Fact, JobSnoozed, LeadershipEnded

P = ParamSpec("P")
R = TypeVar("R")

app = Rota()
soon = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    id: int


# Tasks: async or not, bare or with options. The function's own signature stays.


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
def area(width: float, *, height: float = 1.0) -> float:
    return width * height


@app.resource
async def first_order() -> Order:
    return Order(1)


@app.resource(scope="job")
def orders(first: Order = inject()) -> list[Order]:
    return [first]


@app.task
async def dispatch(n: int, order: Order = inject()) -> int:
    return n + order.id


async def resources() -> None:
    assert_type(await dispatch.enqueue(1), Job[int])
    assert_type(await dispatch(1, Order(2)), int)
    assert_type(await first_order(), Order)
    assert_type(orders(Order(1)), list[Order])
    with app.override(Order, Order(3)):
        assert_type(dispatch.bind(1), NewJob)


@app.task()
async def greet(name: str, *, loud: bool) -> str:
    return name.upper() if loud else name


@app.task(queue="orders", priority=5, retry=Retry(attempts=3, on=ValueError), timeout="30s")
def ship(order: Order) -> dict[str, list[int]]:
    return {"shipped": [order.id]}


@app.task
async def clean() -> None: ...


@app.task
def collect(first: str, *rest: int, **named: float) -> tuple[str, int]:
    return first, len(rest) + len(named)


@app.task
async def find(id: int) -> Order | None:
    return Order(id)


@app.task
async def fetch(query: dict[str, Any]) -> dict[str, Any]:
    return query


# Every option of a task.

app.task(name="add")(add.function)
app.task(retry=3, timeout=30, priority=-1)
app.task(retry=None, timeout=timedelta(minutes=1))
app.task(version=2, executor="process", redact=("password", "token"), retention="audit")
app.task(executor=None, retention=None)
app.task(unique=True)
app.task(unique="{a}")
app.task(unique=Unique())
app.task(unique=Unique(by="{a}", within="10m", states=("queued", "running"), conflict="raise"))
app.task(unique=Unique(by=lambda a, b: a, within=timedelta(hours=1), conflict="replace"))
app.task(unique=Unique(by=None, within=None, conflict="return"))
app.task(unique=Debounce("10s"))
app.task(unique=Debounce(timedelta(seconds=10), by="a", keep="first", longest="1m"))
app.task(unique=Throttle(10, by=lambda a: a, keep="last"))


@app.task(version=2, unique=True, executor="process", redact=("b",), retention="30d")
def heavy(a: int, b: str) -> bytes:
    return b.encode() * a


# Called directly, a task is its function.


async def call() -> None:
    coroutine: Coroutine[Any, Any, int] = add(1, 2)
    assert_type(await coroutine, int)
    assert_type(await add(1, b=2), int)
    assert_type(await add(1), int)
    assert_type(await greet("Ada", loud=True), str)
    assert_type(area(2, height=3), float)
    assert_type(ship(Order(7)), dict[str, list[int]])
    assert_type(collect("a", 1, 2, c=3.0), tuple[str, int])
    assert_type(heavy(1, "b"), bytes)
    assert_type(await find(7), Order | None)
    await clean()


# Enqueued, it takes the same arguments, and the job knows the result's type.


async def enqueue() -> None:
    assert_type(await add.enqueue(1, 2), Job[int])
    assert_type(await add.enqueue(1), Job[int])
    assert_type(await add.enqueue(a=1, b=2), Job[int])
    assert_type(await area.enqueue(2, height=3), Job[float])
    assert_type(await greet.enqueue("Ada", loud=True), Job[str])
    assert_type(await ship.enqueue(Order(7)), Job[dict[str, list[int]]])
    assert_type(await clean.enqueue(), Job[None])
    assert_type(await collect.enqueue("a"), Job[tuple[str, int]])
    assert_type(await collect.enqueue("a", 1, 2, c=3.0, d=4.0), Job[tuple[str, int]])
    assert_type(await find.enqueue(7), Job[Order | None])
    assert_type(await fetch.enqueue({"id": 7}), Job[dict[str, Any]])
    assert_type(await heavy.enqueue(1, "b"), Job[bytes])


def enqueue_from_sync_code() -> None:
    assert_type(add.enqueue_sync(1, 2), Job[int])
    assert_type(add.enqueue_sync(1), Job[int])
    assert_type(area.enqueue_sync(2, height=3), Job[float])
    assert_type(greet.enqueue_sync("Ada", loud=True), Job[str])
    assert_type(clean.enqueue_sync(), Job[None])
    assert_type(collect.enqueue_sync("a", 1, 2, c=3.0), Job[tuple[str, int]])


def bind() -> None:
    assert_type(add.bind(1, 2), NewJob)
    assert_type(greet.bind("Ada", loud=True), NewJob)
    assert_type(collect.bind("a", 1, 2, c=3.0), NewJob)
    assert_type(add.using(delay=5).bind(1), NewJob)


async def chains(connection: AsyncConnection) -> None:
    assert_type(add.bind(1).then(add), Chain)
    assert_type(add.bind(1).then(add, b=2), Chain)
    assert_type(add.bind(1).then(add.using(delay=5)).then(add.bind(2), on_failure="run"), Chain)
    assert_type(group([add.bind(1), add.bind(2).then(add), add]).then(clean), Chain)
    assert_type(await add.bind(1).then(group([add, clean])).enqueue(), Flow)
    assert_type(await add.bind(1).then(add).on(connection).enqueue(), Flow)
    assert_type(group([add.bind(1)]).enqueue_sync().last, Job[Any])


async def batches() -> None:
    batch = await app.batches.start([add.bind(1)], then=clean, name="nightly")
    assert_type(batch, Batch)
    assert_type(await batch.progress(), Progress)
    assert_type(await batch.wait("5m"), Progress)
    assert_type(await batch.cancel("late"), int)
    assert_type(app.batches.start_sync(add.bind(n) for n in range(9)), Batch)


# Options of one job, and someone else's transaction, in any order.


async def using() -> None:
    assert_type(await add.using(delay="5m").enqueue(1, 2), Job[int])
    assert_type(await add.using(delay=5).enqueue(1), Job[int])
    assert_type(await add.using(delay=timedelta(minutes=5)).enqueue(1), Job[int])
    assert_type(await add.using(at=soon, queue="mail").enqueue(1, b=2), Job[int])
    assert_type(await add.using(priority=5, tags=["a"], wake=False).enqueue(1), Job[int])
    assert_type(await add.using(tags=("a", "b")).enqueue(1), Job[int])
    assert_type(await add.using(unique="order-7").enqueue(1), Job[int])
    assert_type(await add.using(unique=True).enqueue(1), Job[int])
    assert_type(await add.using(unique=Unique(within="1h")).enqueue(1), Job[int])
    assert_type(await add.using(unique=Debounce("10s", by="a")).enqueue(1), Job[int])
    assert_type(await add.using(key="customer-7").enqueue(1), Job[int])
    assert_type(await add.using().enqueue(1), Job[int])
    assert_type(add.using(delay="5m").enqueue_sync(1), Job[int])
    assert_type(area.using(delay="5m").enqueue_sync(2, height=3), Job[float])
    assert_type(await greet.using(wake=False).enqueue("Ada", loud=False), Job[str])
    assert_type(await collect.using(queue="mail").enqueue("a", 1, c=3.0), Job[tuple[str, int]])


async def on(connection: AsyncConnection, other: Connection) -> None:
    assert_type(await add.on(connection).enqueue(1, 2), Job[int])
    assert_type(add.on(other).enqueue_sync(1, 2), Job[int])
    assert_type(await greet.on(connection).enqueue("Ada", loud=True), Job[str])
    assert_type(await add.using(delay="5m").on(connection).enqueue(1), Job[int])
    assert_type(area.using(key="a").on(other).enqueue_sync(2, height=3), Job[float])
    assert_type(await add.on(connection).using(delay="5m").enqueue(1), Job[int])
    assert_type(await add.using(delay="5m").using(key="a").on(connection).enqueue(1), Job[int])


async def many() -> None:
    assert_type(await app.enqueue(add.bind(1)), Job[Any])
    assert_type(app.enqueue_sync(add.using(delay=5).bind(1)), Job[Any])
    assert_type(await app.enqueue_many([add.bind(1, 2), area.bind(2)]), list[Job[Any]])
    assert_type(await app.enqueue_many(add.bind(n) for n in range(9)), list[Job[Any]])
    assert_type(app.enqueue_many_sync([add.bind(1), add.using(wake=False).bind(2)]), list[Job[Any]])


# A job in hand.


async def job_in_hand(job: Job[int]) -> None:
    assert_type(await job.wait(), int)
    assert_type(await job.wait(timeout="10s"), int)
    assert_type(job.wait_sync(5), int)
    assert_type(job.result, int | None)
    assert_type(await job.refresh(), Job[int])
    assert_type(job.refresh_sync(), Job[int])
    assert_type(job.id, int)
    assert_type(job.state, str)
    assert_type(await (await greet.enqueue("Ada", loud=True)).wait(), str)
    assert_type(area.enqueue_sync(2).wait_sync(), float)
    assert_type(await (await find.enqueue(7)).wait(), Order | None)
    assert_type(await app.jobs.get(7), Job[Any])
    await (await clean.enqueue()).wait()


async def change_job(job: Job[int]) -> None:
    assert_type(await job.cancel(), Job[int])
    assert_type(await job.cancel("not wanted"), Job[int])
    assert_type(job.cancel_sync(reason="not wanted"), Job[int])
    assert_type(await job.retry(), Job[int])
    assert_type(job.retry_sync(), Job[int])


def show(job: Job[object]) -> str:
    return f"{job.id}: {job.result!r}"


async def show_any_job(job: Job[int]) -> None:
    show(job)
    show(await greet.enqueue("Ada", loud=True))
    show(await app.jobs.get(7))


# Packages have tasks of their own.

mail = Package("mail")


@mail.task
async def send(to: str, *, body: str = "") -> int:
    return len(to + body)


@mail.task(queue="mail", unique=True)
def bounce(to: str) -> bool:
    return not to


shop = app.package("shop")


@shop.task
def restock(item: int) -> str:
    return str(item)


async def packages() -> None:
    assert_type(app.package(mail), Package)
    assert_type(shop, Package)
    assert_type(await send.enqueue("ada@example.org", body="hello"), Job[int])
    assert_type(bounce.enqueue_sync("ada@example.org"), Job[bool])
    assert_type(bounce("ada@example.org"), bool)
    assert_type(restock.using(delay="1h").enqueue_sync(7), Job[str])
    assert_type(app.tasks["shop.restock"], Task[..., Any])


# Code that is written for every task.


def later(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
    return task.using(delay="1h").enqueue_sync(*args, **kwargs)


def same(task: Task[P, R]) -> Callable[P, Job[R]]:
    return task.enqueue_sync


def name_of(task: Task[..., object]) -> str:
    return task.name


def for_every_task() -> None:
    assert_type(later(add, 1, b=2), Job[int])
    assert_type(later(greet, "Ada", loud=True), Job[str])
    assert_type(later(area, 2.0, height=3.0), Job[float])
    assert_type(same(add)(1, 2), Job[int])
    assert_type(name_of(add), str)


# Inside a body.


@app.task
async def resize(pages: int) -> int:
    job = current_job()
    assert_type(job, RunningJob)
    assert_type(job.id, int)
    assert_type(job.task, str)
    assert_type(job.queue, str)
    assert_type(job.attempt, int)
    assert_type(job.token, int)
    assert_type(job.idempotency_key, str)
    assert_type(job.stopping, bool)
    done: int = job.saved or 0
    await job.progress(0.4)
    await job.progress(done / pages, "resizing")
    await job.checkpoint(done)
    await job.checkpoint({"page": done})
    if done > pages:
        raise Discard("there are no more pages")
    if job.stopping:
        raise Snooze("10m")
    async with job.transaction() as tx:
        tx.result = done
    return done


@app.task
def resize_in_a_thread(pages: int, on: Connection) -> int:
    job = current_job()
    job.progress_sync(0.4, "resizing")
    job.checkpoint_sync(pages)
    if job.attempt > 3:
        raise Snooze(timedelta(minutes=10))
    if job.stopping:
        raise Snooze(600)
    with job.transaction(on=on) as tx:
        tx.result = pages
    return pages


# Schedules: on a task, which stays what it is, or on a function, which becomes one; and as rows.


@app.cron("0 9 * * mon-fri", tz="Europe/Berlin", args={"a": 1}, misfire="skip")
@app.task
async def morning(a: int) -> int:
    return a


@app.every("30s", jitter=5, overlap="queue")
async def poll() -> str:
    return ""


@app.every(timedelta(hours=1), counted_from="end", exclude=Exclude(weekdays=("sun",)))
def sweep(deep: bool = False) -> int:
    return 0


async def schedules(connection: AsyncConnection) -> None:
    assert_type(await morning(1), int)
    assert_type(await morning.enqueue(1), Job[int])
    assert_type(await poll(), str)
    assert_type(sweep(deep=True), int)
    assert_type(await app.schedules.put("s", task=sweep, args={"deep": True}, cron="0 9 * * *"), Schedule)
    assert_type(app.schedules.put_sync("s", task="sweep", at=soon, misfire_grace="5m", tags=["a"]), Schedule)
    assert_type(await app.schedules.put_many([{"name": "s", "task": "sweep", "after": ["a", "b"]}]), SchedulesPut)
    assert_type(await app.schedules.trigger("s", {"deep": True}, delay="5m"), Job[Any])
    assert_type(await app.schedules.skip("s"), datetime)
    assert_type(app.schedules.backfill_sync("s", soon, soon, limit=7), int)
    await app.schedules.preview(app.schedules.define("s", task=sweep, on="event"), 3)
    assert_type((await app.schedules.history("s"))[0], ScheduleRun)
    assert_type(await app.emit("order.paid", {"order_id": 7}), int)
    assert_type(await app.emit.on(connection)("order.paid"), int)
    assert_type(app.emit_sync("order.paid"), int)
    assert_type(await current_job().activate("s", {"deep": True}), bool)
    assert_type(current_job().schedule, str | None)


def told(fact: Fact) -> str:
    match fact:
        case JobSnoozed(job, task, seconds=seconds):
            assert_type(job, int)
            assert_type(seconds, float)
            return task
        case LeadershipEnded(name, kind="lost"):
            return name
    return str(LeadershipEnded("indexer", epoch=5, reason="resigned"))


sales = app.event_log("sales")


@sales.event
@dataclass
class OrderPlaced:
    total: int


@sales.event("order.paid", shape=2)
@dataclass
class OrderPaid:
    amount: int


@sales.upcast("order.paid", from_shape=1)
def whole(data: dict[str, Any]) -> dict[str, Any]:
    return {"amount": data["cents"]}


async def events(connection: AsyncConnection) -> None:
    assert_type(sales, EventLog)
    assert_type(OrderPlaced(1), OrderPlaced)
    assert_type(OrderPaid(1).amount, int)
    assert_type(whole({}), dict[str, Any])
    assert_type(await sales.append("order-7", OrderPlaced(1)), Appended)
    assert_type(await sales.on(connection).append("order-7", "Seen", {"by": 1}, expected_version=1), Appended)
    assert_type(sales.append_sync("order-7", "Seen", metadata={"user": 1}), Appended)
    assert_type(sales.bind("order-7", "Seen"), NewEvent)
    assert_type(await sales.append_many([sales.bind("a", "Seen")], expected_versions={"a": 0}), list[Appended])
    read = await sales.read("order-7", after=1, limit=10)
    assert_type(read, list[Event])
    assert_type(await sales.read_all(after=read[-1]), list[Event])
    assert_type(sales.read_all_sync(after=(7, 8)), list[Event])
    table = app.event_table("shop.events", position="id", xid="txid", data="payload", stream="subject")
    assert_type(table, EventTable)
    assert_type(await table.read_all(), list[Event])
