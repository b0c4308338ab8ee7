"""Limits, lines and queues under load, with real worker processes; each figure beside a reference that is measured in turn.

python bench/flow.py                     all of them, on the embedded server, thrown away afterwards
python bench/flow.py keys rates          some of them
python bench/flow.py --short tenants     with less work
python bench/flow.py --dsn DSN

Where the machine is shared, go by the processor time (of all workers and backends) rather than by the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import psycopg
from psycopg.abc import Query as Sql

from flow_tasks import RATE, make_app
from rota import Rota
from rota.embedded import EmbeddedServer
from rota.jobs.claim import ClaimedJob, claim_flow, new_token
from rota.jobs.lanes import Lane
from rota.jobs.outcome import Succeeded
from rota.jobs.settle import succeed
from rota.jobs.worker import _PLANNING
from rota.leases.members import join_member
from rota.postgres.query import Query
from rota.testing.processes import WorkerProcess

TICKS = os.sysconf("SC_CLK_TCK")
SLOW = "slow.log"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--dsn")
    parser.add_argument("--short", action="store_true")
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        # durable settings: a figure without fsync says little about a production server
        options = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
        # what is slow by the server's own clock: a worker that runs jobs meanwhile hears of it later
        options |= {"logging_collector": "on", "log_filename": SLOW, "log_min_duration_statement": "50ms"}
        dsn = chosen.dsn or stack.enter_context(EmbeddedServer(ephemeral=True, options=options)).start()
        for name in chosen.names or BENCHMARKS:
            print(f"== {name}", flush=True)
            with Bench.opened(dsn, short=chosen.short) as bench:
                BENCHMARKS[name](bench)


@dataclass
class Drain:
    """How long it took from the first claim to the last settle, and what it cost the processors."""

    jobs: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    @property
    def cpu_each(self) -> float:
        """Microseconds."""
        return self.cpu / self.jobs * 1e6

    def __str__(self) -> str:
        return f"{self.rate:7,.0f}/s, {self.cpu_each:5,.0f} µs each"


class Bench:
    """A schema of its own in a database, and what is done there."""

    def __init__(self, dsn: str, app: Rota, db: psycopg.Connection[Any], short: bool) -> None:
        self.dsn, self.app, self.db, self.short = dsn, app, db, short
        self.schema = app.settings.schema
        self.workers: list[WorkerProcess] = []

    @classmethod
    @contextlib.contextmanager
    def opened(cls, dsn: str, *, short: bool) -> Iterator[Bench]:
        app = make_app(dsn, f"flow_{uuid4().hex[:8]}")
        with psycopg.connect(dsn, autocommit=True) as db:
            app.migrate_sync()
            db.execute(cast(Sql, f'set search_path = "{app.settings.schema}"'))
            try:
                yield cls(dsn, app, db, short)
            finally:
                db.execute(cast(Sql, f'drop schema "{app.settings.schema}" cascade'))
                app.close_sync()

    @contextlib.contextmanager
    def fleet(self, processes: int, **options: Any) -> Iterator[list[WorkerProcess]]:
        tasks = Path(__file__).with_name("flow_tasks.py")
        with contextlib.ExitStack() as stack:
            self.workers = [
                stack.enter_context(WorkerProcess(tasks, dsn=self.dsn, schema=self.schema, **options))
                for _ in range(processes)
            ]
            for worker in self.workers:
                worker.wait_until_working(120)
            yield self.workers
            self.workers = []

    def ask(self, sql: str, *params: Any) -> Any:
        row = self.db.execute(cast(Sql, sql), params).fetchone()
        return None if row is None else row[0] if len(row) == 1 else row

    def rows(self, sql: str, *params: Any) -> list[Any]:
        return self.db.execute(cast(Sql, sql), params).fetchall()

    def enqueue(self, task: str, keys: Sequence[int], pause: float = 0, queue: str = "default") -> list[int]:
        bound = self.app.tasks[task].using(queue=queue)
        return [job.id for job in self.app.enqueue_many_sync([bound.bind(k, pause) for k in keys])]

    def fill(
        self, task: str, count: int, key: str = "0", *, queue: str = "'default'", due: str = "now()", args: str = ""
    ) -> None:
        """Many, by plain SQL, in transactions of a size that people use; `key` is an expression over `n`."""
        line, state, place, name = "null", "'queued'", "null", "null"
        if task != "plain":
            name = f"({key})::text"
            line, state = f"line_of({task!r}, {name})", "'blocked'"
            place = f"case when {due} <= now() then -(pg_current_xact_id()::text::bigint) end"
        given = f"'k', {key}" + (f", {args}" if args else "")
        for first in range(0, count, 50_000):
            self.db.execute(
                cast(
                    Sql,
                    f"""
                    insert into jobs (task, args, key, queue, due_at, line, state, place)
                    select {task!r}, jsonb_build_object({given}), {name}, {queue}, {due}, {line}, {state}, {place}
                    from generate_series({first}, {min(count, first + 50_000) - 1}) as n
                    """,
                )
            )

    def pause(self) -> None:
        self.db.execute("insert into queues (name, paused_at) values ('', now())")
        time.sleep(1)  # workers hear of it within a second

    def resume(self) -> None:
        self.db.execute("delete from queues where name = ''")
        self.db.execute("select notify('rota', 'default')")

    def until(self, sql: str, wanted: Any, *params: Any, timeout: float = 600) -> None:
        ends = time.monotonic() + timeout
        while (told := self.ask(sql, *params)) != wanted:
            if time.monotonic() > ends:
                raise AssertionError(f"{sql} is {told!r}, not {wanted!r}, after {timeout} s")
            time.sleep(0.05)

    def drained(self, task: str, keys: Sequence[int], pause: float = 0) -> Drain:
        """Enqueue these and wait until all have run."""
        self.db.execute("truncate history")
        before = self.cpu()
        self.enqueue(task, keys, pause)
        self.until("select count(*) from history where task = %s", len(keys), task)
        return self.told(task, self.cpu() - before)

    def told(self, task: str, cpu: float) -> Drain:
        jobs, seconds = self.ask(
            "select count(*), extract(epoch from max(finished_at) - min(claimed_at))::float8 from history where task = %s",
            task,
        )
        return Drain(jobs, seconds, cpu)

    def cpu(self) -> float:
        """Seconds that workers and backends have had so far."""
        postmaster = self.ask("select pg_read_file('postmaster.pid')").split("\n")[0]
        pids = [*(str(worker.pid) for worker in self.workers), postmaster, *children(postmaster)]
        return sum(cpu_of(pid, ended=pid == postmaster) for pid in pids)

    def bodies(self, task: str) -> list[tuple[str, float, float]]:
        return self.rows(
            "select key, (result ->> 0)::float8, (result ->> 1)::float8 from history where task = %s order by 2", task
        )


def children(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def cpu_of(pid: str, *, ended: bool = False) -> float:
    """Of the process, and of its children that have ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11 : 15 if ended else 13])) / TICKS
    return 0.0


def most_at_once(spans: Sequence[tuple[str, float, float]]) -> int:
    """How many of one key ran at the same time, at most."""
    most = 0
    for key in {key for key, _, _ in spans}:
        edges = sorted(edge for name, began, ended in spans if name == key for edge in ((began, 1), (ended, -1)))
        running = 0
        for _, change in edges:
            running += change
            most = max(most, running)
    return most


def most_in_a_window(times: Sequence[float], seconds: float = 1.0) -> int:
    times = sorted(times)
    return max(bisect_left(times, began + seconds) - i for i, began in enumerate(times))


def keys(bench: Bench) -> None:
    """Limit 1 for 200 keys under 8 processes, beside the same jobs without a limit."""
    rounds, jobs, each = (3, 2_000, 200) if bench.short else (7, 2_000, 200)
    spread = [n % each for n in range(jobs)]
    shares, costs = [], []
    with bench.fleet(8):
        for task in ("plain", "one_by_one"):
            bench.drained(task, spread)
        for _ in range(rounds):
            before = bench.drained("plain", spread)
            limited = bench.drained("one_by_one", spread)
            most = most_at_once(bench.bodies("one_by_one"))
            after = bench.drained("plain", spread)
            shares.append(2 * limited.rate / (before.rate + after.rate))
            costs.append(2 * limited.cpu / (before.cpu + after.cpu))
            print(f"limit 1: {limited}; without: {before} and {after}; at once of a key: {most}", flush=True)
            assert most == 1
    print(
        f"median share of the rate without: {statistics.median(shares):.2f}; of its cost: {statistics.median(costs):.2f}"
    )


def rates(bench: Bench) -> None:
    """100 a second under 4 processes for 30 s: of a task, of each of two keys, of a queue."""
    seconds = 6 if bench.short else 30
    with bench.fleet(4):
        for task in ("rated", "rated_by_key", "plain"):
            bench.db.execute("truncate history")
            if task == "plain":
                bench.db.execute(
                    "insert into queues (name, rate_count, rate_seconds) values ('default', %s, 1)", [RATE]
                )
            lanes = 2 if task == "rated_by_key" else 1
            bench.enqueue(task, [n % lanes for n in range((seconds + 2) * RATE * lanes)])
            cpu = bench.cpu()
            time.sleep(seconds + 1)
            cpu = bench.cpu() - cpu
            bench.db.execute("delete from jobs")
            time.sleep(1)
            for key in {key for key, _, _ in bench.bodies(task)}:
                claimed = [
                    at
                    for (at,) in bench.rows(
                        "select extract(epoch from claimed_at)::float8 from history where key is not distinct from %s order by 1",
                        key,
                    )
                ]
                began = [began for name, began, _ in bench.bodies(task) if name == key]
                counted = [at for at in claimed if at < claimed[0] + seconds]
                print(
                    f"{task:12} key {key}: {len(counted) / seconds:6.2f}/s; in any second at most "
                    f"{most_in_a_window(claimed)} claimed, {most_in_a_window(began)} begun; cpu {cpu / (seconds + 1):.2f}",
                    flush=True,
                )


def tenants(bench: Bench) -> None:
    """99 tenants with 10 jobs each beside one with a million: keys take turns."""
    flood, rounds = (100_000, 3) if bench.short else (1_000_000, 5)
    few = [tenant for tenant in range(1, 100) for _ in range(10)]
    random.Random(7).shuffle(few)

    def of_few() -> float:
        """Seconds until the 990 have run."""
        jobs = bench.enqueue("in_turns", few)
        bench.until("select count(*) from jobs where id = any (%s)", 0, jobs)
        took: float = bench.ask(
            "select extract(epoch from max(finished_at) - min(created_at))::float8 from history where id = any (%s)",
            jobs,
        )
        bench.db.execute("delete from history where id = any (%s)", [jobs])
        return took

    with bench.fleet(4):
        of_few()
        alone = statistics.median(of_few() for _ in range(rounds))
        print(f"the 990 alone: {alone:.2f} s", flush=True)
        drains = []
        for beside_others in (False, True, False):
            bench.pause()
            # each begins with tables and indexes that nothing has been in
            bench.db.execute("truncate history, jobs, lines")
            bench.fill("in_turns", flood)
            bench.db.execute("analyze jobs")
            cpu = bench.cpu()
            bench.resume()
            bench.until("select count(*) > 2000 from history", True)
            if beside_others:
                beside = [of_few() for _ in range(rounds)]
                print(
                    f"the 990 beside the flood: {', '.join(f'{took:.2f}' for took in beside)} s: "
                    f"{statistics.median(beside) / alone:.2f} of alone"
                )
            bench.until("select exists (select from jobs)", False, timeout=3600)
            drains.append(bench.told("in_turns", bench.cpu() - cpu))
            print(f"the flood{' beside others' if beside_others else ''}: {drains[-1]}", flush=True)
        before, between, after = drains
        print(
            f"the flood beside others to the flood alone: rate {2 * between.rate / (before.rate + after.rate):.2f}, "
            f"cost {2 * between.cpu_each / (before.cpu_each + after.cpu_each):.2f}"
        )


def blocked(bench: Bench) -> None:
    """100,000 jobs wait for one key: what others feel of it, and how soon the next is first."""
    waiting, rounds = (20_000, 3) if bench.short else (100_000, 7)
    bench.db.execute("insert into limits (task, running, by_key, argument) values ('one_by_one', 1, true, 'k')")
    with Hands(bench) as hands:
        for pinned in (False, True):
            with contextlib.ExitStack() as stack:
                if pinned:
                    # an old snapshot: no dead row or entry can go
                    other = stack.enter_context(psycopg.connect(bench.dsn))
                    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    other.execute("select 1")
                print("while an old transaction is open:" if pinned else "at rest:")
                figures: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
                for round_ in range(2 * rounds):
                    full = round_ % 2 == 1
                    if full:
                        bench.fill("one_by_one", waiting, "-1")
                        hands.take(1)
                    figures[full].append(hands.pass_many())
                    if full:
                        promoted = [hands.pass_one() for _ in range(50 if pinned else 200)]
                        bench.db.execute("delete from jobs")
                        hands.forget()
                    if not pinned:
                        bench.db.execute("vacuum analyze jobs, lines")
                for place, what in enumerate(("enqueue", "claim", "settle", "processor time")):
                    with_, without = (
                        statistics.median(each[place] for each in figures[full]) for full in (True, False)
                    )
                    print(f"  {what}: {with_ * 1e6:5.0f} µs a job, {without * 1e6:5.0f} without: {without / with_:.2f}")
                promoted.sort()
                print(
                    f"  the next of the key after {statistics.median(promoted) * 1000:.2f} ms, "
                    f"p95 {promoted[int(len(promoted) * 0.95)] * 1000:.2f} ms",
                    flush=True,
                )


class Hands:
    """A worker's session, by hand: its statements as it prepares and plans them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._member = uuid4()
        self._held: list[ClaimedJob] = []

    def __enter__(self) -> Hands:
        self._db = psycopg.connect(self._bench.dsn, autocommit=True, prepare_threshold=0)
        for name, value in _PLANNING.items():
            self._db.execute("select set_config(%s, %s, false)", [name, value])
        lease = timedelta(hours=1)
        self._run(join_member(self._member, name="m", host="h", pid=1, release="0", lease=lease, key=None, work={}))
        return self

    def __exit__(self, *failure: object) -> None:
        self._db.close()

    def _run(self, query: Query[Any]) -> Any:
        cursor = self._db.execute(cast(Sql, query.statement.sql(self._bench.schema)), query.params)
        return query.read(cursor.fetchall() if cursor.description else [])

    def take(self, most: int) -> list[ClaimedJob]:
        jobs: list[ClaimedJob] = self._run(
            claim_flow(
                lanes=[(Lane("default", 0, 0.0, lines=True), None)],
                tasks={"one_by_one": 1, "in_turns": 1},
                limited=["one_by_one", "in_turns"],
                limit=most,
                most_losses=3,
                token=new_token(),
                member=self._member,
            )
        )
        self._held = [*self._held, *jobs]
        return jobs

    def forget(self) -> None:
        self._held = []

    def settle(self, jobs: Sequence[ClaimedJob]) -> None:
        assert len(self._run(succeed([Succeeded(job, None, 0.0) for job in jobs]))) == len(jobs)
        self._held = [job for job in self._held if job not in jobs]

    def pass_many(self, jobs: int = 2_000, keys: int = 200, at_once: int = 50) -> tuple[float, float, float, float]:
        """Seconds that it takes to enqueue, claim and settle one, and how much of that is processor time of the session."""
        began = time.monotonic()
        for first in range(0, jobs, at_once):
            self._bench.enqueue("one_by_one", [n % keys for n in range(first, first + at_once)])
        enqueued = time.monotonic()
        cpu, claims, settles, done = cpu_of(str(self._db.info.backend_pid)), 0.0, 0.0, 0
        while done < jobs:
            at = time.monotonic()
            taken = self.take(at_once)
            assert taken
            claims += time.monotonic() - at
            at = time.monotonic()
            self.settle(taken)
            settles += time.monotonic() - at
            done += len(taken)
        cpu = cpu_of(str(self._db.info.backend_pid)) - cpu
        return (enqueued - began) / jobs, claims / jobs, settles / jobs, cpu / jobs

    def pass_one(self) -> float:
        """Seconds that it takes to settle the one that runs, so that the next may be taken."""
        (job,) = self._held
        began = time.monotonic()
        self.settle([job])
        took = time.monotonic() - began
        assert self.take(1)
        return took


def due_at_once(bench: Bench) -> None:
    """A million jobs of four queues due in the same second: how long claims take, what they need, and who is served."""
    jobs = 100_000 if bench.short else 1_000_000
    for task in ("plain", "one_by_one"):
        bench.db.execute("truncate history")
        bench.db.execute("truncate jobs")
        at = bench.ask("select date_trunc('second', clock_timestamp()) + interval '1 hour'")
        bench.fill(task, jobs, "n % 1000", queue="'q' || n % 4", due=f"timestamptz '{at}'")
        bench.db.execute("vacuum analyze jobs")
        with tempfile.TemporaryDirectory() as folder, bench.fleet(2, env={"FLOW_CLAIMS": folder}) as workers:
            time.sleep(1)
            slow_before = slow_claims(bench)
            memory = [memory_of(worker.pid) for worker in workers]
            # the database's clock is moved: an update of all would be another thing
            bench.db.execute(
                "create or replace function now() returns timestamptz language sql stable parallel safe "
                "return statement_timestamp() + interval '1 hour'"
            )
            began = time.monotonic()
            bench.until("select count(*) > 0 from history", True)
            first = time.monotonic() - began
            time.sleep(10 if bench.short else 40)
            counts = dict(bench.rows("select queue, count(*) from history group by 1"))
            slow = slow_claims(bench) - slow_before
            most = [memory_of(worker.pid) for worker in workers]
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
            told = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
        bench.db.execute(
            "create or replace function now() returns timestamptz language sql stable parallel safe return statement_timestamp()"
        )
        took = sorted(seconds for each in told for at, seconds, taken, _ in each["claims"] if taken and at > began)
        grown = max(after - before for before, after in zip(memory, most, strict=True))
        print(
            f"{task}: first after {first:.2f} s, {sum(counts.values()):,} run; claims: median "
            f"{statistics.median(took) * 1000:.1f} ms, p99 {took[int(len(took) * 0.99)] * 1000:.1f} ms, worst "
            f"{took[-1] * 1000:.0f} ms as a worker sees it; {slow} of {len(took):,} over 50 ms by the server; memory +{grown:.0f} MB; "
            f"by queue {counts}",
            flush=True,
        )


def slow_claims(bench: Bench) -> int:
    """How many took over 50 ms so far; nothing is known of a server that is not ours."""
    try:
        log: str = bench.ask("select pg_read_file('log/' || %s)", SLOW)
    except psycopg.errors.UndefinedFile:
        return 0
    return log.count("/* rota:claim")


def memory_of(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def changes(bench: Bench) -> None:
    """The limit of a queue goes from 10 to 2 to 10 under 4 processes; then one of them is killed that holds slots."""
    rounds = 2 if bench.short else 5
    bench.db.execute("insert into queues (name, running_limit) values ('default', 10)")
    with bench.fleet(4) as workers:
        for _ in range(rounds):
            bench.db.execute("truncate history")
            bench.fill("plain", 3_000, args="'pause', 0.02")
            bench.until("select count(*) from jobs where state = 'running'", 10)
            time.sleep(1)
            lowered = change(bench, 2)
            time.sleep(1.5)
            raised = change(bench, 10)
            bench.until("select count(*) from jobs where state = 'running'", 10, timeout=30)
            back = bench.ask("select extract(epoch from clock_timestamp() - %s)::float8", raised[1])
            time.sleep(1)
            bench.db.execute("delete from jobs")
            time.sleep(0.5)
            spans = bench.rows("select claimed_at, finished_at from history order by 1")
            narrow = [span for span in spans if lowered[1] < span[0] < raised[0]]
            print(
                f"at once: {most_running(spans, [span for span in spans if span[0] < lowered[0]])} before, "
                f"{most_running(spans, narrow)} from when it is lowered, "
                f"{most_running(spans, [span for span in spans if span[0] > raised[1]])} from when it is raised; "
                f"ten run again {back * 1000:.0f} ms after that; {len(narrow) / 1.5:.0f}/s while lowered",
                flush=True,
            )
        bench.fill("plain", 400, args="'pause', 3600")
        bench.until("select count(*) from jobs where state = 'running'", 10)
        counts = dict(
            bench.rows(
                "select pid, count(*) from jobs join members on members.id = member where state = 'running' group by 1"
            )
        )
        killed = max(workers, key=lambda worker: counts.get(worker.pid, 0))
        began = time.monotonic()
        os.kill(killed.pid, signal.SIGKILL)
        held = "select count(*) from jobs join members on members.id = member where state = 'running' and pid <> %s"
        bench.until(held, 10, killed.pid, timeout=60)
        print(
            f"one is killed that holds {counts[killed.pid]}: others have its slots after {time.monotonic() - began:.2f} s"
        )
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)


def change(bench: Bench, limit: int) -> tuple[Any, Any]:
    """When it is said, and when it is acknowledged."""
    said = bench.ask("select clock_timestamp()")
    bench.db.execute("update queues set running_limit = %s where name = 'default'", [limit])
    return said, bench.ask("select clock_timestamp()")


def most_running(spans: Sequence[tuple[Any, Any]], begun: Sequence[tuple[Any, Any]]) -> int:
    """How many of all run at most when one of these begins, with it."""
    return max((sum(began <= at < ended for began, ended in spans) for at, _ in begun), default=0)


BENCHMARKS = {each.__name__: each for each in (keys, rates, tenants, blocked, due_at_once, changes)}

if __name__ == "__main__":
    main()
