"""Many jobs are changed in a browser: selected, seen first, meant, watched, stopped and undone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.conftest import Shop
from tests.browser.pressing import Press, presses
from tests.browser.test_each_page import grave_faults

pytestmark = [pytest.mark.one_server, pytest.mark.long]

Tab = Callable[..., Page]
START = "bulk.start"


def waiting(shop: Shop, count: int, queue: str) -> list[int]:
    """Jobs of this queue that wait for an hour."""
    return [shop.enqueue("send_receipt", f'{{"order": {n}, "to": "ana"}}', queue, later="1h") for n in range(count)]


def button(within: Page | Locator, name: str) -> Locator:
    return within.get_by_role("button", name=name, exact=True)


def states(shop: Shop, jobs: list[int]) -> set[str]:
    return {shop.app.jobs.get_sync(job).state for job in jobs}


def ended(page: Page, state: str = "finished") -> None:
    """The page shows by itself that a worker is done."""
    expect(page.locator(f".badge.is-{state}")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "100.0")


@presses("bulk.cancel", "bulk.undo")
def test_some_are_selected_cancelled_watched_and_put_back(shop: Shop, tab: Tab, press: Press) -> None:
    jobs = waiting(shop, 5, "selected")
    page = tab()
    page.goto(f"{shop.url}jobs?queue=selected")
    selected = page.locator("#selected")

    expect(button(selected, "Cancel…")).to_be_disabled()
    page.get_by_label(f"Select job {jobs[4]}").click()
    page.get_by_label(f"Select job {jobs[2]}").click(modifiers=["Shift"])
    expect(selected.locator("output")).to_have_text("(3)")
    page.get_by_label("Select all on this page").click()
    expect(selected.locator("output")).to_have_text("(5)")
    page.get_by_label(f"Select job {jobs[0]}").click()
    button(selected, "Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel: 4 jobs")).to_be_visible()
    assert states(shop, jobs) == {"queued"}
    assert grave_faults(page) == []
    page.get_by_label("Reason").fill("sent twice")
    page.get_by_label(re.compile("Type cancel")).fill("cancel")
    begun = press(button(page, "Cancel 4"), "bulk.cancel", on_record=START)
    ended(page)
    expect(page.get_by_text("4 of 4 cancelled")).to_be_visible()
    assert grave_faults(page) == []
    cancelled = [shop.app.jobs.get_sync(job) for job in jobs]
    press(button(page, "Undo it"), "bulk.undo", on_record="bulk.undo")
    ended(page, "undone")

    assert begun.details["jobs"] == 4
    assert [job.state for job in cancelled] == ["queued"] + ["cancelled"] * 4
    assert {job.reason for job in cancelled[1:]} == {"sent twice"}
    expect(page.get_by_text("4, and 0 stay")).to_be_visible()
    assert states(shop, jobs) == {"queued"}


@presses("bulk.move", "bulk.prioritise", "bulk.put_off")
def test_all_that_fit_are_moved_prioritised_and_put_off(shop: Shop, tab: Tab, press: Press) -> None:
    jobs = waiting(shop, 3, "filtered")
    page = tab()

    def all_that_fit(queue: str, label: str) -> None:
        page.goto(f"{shop.url}jobs?queue={queue}")
        button(page.locator("form", has_text="All that fit:"), f"{label}…").click()
        expect(page.get_by_role("heading", name=f"{label}: 3 jobs")).to_be_visible()

    all_that_fit("filtered", "Move")
    page.get_by_label("To queue").fill("aside")
    press(button(page, "Move 3"), "bulk.move", on_record=START)
    ended(page)
    all_that_fit("aside", "Prioritise")
    page.get_by_label(re.compile("^Priority")).fill("7")
    press(button(page, "Prioritise 3"), "bulk.prioritise", on_record=START)
    ended(page)
    all_that_fit("aside", "Put off")
    page.get_by_label(re.compile("^By how long")).fill("9h")
    press(button(page, "Put off 3"), "bulk.put_off", on_record=START)
    ended(page)

    now = [shop.app.jobs.get_sync(job) for job in jobs]
    assert {(job.queue, job.priority) for job in now} == {("aside", 7)}
    assert all((job.due_at - job.created_at).total_seconds() > 8 * 3600 for job in now)


@presses("bulk.acknowledge", "bulk.retry", "bulk.discard")
def test_dead_letters_are_tried_again_put_away_and_discarded(shop: Shop, tab: Tab, press: Press) -> None:
    jobs = [shop.enqueue("charge", f'{{"order": {n}, "amount": 4000}}', "bulky") for n in range(3)]
    assert {shop.ended(job) for job in jobs} == {"dead"}
    page = tab()

    def select(job: int, label: str, path: str = "dead?queue=bulky") -> None:
        page.goto(f"{shop.url}{path}")
        page.get_by_label(f"Select job {job}").click()
        button(page.locator("#selected"), f"{label}…").click()
        expect(page.get_by_role("heading", name=f"{label}: 1 job")).to_be_visible()

    select(jobs[0], "Try again, or run now")
    press(button(page, "Try again, or run now 1"), "bulk.retry", on_record=START)
    ended(page)
    select(jobs[1], "Put away")
    page.get_by_label("Reason").fill("paid in cash")
    press(button(page, "Put away 1"), "bulk.acknowledge", on_record=START)
    ended(page)
    select(jobs[2], "Discard", "jobs?queue=bulky&state=dead")
    page.get_by_label(re.compile("Type discard")).fill("discard")
    press(button(page, "Discard 1"), "bulk.discard", on_record=START)
    ended(page)

    assert [shop.app.dead.get_sync(job).resolution for job in jobs[:2]] == ["retried", "acknowledged"]
    assert shop.app.jobs.get_sync(jobs[2]).state == "cancelled"


@presses("bulk.move", "bulk.stop")
def test_one_that_is_paced_moves_its_bar_and_is_stopped(shop: Shop, tab: Tab, press: Press) -> None:
    jobs = waiting(shop, 60, "paced")
    page = tab()
    page.goto(f"{shop.url}bulk/new?do=move&queue=paced")

    page.get_by_label("To queue").fill("elsewhere")
    page.get_by_label("No more than so many a second").fill("2")
    press(button(page, "Move 60"), "bulk.move", on_record=START)
    bar = page.get_by_role("progressbar")
    expect(bar).not_to_have_attribute("value", "0.0")
    first = float(bar.get_attribute("value") or 0)
    expect(bar).not_to_have_attribute("value", str(first))
    press(button(page, "Stop it"), "bulk.stop", on_record="bulk.stop")
    expect(page.locator(".badge.is-stopped")).to_be_visible()

    moved = [job for job in jobs if shop.app.jobs.get_sync(job).queue == "elsewhere"]
    assert 0 < len(moved) < 60
    assert shop.app.bulk.list_sync(open=True) == []


def test_it_works_without_scripts_and_on_a_phone(shop: Shop, tab: Tab, browser: Browser) -> None:
    jobs = waiting(shop, 3, "plain")
    page = tab(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page.goto(f"{shop.url}jobs?queue=plain")

    page.get_by_label(f"Select job {jobs[1]}").check()
    button(page.locator("#selected"), "Cancel…").click()
    page.get_by_label("Type cancel to do it").fill("cancel")
    button(page, "Cancel 1").click()
    expect(page.get_by_role("heading", name=re.compile("^Bulk [0-9]+$"))).to_be_visible()
    shop.until(lambda: shop.app.jobs.get_sync(jobs[1]).state == "cancelled", "a worker has done it")
    # a page shows for a moment what it knew
    shop.until(lambda: page.reload() and page.get_by_text("1 of 1 cancelled").count(), "the page shows it")
    page.goto(f"{shop.url}bulk")

    expect(page.locator(".badge.is-finished").first).to_be_visible()
    assert states(shop, [jobs[0], jobs[2]]) == {"queued"}
