"""What the dashboard costs: every page, region and read of the API with a million settled jobs, and what an open tab asks for.

make bench-pages                             all of it on a server of its own, thrown away afterwards; some ten minutes
python bench/dashboard.py seed DSN           fill an empty database, which is left without statistics
python bench/dashboard.py pages DSN          ask for everything forty times; fails if the p95 of one is above the bar
python bench/dashboard.py tabs DSN           hold tabs open while workers are busy; fails if one costs too many statements a second
python bench/dashboard.py analyze DSN        let the planner know what is there

The server must have pg_stat_statements loaded. The dashboard runs in a process of its own, as `rota dashboard`, with a role that is a
member of rota_read and nothing else. While pages are timed it gives nothing again that it has read before: each figure is that of a
look at the database, drawn and sent. Statements are counted by PostgreSQL, with those that begin and end transactions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
from psycopg.conninfo import make_conninfo

from dashboard_world import LOOKER, SETTLED, seed
from rota.dashboard.api.endpoints import ENDPOINTS
from rota.dashboard.pages import PAGES
from rota.embedded import EmbeddedServer

HERE = Path(__file__).parent
TIMES = 40
BAR_MS = 300.0
BAR_STATEMENTS = 5.0
TAB_SECONDS = 20.0  # a stream ends by itself after as long, and the next begins
TABS = 10
SERVER = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "shared_preload_libraries": "pg_stat_statements",
}


@dataclass(frozen=True)
class Known:
    """Some of what there is, to ask for."""

    done: int
    logged: int
    waiting: int
    blocked: int
    running: int
    dead: int
    schedule: str
    parked: int

    @classmethod
    def of(cls, db: psycopg.Connection[Any]) -> Known:
        def one(sql: str) -> Any:
            row = db.execute(sql).fetchone()  # type: ignore[arg-type]
            assert row is not None, sql
            return row[0]

        return cls(
            one("select id from rota.history where id < 500000 and id % 33 = 0 order by id desc limit 1"),
            one("select job_id from rota.logs where number = 1000 limit 1"),
            one(
                "select id from rota.jobs where state = 'queued' and queue = 'mail' order by due_at limit 1 offset 5000"
            ),
            one("select id from rota.jobs where state = 'blocked' order by id desc limit 1"),
            one("select id from rota.jobs where state = 'running' limit 1"),
            one("select id from rota.dead where resolved_at is null order by id desc limit 1"),
            one("select schedule from rota.slots order by id desc limit 1"),
            one("select position from rota.parked_events order by position limit 1"),
        )


def pages(known: Known) -> list[str]:
    """The addresses of every page, and of the Jobs page by every filter."""
    name = quote(known.schedule, safe="")
    jobs = [
        "",
        "state=succeeded",
        "state=queued",
        "state=running",
        "state=blocked",
        "state=dead",
        "state=cancelled",
        "queue=mail",
        "task=mail.send",
        "task=no.such.task",
        "tag=user:4242",
        "tag=nobody",
        "arg=user.id%3D4242",
        "arg=order%3D17",
        "error=10.0.7.7",
        "error=no+such+text",
        "since=1h",
        "until=7d",
        "since=8d&until=7d",
        "since=30d&task=billing.make",
        "attempt=2",
        "member=00000000-0000-0000-0000-000000000007",
        f"after={SETTLED // 2}",
        "state=succeeded&queue=mail&tag=region:3&arg=user.id%3D4242&since=2d",
    ]
    found = [
        "",
        "?span=1h",
        "?span=24h",
        "?span=7d",
        *(f"jobs?{query}".rstrip("?") for query in jobs),
        *(f"jobs/{job}" for job in (known.done, known.logged, known.waiting, known.blocked, known.running, known.dead)),
        "queues",
        "dead",
        "dead?queue=mail",
        "dead?error=order&task=mail.send",
        "dead?which=resolved",
        "bulk",
        "bulk/new?do=cancel&state=queued&task=mail.send",
        "bulk/1",
        "schedules",
        "schedules?prefix=team-42",
        "schedules?state=paused",
        "schedules?state=broken",
        f"schedule?name={name}",
        f"schedule/edit?name={name}",
        "members",
        "pollers",
        "poller?name=feeds",
        "projections",
        "projection?name=counts",
        "projection?name=totals",
        "database",
        "audit",
        "audit?actor=ana&action=retry",
        "audit?about=no+such+text",
        "audit?since=1h",
        "about",
    ]
    missing = {page.name for page in PAGES} - {page_of(path).name for path in found}
    assert not missing, f"nobody asks for {missing}"
    return found


def page_of(path: str) -> Any:
    folder = "/" + path.partition("?")[0]
    return next(page for page in PAGES if re.fullmatch(page.path.replace("{id:int}", r"\d+"), folder))


def fragments(paths: Sequence[str]) -> list[str]:
    """Every region of every page, once."""
    first = {page_of(path).name: path for path in reversed(paths)}
    return [
        f"{path}{'&' if '?' in path else '?'}_fragment={region.name}"
        for path in first.values()
        for region in page_of(path).regions
    ]


def reads(known: Known) -> list[str]:
    """Every read of the API, with what it must be given."""
    names = {
        "queue": "mail",
        "schedule": known.schedule,
        "leader": "singleton-3",
        "poller": "feeds",
        "projection": "counts",
    }
    found = []
    for endpoint in ENDPOINTS:
        kind = endpoint.path.split("/")[1]
        one = {"dead": known.dead, "bulk": 1}.get(kind, known.waiting)
        path = endpoint.path.replace("{id}", str(one))
        needed = {"name": names.get(kind, ""), "position": str(known.parked), "action": "cancel"}
        given = [f"{name}={quote(needed[name], safe='')}" for name, param in endpoint.params.items() if param.required]
        given += ["task=mail.send"] if "action" in endpoint.params and kind == "bulk" else []  # not all there are
        found.append(f"api/v1{path}" + (f"?{'&'.join(given)}" if given else ""))
    return [*found, "api/v1/jobs/search?error=no+such+text", "api/v1/jobs/count?tag=user:4242", "api/v1/openapi.json"]


@contextlib.contextmanager
def dashboard(dsn: str, *, every_look: bool) -> Iterator[str]:
    """`rota dashboard` in a process of its own, by the role that may only look; gives its address."""
    command = [sys.executable, "-m", "rota", "dashboard", str(HERE / "dashboard_tasks.py"), "--port", "0"]
    password = secrets.token_hex()
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as db:
        db.execute(f"alter role {LOOKER} password %s", [password])
    address = make_conninfo(dsn, user=LOOKER)
    env = {**os.environ, "ROTA_DATABASE_URL": address, "PGPASSWORD": password, "PYTHONUNBUFFERED": "1"}
    env |= {"BENCH_EVERY_LOOK": "1"} if every_look else {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True) as process:
        assert process.stdout is not None
        found = ""
        try:
            for line in process.stdout:
                if "Application startup complete" in line:  # its address comes before it answers
                    yield found
                    break
                if told := re.search(r"dashboard on (http\S+)", line):
                    found = told[1]
            else:
                sys.exit("the dashboard did not start")
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.close()


class Counting:
    """Statements of whoever looks, as PostgreSQL counts them."""

    def __init__(self, dsn: str) -> None:
        self.db = psycopg.connect(dsn, autocommit=True)
        self.db.execute("create extension if not exists pg_stat_statements")
        self.db.execute("alter system set pg_stat_statements.track = 'top'")
        self.db.execute("select pg_reload_conf()")

    def so_far(self) -> int:
        row = self.db.execute(
            "select coalesce(sum(calls), 0) from pg_stat_statements where userid = %s::regrole and toplevel", [LOOKER]
        ).fetchone()
        assert row is not None
        return int(row[0])


@dataclass(frozen=True)
class Figure:
    path: str
    seconds: list[float]
    statements: float

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.seconds, n=20, method="inclusive")[18] * 1000

    def __str__(self) -> str:
        p50, worst = statistics.median(self.seconds) * 1000, max(self.seconds) * 1000
        over = "  ABOVE THE BAR" if self.p95 > BAR_MS else ""
        return f"{p50:7.1f} {self.p95:7.1f} {worst:7.1f} {self.statements:6.1f}  /{self.path}{over}"


def measure_pages(dsn: str, times: int, only: str | None) -> bool:
    """Whether all are below the bar."""
    counting = Counting(dsn)
    known = Known.of(counting.db)
    asked = pages(known)
    asked = [path for path in [*asked, *fragments(asked), *reads(known)] if only is None or re.search(only, path)]
    seconds: dict[str, list[float]] = {path: [] for path in asked}
    statements = {}
    with dashboard(dsn, every_look=True) as address, httpx.Client(base_url=address, timeout=30) as client:
        for path in asked:  # the first opens connections and parses, and is no look like the others
            answer = client.get(f"/{path}")
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
            assert "cannot be read now" not in answer.text, path
            assert "Data from" not in answer.text, path
            before = counting.so_far()
            client.get(f"/{path}")
            statements[path] = counting.so_far() - before
        for _ in range(times):  # in turns, so that what else the machine does falls on all of them
            for path in asked:
                began = time.perf_counter()
                client.get(f"/{path}").raise_for_status()
                seconds[path].append(time.perf_counter() - began)
    figures = [Figure(path, seconds[path], statements[path]) for path in asked]
    analysed = counting.db.execute(
        "select count(*) from pg_statistic where starelid = 'rota.jobs'::regclass"
    ).fetchone()
    print(f"{'fresh' if analysed != (0,) else 'no'} statistics, {times} times each; ms, and statements of a look")
    print("    p50     p95   worst statem.  page")
    for figure in figures:
        print(figure)
    above = [figure for figure in figures if figure.p95 > BAR_MS]
    print(f"{len(figures) - len(above)} of {len(figures)} answer within {BAR_MS:g} ms at p95", flush=True)
    return not above


class Tab:
    """An open page as its script keeps it: listens to the stream, and fetches the regions that look otherwise."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self._client = client
        self._path = path
        self._shown: dict[str, str] = {}
        self.fetched = 0

    async def stay(self) -> None:
        page = (await self._client.get(f"/{self._path}")).text
        self._shown = dict(re.findall(r'data-region="(\w+)" data-digest="(\w+)"', page))
        while True:
            async with self._client.stream("GET", self._with("_live=1"), timeout=30) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        await self._refresh(json.loads(line.removeprefix("data: ")))
            await asyncio.sleep(1.0)

    async def _refresh(self, digests: dict[str, str]) -> None:
        changed = [name for name, digest in digests.items() if self._shown.get(name) != digest]
        await asyncio.gather(*(self._fetch(name) for name in changed))

    async def _fetch(self, name: str) -> None:
        answer = await self._client.get(self._with(f"_fragment={name}"))
        self._shown[name] = answer.headers["x-rota-digest"]
        self.fetched += 1

    def _with(self, query: str) -> str:
        return f"/{self._path}{'&' if '?' in self._path else '?'}{query}"


@contextlib.asynccontextmanager
async def busy(dsn: str) -> AsyncIterator[None]:
    """Two workers that have something to do all the time."""
    command = [sys.executable, "-m", "rota", "worker", str(HERE / "dashboard_tasks.py"), "--concurrency", "4"]
    env = {**os.environ, "ROTA_DATABASE_URL": dsn}
    quiet = subprocess.DEVNULL
    workers = [subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet) for _ in range(2)]
    try:
        yield
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.wait()


async def measure_tabs(dsn: str, only: str | None) -> bool:
    """Whether each costs less than the bar."""
    counting = Counting(dsn)
    known = Known.of(counting.db)
    live = {page_of(path).name: path for path in reversed(pages(known)) if page_of(path).live}
    asked = [
        *live.values(),
        f"jobs/{known.running}",
        "jobs?arg=user.id%3D4242",
        "jobs?error=no+such+text",
    ]
    asked = [path for path in asked if only is None or re.search(only, path)]
    well = True
    async with busy(dsn):
        print(
            f"statements a second of one tab and of {TABS} of the same page, with workers busy; fetched regions a second"
        )
        for path in asked:
            one, fetched = await _rate(dsn, counting, path, 1)
            many, _ = await _rate(dsn, counting, path, TABS)
            over = "  ABOVE THE BAR" if one >= BAR_STATEMENTS or many >= BAR_STATEMENTS * TABS else ""
            well = well and not over
            print(f"{one:6.2f} {many:6.2f} {fetched:6.2f}  /{path}{over}", flush=True)
    return well


async def _rate(dsn: str, counting: Counting, path: str, tabs: int) -> tuple[float, float]:
    with dashboard(dsn, every_look=False) as address:
        async with httpx.AsyncClient(base_url=address, limits=httpx.Limits(max_connections=100)) as client:
            opened = [Tab(client, path) for _ in range(tabs)]
            staying = [asyncio.create_task(tab.stay()) for tab in opened]
            await asyncio.sleep(2.0)  # what opening it costs is not what staying does
            before, fetched, began = counting.so_far(), sum(tab.fetched for tab in opened), time.perf_counter()
            await asyncio.sleep(TAB_SECONDS)
            spent = time.perf_counter() - began
            after, fetched = counting.so_far(), sum(tab.fetched for tab in opened) - fetched
            for task in staying:
                assert not task.done(), task.result()
                task.cancel()
    return (after - before) / spent, fetched / spent


def analyze(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("vacuum analyze")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", "seed", "pages", "tabs", "analyze"], nargs="?", default="all")
    parser.add_argument("dsn", nargs="?")
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--only", metavar="PATTERN", help="addresses in which this is found")
    given = parser.parse_args()
    if given.what != "all" and given.dsn is None:
        parser.error(f"{given.what} needs the address of a database")
    with contextlib.ExitStack() as stack:
        dsn = given.dsn
        if given.what == "all":
            dsn = stack.enter_context(EmbeddedServer(ephemeral=True, tcp=True, options=SERVER)).start()
        well = True
        if given.what in ("all", "seed"):
            asyncio.run(seed(dsn))
        if given.what in ("all", "pages"):
            well = measure_pages(dsn, given.times, given.only)
        if given.what in ("all", "analyze"):
            analyze(dsn)
        if given.what == "all":
            well = measure_pages(dsn, given.times, given.only) and well
        if given.what in ("all", "tabs"):
            well = asyncio.run(measure_tabs(dsn, given.only)) and well
    if not well:
        sys.exit(f"above the bar of {BAR_MS:g} ms, or of {BAR_STATEMENTS:g} statements a second")


if __name__ == "__main__":
    main()
