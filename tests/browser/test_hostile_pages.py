"""A browser runs nothing of what stands in the database, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from playwright.sync_api import Browser, expect
from tests.browser.conftest import SHOP, TABLES, Shop
from tests.browser.past import write_past
from tests.dashboard.hostile import MARK, plant
from tests.dashboard.test_hostile_text import addresses
from tests.web.servers import Server

from rota import Rota
from rota.dashboard.pages import PAGES
from rota.testing import DatabaseServer, WorkerProcess, until_sync

pytestmark = [pytest.mark.one_server, pytest.mark.long]

TELL = "addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective}`))"


@pytest.fixture
def planted(rota_server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop with a past, of which every text is another; its worker is gone, as it could not work with that."""
    folder = tmp_path_factory.mktemp("shop")
    with rota_server.database("rota") as dsn, Rota(dsn) as app:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLES)
            connection.execute("insert into public.suppliers values (1, false)")
        write_past(dsn)
        orders = app.event_log("orders")
        orders.append_sync("order-1", "Paid", {"total": 3})
        with Server(folder, dsn, "rota", "dashboard", "site_app:app", "--port", "PORT", site=SHOP) as server:
            with WorkerProcess(server.folder / "site_app.py", dsn=dsn, schema="rota") as worker:
                worker.wait_until_working()
                until_sync(lambda: [each.parked for each in app.pollers.list_sync()] == [1], 40, "a row is parked")
                until_sync(lambda: any(each.parked for each in app.projections.list_sync()), 40, "an event is parked")
                until_sync(lambda: all(each.holder for each in app.leaders.list_sync()), 40, "all is led")
                app.queues.pause_sync("mail", "a", by="ana")
                with app.database.transaction_sync() as connection:
                    connection.execute("select rota.enqueue('send_receipt', '{\"to\": \"ana\"}', 'mail')")
                worker.terminate()
                worker.wait()
            plant(dsn)
            server.wait_until_ready()
            yield Shop(f"http://localhost:{server.port}/", app, dsn, server)


def one_of_each(found: list[str]) -> list[str]:
    """Of the many jobs one of each table is enough: those that were told first."""
    jobs = [each for each in found if re.fullmatch(r"jobs/\d+", each)]
    return [each for each in found if each not in jobs and "99999" not in each] + jobs[:1] + jobs[-1:]


def test_no_page_runs_what_stands_in_a_column(planted: Shop, browser: Browser) -> None:
    context = browser.new_context()
    context.add_init_script(TELL)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    shown = 0

    for address in one_of_each(addresses(planted.dsn)):
        page.goto(planted.url + address)
        expect(page.locator("main h1")).to_be_visible()
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        if page.locator("body[data-live]").count():
            with page.expect_response(lambda answer: "_fragment=" in answer.url):  # they, too, are put into the page
                page.keyboard.press("r")
        assert page.evaluate("window.zq") is None, address
        assert page.locator(f"{MARK}, [on{MARK}]").count() == 0, address
        shown += MARK in page.locator("main").inner_text()

    assert said == []
    assert shown >= len(PAGES) - 2  # the doctor and the database tell of nothing that someone wrote
    context.close()
