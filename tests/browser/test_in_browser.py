"""The dashboard as people meet it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from tests.browser.conftest import ALONE, MOUNTED, Site

from rota.dashboard.pages import PAGES
from rota.testing import until_sync

pytestmark = pytest.mark.one_server

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def some_jobs(site: Site) -> int:
    """A dead one, and one that succeeded; returns the id of the first."""
    dead = site.app.jobs  # through SQL, as the tasks are in the other process
    with site.app.database.transaction_sync() as connection:
        ids = [
            connection.execute("select rota.enqueue(%s, %s)", [task, args]).fetchall()[0][0]
            for task, args in (("fail", '{"number": 7}'), ("send", '{"to": "ana"}'))
        ]
    until_sync(lambda: all(dead.get_sync(id).finished_at for id in ids), 30, "both have ended")
    return int(ids[0])


def enqueue(site: Site, to: str) -> int:
    with site.app.database.transaction_sync() as connection:
        found = connection.execute(
            "select rota.enqueue('send', jsonb_build_object('to', %s::text), 'mail', 0, now() + interval '1h')", [to]
        ).fetchall()
    return int(found[0][0])


def paths(job: int) -> list[str]:
    """Every page there is."""
    named = {"/jobs/{id:int}": f"jobs/{job}", "/schedule": "schedule?name=tidy"}
    return [named.get(page.path, page.path.lstrip("/")) for page in PAGES]


def grave_faults(page: Page) -> list[str]:
    """What someone who cannot see, or not well, could not use."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {[node['html'][:200] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def test_a_page_changes_in_place_and_keeps_what_one_types(site: Callable[..., Site], tab: Callable[..., Page]) -> None:
    shown = site(*ALONE)
    dead = some_jobs(shown)
    page = tab(viewport=DESKTOP)
    page.goto(f"{shown.url}jobs?queue=mail")
    page.get_by_label("Task").type("se")

    job = enqueue(shown, "bob")
    expect(page.locator(f"[data-key=job-{job}]")).to_be_visible()

    expect(page.get_by_label("Task")).to_be_focused()
    expect(page.get_by_label("Task")).to_have_value("se")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()

    page.goto(f"{shown.url}jobs/{dead}")
    expect(page.get_by_text("ValueError: cannot do 7 <b>at all</b>").first).to_be_visible()
    page.get_by_role("button", name="Try again").first.click()
    expect(page.get_by_role("status").filter(has_text="is tried again")).to_be_visible()
    assert shown.app.dead.get_sync(dead).resolution == "retried"
    assert grave_faults(page) == []


@pytest.mark.long
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("command", "path"), [(ALONE, "/"), (MOUNTED, "/tools/rota/")], ids=["alone", "mounted"])
def test_every_page_is_fit_for_everyone(
    command: tuple[str, ...],
    path: str,
    theme: Any,
    viewport: Any,
    site: Callable[..., Site],
    tab: Callable[..., Page],
) -> None:
    shown = site(*command, path=path)
    dead = some_jobs(shown)
    page = tab(viewport=viewport, color_scheme=theme)

    for each in paths(dead):
        page.goto(shown.url + each)
        expect(page.locator("main h1")).to_be_visible()
        assert grave_faults(page) == [], each
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], each
        assert re.search(r"cannot be read now", page.content()) is None, each
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(22, 24, 26)" if theme == "dark" else "rgb(251, 251, 250)")


@pytest.mark.long
def test_theme_zone_and_keys_do_as_they_are_told(site: Callable[..., Site], tab: Callable[..., Page]) -> None:
    shown = site(*MOUNTED, path="/tools/rota/")
    some_jobs(shown)
    page = tab(viewport=DESKTOP, color_scheme="light", timezone_id="Asia/Kolkata")
    page.goto(f"{shown.url}jobs")

    page.get_by_role("button", name="Light theme").click()
    page.get_by_role("button", name="Times are in UTC").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("tbody time").first).to_contain_text("GMT+5:30")
    page.keyboard.press("j")
    expect(page.locator("tr.chosen")).to_have_count(1)
    page.keyboard.press("/")
    expect(page.get_by_label("State")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page).to_have_url(f"{shown.url}queues")


@pytest.mark.long
def test_a_queue_is_paused_by_hand_while_a_form_is_open(site: Callable[..., Site], tab: Callable[..., Page]) -> None:
    shown = site(*ALONE)
    some_jobs(shown)
    page = tab(viewport=DESKTOP)
    page.goto(f"{shown.url}queues")
    row = page.locator("[data-key=queue-mail]")
    row.locator("summary", has_text="Pause").click()
    row.get_by_label("Reason").type("provider")

    enqueue(shown, "eve")
    expect(row.locator("td").nth(3)).to_have_text("1")
    row.get_by_label("Reason").type(" outage")
    row.locator("button", has_text="Pause").click()

    expect(page.get_by_role("status").filter(has_text="no job begins any more")).to_be_visible()
    assert shown.app.queues.get_sync("mail").pause_reason == "provider outage"


@pytest.mark.long
def test_without_scripts_pages_and_forms_work_all_the_same(site: Callable[..., Site], tab: Callable[..., Page]) -> None:
    shown = site(*ALONE)
    dead = some_jobs(shown)
    page = tab(viewport=DESKTOP, java_script_enabled=False)
    page.goto(f"{shown.url}dead")

    page.get_by_role("link", name=str(dead), exact=True).click()
    page.get_by_role("button", name="Try again").first.click()

    expect(page.get_by_role("status").filter(has_text="is tried again")).to_be_visible()
