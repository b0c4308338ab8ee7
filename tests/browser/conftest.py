"""A real Chromium, and a real dashboard with a real worker behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, sync_playwright
from tests.browser.past import settle_schedules, write_past
from tests.browser.pressing import Press, pressing
from tests.browser.proxy import proxied
from tests.web.servers import Server

from rota import Rota
from rota.dashboard.pages import PAGES
from rota.testing import DatabaseServer, WorkerProcess, until_sync

# as root there is no sandbox; the rest keeps it from calling home
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
SHOP = (Path(__file__).parent / "shop.py").read_text()
TABLES = """
    create table public.suppliers (id int primary key, answers boolean, asked_at timestamptz);
    create table public.revenue (sum int);
    create table public.readers (stream text);
    create table public.closed (why text);
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "presses(*actions): presses the buttons of these actions of the dashboard")


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    """That of those who read events: the shop does."""
    return event_server


# not for longer than a module: while it is there, an event loop of Playwright's runs in this thread, in which no other could
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is missing, and CI must have it: .ci/run installs it")
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Shop:
    """The shop at work: a dashboard that is served at `url`, a worker, and `app` for what is done behind their backs."""

    url: str
    app: Rota
    dsn: str
    server: Server

    def enqueue(self, task: str, args: str, queue: str, *, later: str = "0") -> int:
        """By plain SQL, as the tasks are those of other processes."""
        with self.app.database.transaction_sync() as connection:
            found = connection.execute(
                "select rota.enqueue(%s, %s, %s, 0, now() + %s::interval)", [task, args, queue, later]
            ).fetchall()
        return int(found[0][0])

    def until(self, predicate: Callable[[], Any], what: str) -> Any:
        return until_sync(predicate, 40, what)

    def ended(self, job: int) -> str:
        """Wait for the end of a job, and return its state."""
        self.until(lambda: self.app.jobs.get_sync(job).finished_at, f"job {job} has ended")
        return self.app.jobs.get_sync(job).state

    def running(self, job: int) -> int:
        """Wait until it is at work."""
        self.until(lambda: self.app.jobs.get_sync(job).state == "running", f"job {job} runs")
        return job

    def sql(self, query: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def opened(rota_server: DatabaseServer, folder: Path, *, past: bool = False) -> Iterator[Shop]:
    """A shop on a database of its own, until the block ends; one with a past has done much before."""
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(rota_server.database("rota"))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLES)
        if past:
            write_past(dsn)
        app = stack.enter_context(Rota(dsn))
        command = ("rota", "dashboard", "site_app:app", "--port", "PORT")
        server = stack.enter_context(Server(folder, dsn, *command, site=SHOP))
        worker = WorkerProcess(server.folder / "site_app.py", dsn=dsn, schema="rota")
        stack.enter_context(worker).wait_until_working()
        server.wait_until_ready()
        yield Shop(f"http://localhost:{server.port}/", app, dsn, server)


@contextlib.contextmanager
def served_to_others(shop: Shop) -> Iterator[Server]:
    command = ("rota", "dashboard", "site_app:app", "--port", "PORT", "--auth", "ana:a-long-password")
    with Server(shop.server.folder.parent, shop.dsn, *command, site=SHOP) as server:
        yield server.wait_until_ready()


@dataclass
class Busy:
    """A shop with a past, in the middle of a day, and where to look at it."""

    shop: Shop
    running: int
    dead: int
    bulk: int
    proxied: str

    def addresses(self) -> dict[str, list[str]]:
        """Of every page there is; those that need more than their path are told here."""
        known = {
            "job": [f"jobs/{self.running}", f"jobs/{self.dead}"],
            "bulk new": ["bulk/new?do=cancel&queue=mail", "bulk/new"],
            "bulk one": [f"bulk/{self.bulk}"],
            "schedule": ["schedule?name=nightly_report"],
            "schedule-edit": ["schedule/edit?name=nightly_report", "schedule/edit"],
            "poller": ["poller?name=suppliers", "poller?name=suppliers&check=1"],
            "projection": ["projection?name=newsletter", "projection?name=revenue"],
            "about": ["about", "about?examine=1"],
        }
        return {page.name: known.get(page.name, [page.path.lstrip("/")]) for page in PAGES}


@contextlib.contextmanager
def busy_shop(rota_server: DatabaseServer, folder: Path) -> Iterator[Busy]:
    with contextlib.ExitStack() as stack:
        shop = stack.enter_context(opened(rota_server, folder, past=True))
        settle_schedules(shop.dsn)
        shop.app.queues.pause_sync("media", "the disk is being replaced", for_="45m", by="bob")
        shop.app.queues.limit_sync("payments", running=4, rate="100/1m", by="ana")
        shop.app.queues.weigh_sync("mail", 2, by="ana")
        shop.app.schedules.pause_sync("stock_report", by="ana")
        shop.sql("insert into public.suppliers values (4, false), (9, false), (12, true)")
        orders = shop.app.event_log("orders")
        for order, data in enumerate(({"sum": 40}, {"sum": 12}, {"total": 7}, {"sum": 3}), 10_441):
            orders.append_sync(f"order-{order}", "Paid", data)
        shop.app.queues.resume_sync("media", by="bob")
        running = shop.running(shop.enqueue("import_catalog", '{"file": "catalog-3.csv", "rows": 2600}', "media"))
        shop.app.queues.pause_sync("media", "the disk is being replaced", for_="45m", by="bob")
        for n in range(5):
            shop.enqueue("send_receipt", f'{{"order": {n}, "to": "customer-{n}@example.com"}}', "mail", later="3h")
        for n in range(3):
            shop.enqueue("import_catalog", f'{{"file": "catalog-{n}.csv", "rows": 120}}', "media")
        bulk = shop.app.bulk.start_sync("prioritise", priority=2, queue="mail", state="queued", by="ana")
        shop.until(lambda: not shop.app.bulk.get_sync(bulk.id).open, "the bulk has ended")
        projections = shop.app.projections
        shop.until(
            lambda: (
                {("revenue", "stopped", 0), ("newsletter", "running", 4)}
                <= {(each.name, each.state, each.parked) for each in projections.list_sync()}
            ),
            "the projections have done what they can",
        )
        shop.until(lambda: [each.parked for each in shop.app.pollers.list_sync()] == [2], "two suppliers are parked")
        shop.until(lambda: len(shop.app.jobs.logs_sync(running)) >= 5, "it has logged")
        shop.until(lambda: all(each.holder for each in shop.app.leaders.list_sync()), "all is led")
        dead = shop.sql("select max(id) from rota.dead")[0][0]
        behind = stack.enter_context(served_to_others(shop))
        yield Busy(shop, running, dead, bulk.id, stack.enter_context(proxied(behind.port)))


@pytest.fixture(scope="module")
def busy(rota_server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    with busy_shop(rota_server, tmp_path_factory.mktemp("shop")) as busy:
        yield busy


@pytest.fixture(scope="module")
def shop(rota_server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One for all tests of a module: each takes away what it put there, or leaves what disturbs nobody."""
    with opened(rota_server, tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture(scope="module")
def shop_with_credentials(shop: Shop) -> Iterator[Shop]:
    """The same shop as one sees it from elsewhere: who comes has a password, as behind a proxy."""
    with served_to_others(shop) as server:
        yield Shop(f"http://localhost:{server.port}/", shop.app, shop.dsn, server)


@pytest.fixture
def press(shop: Shop, request: pytest.FixtureRequest) -> Iterator[Press]:
    yield from pressing(shop.dsn, request)


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens tabs; at the end nothing was said on their consoles, as a breach of the content policy would be, and all that they asked
    for was there, but for what the test has refused. Whatever asks for confirmation is confirmed."""
    said: list[str] = []
    contexts = []

    def open_tab(*, refused: bool = False, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on(
            "console",
            lambda message: (
                said.append(message.text)
                if message.type in ("error", "warning") and not (refused and _tells_of_refusal(message.text))
                else None
            ),
        )
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "response",
            lambda answer: (
                said.append(f"{answer.status} {answer.url}")
                if answer.status >= 400 and not (refused and answer.status in _REFUSALS)
                else None
            ),
        )
        page.on("requestfailed", lambda asked: said.append(_told(asked)) if _is_failure(asked) else None)
        page.on("dialog", _confirm)
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert said == []


_REFUSALS = (409, 422)


def _tells_of_refusal(text: str) -> bool:
    """What a browser says of a page that came with such a status."""
    return any(f"the server responded with a status of {status}" in text for status in _REFUSALS)


def _is_failure(request: Request) -> bool:
    # a page that is left ends what it asked for
    return request.failure != "net::ERR_ABORTED"


def _told(request: Request) -> str:
    return f"{request.failure} {request.url}"


def _confirm(dialog: Dialog) -> None:
    # a text that came from elsewhere and opens one is not confirmed: the test that waits behind it fails
    if dialog.type == "confirm":
        dialog.accept()
