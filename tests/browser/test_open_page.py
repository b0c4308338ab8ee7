"""A page that is open: it changes in place, rests when told to or unseen, and does without streams and without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.conftest import Shop
from tests.browser.proxy import proxied
from tests.browser.test_each_page import grave_faults

pytestmark = pytest.mark.one_server

Tab = Callable[..., Page]


def receipt_later(shop: Shop) -> int:
    return shop.enqueue("send_receipt", '{"order": 8, "to": "bob"}', "mail", later="1h")


def dead_one(shop: Shop) -> int:
    dead = shop.enqueue("charge", '{"order": 7, "amount": 4000}', "payments")
    assert shop.ended(dead) == "dead"
    return dead


def asked_for(page: Page) -> list[str]:
    """What the page asks for from now on, as it does."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    return asked


def test_a_page_changes_in_place_and_keeps_what_one_types(shop: Shop, tab: Tab) -> None:
    dead = dead_one(shop)
    page = tab()
    page.goto(f"{shop.url}jobs?queue=mail")
    page.get_by_label("Task").type("se")

    job = receipt_later(shop)
    expect(page.locator(f"[data-key=job-{job}]")).to_be_visible()

    expect(page.get_by_label("Task")).to_be_focused()
    expect(page.get_by_label("Task")).to_have_value("se")
    page.goto(f"{shop.url}jobs/{dead}")
    expect(page.get_by_text("CardDeclined: order 7: the bank declined 4000 <b>EUR</b>").first).to_be_visible()
    assert grave_faults(page) == []


@pytest.mark.long
def test_a_form_within_a_region_that_changes_stays_open_with_what_is_typed(shop: Shop, tab: Tab) -> None:
    page = tab()
    page.goto(f"{shop.url}queues")
    row = page.locator("[data-key=queue-mail]")
    row.locator("summary", has_text="Pause").click()
    row.get_by_label("Reason").type("provider")
    before = int(row.locator("td").nth(3).inner_text())

    receipt_later(shop)
    expect(row.locator("td").nth(3)).to_have_text(str(before + 1))
    row.get_by_label("Reason").type(" outage")

    expect(row.get_by_label("Reason")).to_be_focused()
    expect(row.get_by_label("Reason")).to_have_value("provider outage")


@pytest.mark.long
def test_a_paused_page_stays_as_it_is_until_it_is_resumed(shop: Shop, tab: Tab) -> None:
    page = tab()
    page.goto(f"{shop.url}jobs")
    expect(page.locator("html")).to_have_attribute("data-live", "stream")

    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Resume")).to_have_attribute("aria-pressed", "true")
    asked = asked_for(page)
    job = receipt_later(shop)
    # another page of the same dashboard shows it by now, so this one could as well
    other = tab()
    other.goto(f"{shop.url}jobs")
    expect(other.locator(f"[data-key=job-{job}]")).to_be_visible()
    page.wait_for_timeout(2500)

    assert asked == []
    expect(page.locator(f"[data-key=job-{job}]")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.locator(f"[data-key=job-{job}]")).to_be_visible()
    later = receipt_later(shop)
    page.keyboard.press("p")
    expect(page.locator(f"[data-key=job-{later}]")).to_be_visible()


@pytest.mark.long
def test_a_page_that_nobody_sees_asks_nothing(shop: Shop, tab: Tab) -> None:
    page = tab()
    page.goto(f"{shop.url}jobs")
    expect(page.locator("html")).to_have_attribute("data-live", "stream")
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, value: %s});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"

    page.evaluate(hide % "true" + tell)
    asked = asked_for(page)
    job = receipt_later(shop)
    other = tab()
    other.goto(f"{shop.url}jobs")
    expect(other.locator(f"[data-key=job-{job}]")).to_be_visible()
    page.wait_for_timeout(2500)
    unseen = list(asked)
    page.evaluate(hide % "false" + tell)

    expect(page.locator(f"[data-key=job-{job}]")).to_be_visible()
    assert unseen == []


@pytest.mark.long
@pytest.mark.parametrize("streams", ["held", "refused"])
def test_where_a_proxy_has_no_streams_a_page_asks_every_few_seconds(
    streams: str, shop_with_credentials: Shop, browser: Browser
) -> None:
    shop = shop_with_credentials
    with proxied(shop.server.port, streams=streams) as url:
        context = browser.new_context(http_credentials={"username": "ana", "password": "a-long-password"})
        page = context.new_page()
        page.goto(f"{url}jobs")
        expect(page.locator("html")).to_have_attribute("data-live", "poll", timeout=30_000)

        job = receipt_later(shop)

        expect(page.locator(f"[data-key=job-{job}]")).to_be_visible(timeout=30_000)
        context.close()


@pytest.mark.long
def test_theme_and_time_are_as_they_were_chosen(shop: Shop, tab: Tab) -> None:
    receipt_later(shop)
    page = tab(color_scheme="light", timezone_id="Asia/Kolkata")
    page.goto(f"{shop.url}jobs")
    first = page.locator("tbody time").first
    expect(first).to_contain_text("ago")
    expect(first).to_have_attribute("title", re.compile("UTC$"))

    page.get_by_role("button", name="Light theme").click()
    page.get_by_role("button", name="Times are as time ago").click()
    expect(first).to_contain_text("UTC")
    page.get_by_role("button", name="Times are in UTC").click()
    page.reload()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(first).to_contain_text("GMT+5:30")


@pytest.mark.long
def test_keys_search_go_walk_and_help(shop: Shop, tab: Tab) -> None:
    receipt_later(shop)
    page = tab()
    page.goto(f"{shop.url}jobs")

    page.keyboard.press("j")
    expect(page.locator("tr.chosen")).to_have_count(1)
    page.keyboard.press("/")
    expect(page.get_by_label("State")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert grave_faults(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page).to_have_url(f"{shop.url}queues")


@pytest.mark.long
def test_who_has_only_keys_comes_past_the_menu_and_opens_a_job(shop: Shop, tab: Tab) -> None:
    job = receipt_later(shop)
    page = tab()
    page.goto(f"{shop.url}jobs")
    expect(page.locator(f"[data-key=job-{job}]")).to_be_visible()

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("State")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator(f"[data-key=job-{job}]")).to_have_class("chosen")
    page.keyboard.press("Enter")

    expect(page).to_have_url(f"{shop.url}jobs/{job}")


@pytest.mark.long
def test_code_is_copied(shop: Shop, tab: Tab) -> None:
    page = tab(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{shop.url}jobs?task=nothing")

    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()

    assert "send_welcome.enqueue(7)" in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.long
def test_without_scripts_links_filters_and_forms_work_all_the_same(shop: Shop, tab: Tab) -> None:
    dead = dead_one(shop)
    page = tab(java_script_enabled=False)
    page.goto(f"{shop.url}dead")

    page.get_by_label("Task").fill("charge")
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(f"{shop.url}dead?error=&task=charge&queue=&tag=&reason=&which=")
    page.get_by_role("link", name=str(dead), exact=True).click()
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    page.get_by_role("button", name="Try again").first.click()

    expect(page.get_by_role("status").filter(has_text="is tried again")).to_be_visible()
    assert shop.app.dead.get_sync(dead).resolution == "retried"
