"""The dashboard as people meet it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from tests.browser.conftest import Shop

from rota.dashboard.pages import PAGES

pytestmark = pytest.mark.one_server

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def some_jobs(shop: Shop) -> int:
    """One that succeeded, and a dead one, whose id it returns."""
    dead = shop.enqueue("charge", '{"order": 7, "amount": 4000}', "payments")
    assert shop.ended(shop.enqueue("send_receipt", '{"order": 7, "to": "ana"}', "mail")) == "succeeded"
    assert shop.ended(dead) == "dead"
    return dead


def paths(job: int) -> list[str]:
    """Every page there is."""
    named = {
        "/jobs/{id:int}": f"jobs/{job}",
        "/schedule": "schedule?name=tidy_carts",
        "/projection": "projection?name=stock",
    }
    return [named.get(page.path, page.path.lstrip("/")) for page in PAGES]


def grave_faults(page: Page) -> list[str]:
    """What someone who cannot see, or not well, could not use."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {[node['html'][:200] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def test_a_page_changes_in_place_and_keeps_what_one_types(shop: Shop, tab: Callable[..., Page]) -> None:
    dead = some_jobs(shop)
    page = tab(viewport=DESKTOP)
    page.goto(f"{shop.url}jobs?queue=mail")
    page.get_by_label("Task").type("se")

    job = shop.enqueue("send_receipt", '{"order": 8, "to": "bob"}', "mail", later="1h")
    expect(page.locator(f"[data-key=job-{job}]")).to_be_visible()

    expect(page.get_by_label("Task")).to_be_focused()
    expect(page.get_by_label("Task")).to_have_value("se")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()

    page.goto(f"{shop.url}jobs/{dead}")
    expect(page.get_by_text("CardDeclined: order 7: the bank declined 4000 <b>EUR</b>").first).to_be_visible()
    page.get_by_role("button", name="Try again").first.click()
    expect(page.get_by_role("status").filter(has_text="is tried again")).to_be_visible()
    assert shop.app.dead.get_sync(dead).resolution == "retried"
    assert grave_faults(page) == []


@pytest.mark.long
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_fit_for_everyone(
    theme: Any,
    viewport: Any,
    shop: Shop,
    tab: Callable[..., Page],
) -> None:
    dead = some_jobs(shop)
    page = tab(viewport=viewport, color_scheme=theme)

    for each in paths(dead):
        page.goto(shop.url + each)
        expect(page.locator("main h1")).to_be_visible()
        assert grave_faults(page) == [], each
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], each
        assert re.search(r"cannot be read now", page.content()) is None, each
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(22, 24, 26)" if theme == "dark" else "rgb(251, 251, 250)")


@pytest.mark.long
def test_theme_zone_and_keys_do_as_they_are_told(shop: Shop, tab: Callable[..., Page]) -> None:
    some_jobs(shop)
    page = tab(viewport=DESKTOP, color_scheme="light", timezone_id="Asia/Kolkata")
    page.goto(f"{shop.url}jobs")

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
    expect(page).to_have_url(f"{shop.url}queues")


@pytest.mark.long
def test_without_scripts_pages_and_forms_work_all_the_same(shop: Shop, tab: Callable[..., Page]) -> None:
    dead = some_jobs(shop)
    page = tab(viewport=DESKTOP, java_script_enabled=False)
    page.goto(f"{shop.url}dead")

    page.get_by_role("link", name=str(dead), exact=True).click()
    page.get_by_role("button", name="Try again").first.click()

    expect(page.get_by_role("status").filter(has_text="is tried again")).to_be_visible()
