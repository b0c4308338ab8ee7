"""Calls that a type checker must reject: each line that says what is wrong, and no other. Read by the checkers, never run."""

from __future__ import annotations

from datetime import datetime

from psycopg import AsyncConnection

import rota
from rota import Debounce, Discard, Job, Package, Retry, Rota, RunningJob, Snooze, Task, Throttle, Unique
from rota.facts import LeadershipEnded

app = Rota()
mail = Package("mail")


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(queue="mail")
async def greet(name: str, *, loud: bool) -> str:
    return name.upper() if loud else name


@app.task
def area(width: float, *, height: float = 1.0) -> float:
    return width * height


@app.task(timeout=30)
def collect(first: str, *rest: int, **named: float) -> int:
    return len(rest) + len(named)


@mail.task
async def send(to: str) -> None: ...


async def enqueue() -> None:
    await add.enqueue("1")  # wrong: type of an argument
    await add.enqueue(1, b="2")  # wrong: type of a named argument
    await add.enqueue(1, None)  # wrong: None for an argument that has a default
    await add.enqueue()  # wrong: argument missing
    await add.enqueue(1, 2, 3)  # wrong: one argument too many
    await add.enqueue(1, c=3)  # wrong: unknown argument
    await add.enqueue(1, delay="5m")  # wrong: an option among the arguments
    await add.enqueue(1, a=2)  # wrong: argument given twice
    await greet.enqueue("Ada")  # wrong: keyword-only argument missing
    await greet.enqueue("Ada", True)  # wrong: keyword-only argument by position
    await greet.enqueue("Ada", loud="yes")  # wrong: type of a keyword-only argument
    await greet.enqueue(b"Ada", loud=True)  # wrong: type of an argument of a task with options
    await collect.enqueue("a", "b")  # wrong: type of one of *args
    await collect.enqueue("a", c="d")  # wrong: type of one of **kwargs
    await send.enqueue(7)  # wrong: type of an argument of a package's task
    add.enqueue(1)  # wrong: never awaited
    send.enqueue("ada@example.org")  # wrong: never awaited


async def enqueue_from_sync_code() -> None:
    add.enqueue_sync("1")  # wrong: type of an argument
    add.enqueue_sync()  # wrong: argument missing
    area.enqueue_sync(1, 2)  # wrong: keyword-only argument by position
    area.enqueue_sync(1, depth=2)  # wrong: unknown argument
    collect.enqueue_sync(1)  # wrong: type of an argument of a task with options
    await add.enqueue_sync(1)  # wrong: enqueue_sync awaited


def bind() -> None:
    add.bind("1")  # wrong: type of an argument
    add.bind()  # wrong: argument missing
    greet.bind("Ada", True)  # wrong: keyword-only argument by position
    add.using(delay=5).bind("1")  # wrong: type of an argument after using()
    add.bind(1).enqueue()  # wrong: no such method of a bound call
    add.bind(1).then(7)  # wrong: no job
    add.bind(1).then(add, on_failure="ignore")  # wrong: no such policy
    rota.group([7])  # wrong: no job


async def call() -> None:
    await add("1")  # wrong: type of an argument
    await add()  # wrong: argument missing
    await greet("Ada", True)  # wrong: keyword-only argument by position
    await area(1)  # wrong: a sync task awaited
    area("1")  # wrong: type of an argument
    add(1) + 1  # wrong: a coroutine used as a result
    add(1)  # wrong: never awaited


async def using() -> None:
    add.using(delay=["5m"])  # wrong: type of delay
    add.using(at="tomorrow")  # wrong: type of at
    add.using(at=5)  # wrong: type of at
    add.using(queue=7)  # wrong: type of queue
    add.using(priority="high")  # wrong: type of priority
    add.using(tags="mail")  # wrong: text for a list of tags
    add.using(tags=[1, 2])  # wrong: type of a tag
    add.using(wake="no")  # wrong: type of wake
    add.using(unique=7)  # wrong: type of unique
    add.using(unique=["order"])  # wrong: type of unique
    add.using(key=["customer"])  # wrong: type of key
    add.using("5m")  # wrong: an option by position
    add.using(colour="red")  # wrong: unknown option
    add.using(timeout=5)  # wrong: an option of the task, not of a job
    add.using(delay="5m")(1)  # wrong: called in place of enqueued
    await add.using(delay="5m")  # wrong: awaited before anything is enqueued
    await add.using(delay="5m").enqueue("1")  # wrong: type of an argument
    await add.using(delay="5m").enqueue()  # wrong: argument missing
    await add.using(delay="5m").enqueue(1, c=3)  # wrong: unknown argument
    await greet.using(delay="5m").enqueue("Ada", True)  # wrong: keyword-only argument by position
    add.using(delay="5m").enqueue_sync("1")  # wrong: type of an argument
    await add.using(delay="5m").enqueue_sync(1)  # wrong: enqueue_sync awaited
    add.using(delay="5m").enqueue(1)  # wrong: never awaited


async def on(connection: AsyncConnection) -> None:
    add.on()  # wrong: connection missing
    add.on(connection, connection)  # wrong: one argument too many
    await add.on(connection).enqueue("1")  # wrong: type of an argument
    await add.on(connection).enqueue()  # wrong: argument missing
    await greet.on(connection).enqueue("Ada", True)  # wrong: keyword-only argument by position
    await add.on(connection).using(delay="5m").enqueue("1")  # wrong: type of an argument
    await add.using(delay="5m").on(connection).enqueue("1")  # wrong: type of an argument
    add.on(connection).using(colour="red")  # wrong: unknown option
    add.using(delay="5m").using(colour="red")  # wrong: unknown option
    add.using(delay="5m").on(connection).enqueue(1)  # wrong: never awaited


async def many() -> None:
    await app.enqueue_many([add])  # wrong: a task in place of a bound call
    await app.enqueue_many([add.bind(1), add.enqueue_sync(2)])  # wrong: a job in place of a bound call
    await app.enqueue_many([(add, 1)])  # wrong: a pair in place of a bound call
    await app.enqueue_many(add.bind(1))  # wrong: one bound call in place of many
    await app.enqueue_many([add.bind("1")])  # wrong: type of an argument
    await app.enqueue(add)  # wrong: a task in place of a bound call
    await app.enqueue_many_sync([add.bind(1)])  # wrong: enqueue_many_sync awaited
    app.enqueue_many([add.bind(1)])  # wrong: never awaited


async def results(job: Job[int], maybe: datetime | None) -> None:
    words: str = await job.wait()  # wrong: type of the result
    words = job.wait_sync()  # wrong: type of the result
    words = await (await add.enqueue(1)).wait()  # wrong: type of the result
    words = area.enqueue_sync(1).wait_sync()  # wrong: type of the result
    words = await add(1)  # wrong: type of the result
    words = job.id  # wrong: type of the id
    number: int = job.result  # wrong: the result may not be there yet
    number = await job.wait  # wrong: wait not called
    greeting: Job[str] = await add.enqueue(1)  # wrong: the job of another task
    greeting = add.using(delay=5).enqueue_sync(1)  # wrong: the job of another task
    greeting = await job.refresh()  # wrong: the job of another task
    greeting = add.enqueue(1)  # wrong: a coroutine in place of a job
    task: Task[[int], str] = greet  # wrong: a task with other arguments
    other: Task[..., int] = greet  # wrong: a task with another result
    await job.wait(timeout=maybe)  # wrong: type of timeout
    await job.wait_sync()  # wrong: wait_sync awaited
    job.state = "dead"  # wrong: a job is what was read
    job.wait()  # wrong: never awaited
    job.cancel()  # wrong: never awaited
    job.retry()  # wrong: never awaited
    print(words, number, greeting, task, other)


async def running(job: RunningJob) -> None:
    await job.progress("half")  # wrong: type of the progress
    await job.progress(0.5, 7)  # wrong: type of the message
    await job.progress()  # wrong: argument missing
    await job.checkpoint()  # wrong: argument missing
    await job.progress_sync(0.5)  # wrong: progress_sync awaited
    await job.checkpoint_sync(7)  # wrong: checkpoint_sync awaited
    job.progress(0.5)  # wrong: never awaited
    job.checkpoint(7)  # wrong: never awaited
    job.attempt = 2  # wrong: attempt is a fact
    job.stopping()  # wrong: stopping is a fact
    job.transaction(7, 8)  # wrong: too many arguments


def options() -> None:
    app.task(colour="red")  # wrong: unknown option
    mail.task(colour="red")  # wrong: unknown option of a package's task
    app.task("add")  # wrong: a name by position
    app.task(7)  # wrong: not a function
    app.task(name=7)  # wrong: type of name
    app.task(queue=7)  # wrong: type of queue
    app.task(queue=None)  # wrong: type of queue
    app.task(priority="high")  # wrong: type of priority
    app.task(retry="often")  # wrong: type of retry
    app.task(timeout=["30s"])  # wrong: type of timeout
    app.task(delay="5m")  # wrong: an option of a job, not of the task
    app.task(version="2")  # wrong: type of version
    app.task(unique=7)  # wrong: type of unique
    app.task(executor="thread")  # wrong: no executor of that name
    app.task(executor=True)  # wrong: type of executor
    app.task(redact="password")  # wrong: text for several names
    app.task(redact=(1, 2))  # wrong: type of a name
    app.task(retention=["30d"])  # wrong: type of retention
    app.task(queue="mail")("add")  # wrong: not a function
    Retry(attempts="3")  # wrong: type of attempts
    Retry(on="ValueError")  # wrong: type of on
    Retry(backoff="quadratic")  # wrong: unknown curve
    Retry(tries=3)  # wrong: unknown option
    Unique(by=7)  # wrong: type of by
    Unique(within=["10m"])  # wrong: type of within
    Unique(states="queued")  # wrong: text for several states
    Unique(conflict="ignore")  # wrong: no answer to a conflict of that name
    Unique(conflict=None)  # wrong: type of conflict
    Unique(key="a")  # wrong: unknown option
    Debounce()  # wrong: no period
    Debounce("10s", keep="both")  # wrong: no call of that name
    Throttle("10s", longest="1m")  # wrong: unknown option
    app.task(unique=[Unique(), Debounce("10s")])  # wrong: several kinds at once
    Snooze(["10m"])  # wrong: type of the pause
    Snooze()  # wrong: pause missing
    Discard(7)  # wrong: type of the reason


def packages() -> None:
    Package(7)  # wrong: type of the name
    app.package(add)  # wrong: a task in place of a package
    rota.Worker()  # wrong: no such name in the library
    app.tasks["add"] = add  # wrong: tasks are added by registering them


async def schedules() -> None:
    app.cron(7)  # wrong: type of the expression
    app.cron("0 9 * * *", when="now")  # wrong: unknown option
    app.cron("0 9 * * *", misfire="sometimes")  # wrong: no such rule
    app.every(["30s"])  # wrong: type of the interval
    app.every("30s")("poll")  # wrong: not a function
    await app.schedules.put("s", cron="0 9 * * *")  # wrong: task missing
    await app.schedules.put("s", task=7)  # wrong: type of task
    await app.schedules.put("s", task=add, args=[1])  # wrong: type of args
    await app.schedules.put("s", task=add, max_runs="3")  # wrong: type of max_runs
    await app.schedules.put("s", task=add, overlap="no")  # wrong: no such rule
    await app.schedules.trigger("s", at="tomorrow")  # wrong: type of at
    await app.emit(7)  # wrong: type of the event
    await app.emit("event", [1])  # wrong: type of the payload


def facts() -> None:
    LeadershipEnded("indexer", 5)  # wrong: reason missing
    LeadershipEnded("indexer", "5", "resigned")  # wrong: type of epoch
    LeadershipEnded("indexer", 5, "resigned", kind="over")  # wrong: no such kind
    LeadershipEnded("indexer", 5, "resigned").name = "other"  # wrong: a fact is not changed


async def events() -> None:
    orders = app.event_log("orders")
    await orders.append("order-7", "Seen", expected_version="1")  # wrong: not a number
    await orders.append_many(["Seen"])  # wrong: not what bind returns
    await orders.read_all(after=7)  # wrong: a position alone
    app.event_table("events", position="id", data="payload")  # wrong: without the column of the transaction's id
