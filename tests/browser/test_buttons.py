"""Every button of every page, pressed in a browser: a real worker, or the database, does what it says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.conftest import Shop
from tests.browser.pressing import SOMEONE, Press, presses

pytestmark = [pytest.mark.one_server, pytest.mark.long]

Tab = Callable[..., Page]


def row(page: Page, key: str) -> Locator:
    return page.locator(f'[data-key="{key}"]')


def button(within: Page | Locator, name: str) -> Locator:
    return within.get_by_role("button", name=name, exact=True)


def unfolded(within: Page | Locator, summary: str) -> Locator:
    """What is behind this word."""
    word = within.locator(f"details.more > summary:text-is('{summary}')")
    word.click()
    return word.locator("xpath=..")


@presses("jobs.retry", "dead.retry", "dead.acknowledge")
def test_a_dead_job_is_tried_again_as_it_is_and_with_other_arguments_and_put_away(
    shop: Shop, tab: Tab, press: Press
) -> None:
    first, second, third = (shop.enqueue("charge", f'{{"order": {n}, "amount": 4000}}', "payments") for n in range(3))
    assert [shop.ended(job) for job in (first, second, third)] == ["dead"] * 3
    page = tab()

    page.goto(f"{shop.url}jobs/{first}")
    again = press(button(page, "Try again").first, "jobs.retry", on_record="retry")
    page.goto(f"{shop.url}jobs/{second}")
    form = unfolded(page, "Try with other arguments")
    form.get_by_label("Arguments to replace").fill('{"amount": 10}')
    edited = press(button(form, "Try again"), "dead.retry", on_record="retry")
    page.goto(f"{shop.url}jobs/{third}")
    form = unfolded(page, "Put away")
    form.get_by_label("Note").fill("the customer paid in cash")
    press(button(form, "Put away"), "dead.acknowledge", on_record="acknowledge")

    assert shop.ended(again.details["successor"]) == "dead"
    assert shop.ended(edited.details["successor"]) == "succeeded"
    assert shop.app.jobs.get_sync(edited.details["successor"]).result == "charged 10"
    letters = [shop.app.dead.get_sync(job) for job in (first, second, third)]
    assert [(letter.resolution, letter.resolved_by) for letter in letters] == [
        ("retried", SOMEONE),
        ("retried", SOMEONE),
        ("acknowledged", SOMEONE),
    ]
    assert letters[2].note == "the customer paid in cash"


@presses("jobs.retry", "jobs.cancel", "jobs.discard")
def test_a_job_that_waits_is_run_or_cancelled_and_one_that_runs_is_told_to_end_or_discarded(
    shop: Shop, tab: Tab, press: Press
) -> None:
    early, unwanted = (shop.enqueue("send_receipt", '{"order": 1, "to": "ana"}', "mail", later="1h") for _ in range(2))
    packed = shop.running(shop.enqueue("pack", '{"order": 1}', "warehouse"))
    deaf = shop.running(shop.enqueue("weigh", '{"seconds": 20}', "warehouse"))
    page = tab()

    page.goto(f"{shop.url}jobs/{early}")
    press(button(page, "Run now"), "jobs.retry", on_record="retry")
    for job in (unwanted, packed, deaf):
        page.goto(f"{shop.url}jobs/{job}")
        form = unfolded(page, "Cancel")
        form.get_by_label("Reason").fill("sent twice")
        press(button(form, "Cancel it"), "jobs.cancel", on_record="cancel")
    press(button(page, "Discard"), "jobs.discard", on_record="discard")

    assert shop.ended(early) == "succeeded"
    assert [shop.ended(job) for job in (unwanted, packed, deaf)] == ["cancelled"] * 3
    assert shop.app.jobs.get_sync(unwanted).reason == "sent twice"


@presses("queues.pause", "queues.resume", "queues.limit", "queues.weigh", "queues.relax", "queues.tighten")
def test_a_queue_is_paused_limited_weighed_and_relaxed_and_goes_on(shop: Shop, tab: Tab, press: Press) -> None:
    page = tab()
    page.goto(f"{shop.url}queues")
    mail = row(page, "queue-mail")

    form = unfolded(mail, "Pause")
    form.get_by_label("Reason").fill("provider outage")
    form.get_by_label("For").fill("30m")
    press(button(form, "Pause"), "queues.pause", on_record="queue.pause")
    held = shop.enqueue("send_receipt", '{"order": 2, "to": "eve"}', "mail")
    form = unfolded(mail, "Limit")
    form.get_by_label("At once").fill("3")
    form.get_by_label("In a period").fill("100/1m")
    press(button(form, "Limit"), "queues.limit", on_record="queue.limit")
    form = unfolded(mail, "Weigh")
    form.get_by_label("Weight").fill("2.5")
    press(button(form, "Weigh"), "queues.weigh", on_record="queue.weigh")
    press(button(unfolded(mail, "Relax"), "Relax"), "queues.relax", on_record="queue.relax")
    relaxed = shop.app.queues.get_sync("mail").relaxed
    press(button(mail, "Tighten"), "queues.tighten", on_record="queue.tighten")
    told = shop.app.queues.get_sync("mail")
    waits = shop.app.jobs.get_sync(held).state
    press(button(mail, "Resume"), "queues.resume", on_record="queue.resume")

    assert (told.pause_reason, told.paused_by, told.running_limit, told.rate, told.weight) == (
        "provider outage",
        SOMEONE,
        3,
        "100/1m",
        2.5,
    )
    assert told.paused_until is not None
    assert (relaxed, told.relaxed) == (True, False)
    assert waits == "queued"
    assert shop.ended(held) == "succeeded"

    form = unfolded(mail, "Limit")
    form.get_by_label("At once").fill("")
    form.get_by_label("In a period").fill("")
    press(button(form, "Limit"), "queues.limit", on_record="queue.limit")
    form = unfolded(page, "Pause all queues")
    form.get_by_label("Reason").fill("stocktaking")
    press(button(form, "Pause all"), "queues.pause", on_record="queue.pause")
    everything, held = shop.app.queues.get_sync(None), shop.enqueue("send_receipt", '{"order": 3, "to": "eve"}', "mail")
    press(button(page, "End the pause of all"), "queues.resume", on_record="queue.resume")

    told = shop.app.queues.get_sync("mail")
    assert (told.running_limit, told.rate) == (None, None)
    assert everything.pause_reason == "stocktaking"
    assert shop.ended(held) == "succeeded"


@presses(
    "dead.retry",
    "dead.acknowledge",
    "dead.retry_group",
    "dead.acknowledge_group",
    "dead.retry_many",
    "dead.acknowledge_many",
)
def test_dead_letters_are_decided_about_one_by_one_by_group_and_by_filter(shop: Shop, tab: Tab, press: Press) -> None:
    def letters(**filters: Any) -> int:
        return shop.app.dead.acknowledge_many_sync(dry_run=True, task="charge", **filters)

    shop.app.dead.acknowledge_many_sync("of other tests")
    jobs = [shop.enqueue("charge", f'{{"order": {n}, "amount": 5000}}', "payments") for n in range(12)]
    assert {shop.ended(job) for job in jobs} == {"dead"}
    page = tab()

    page.goto(f"{shop.url}dead")
    group = page.locator("[data-key^=group-]").filter(has_text="CardDeclined")
    canaries = press(button(group, "Try 10 as canaries"), "dead.retry_group", on_record="retry")
    shop.until(lambda: letters() == 12, "the canaries have died as well")
    everyone = press(button(group, "Try all again"), "dead.retry_group", on_record="retry")
    shop.until(lambda: letters() == 12, "all have died again")
    page.goto(f"{shop.url}dead")
    expect(page.locator("[data-key^=letter-]")).to_have_count(12)
    one, other = (each.get_attribute("data-key") or "" for each in page.locator("[data-key^=letter-]").all()[:2])
    press(button(row(page, one), "Try again"), "dead.retry", on_record="retry")
    form = unfolded(row(page, other), "Put away")
    form.get_by_label("Note").fill("paid in cash")
    press(button(form, "Put away"), "dead.acknowledge", on_record="acknowledge")
    shop.until(lambda: letters() == 11, "the one has died again")

    page.goto(f"{shop.url}dead?task=charge")
    many = press(button(page, "Try 11 again"), "dead.retry_many", on_record="retry")
    shop.until(lambda: letters() == 11, "they have died again")
    page.goto(f"{shop.url}dead?task=charge")
    form = unfolded(page, "Put 11 away")
    form.get_by_label("Note").fill("the bank is closed")
    press(button(form, "Put away"), "dead.acknowledge_many", on_record="acknowledge")
    assert letters() == 0
    last = shop.enqueue("charge", '{"order": 99, "amount": 9999}', "payments")
    shop.ended(last)
    page.goto(f"{shop.url}dead")
    form = unfolded(group, "Put away")
    press(button(form, "Put away"), "dead.acknowledge_group", on_record="acknowledge")

    assert (canaries.details["letters"], everyone.details["letters"], many.details["letters"]) == (10, 12, 11)
    assert shop.app.dead.get_sync(int(other.removeprefix("letter-"))).note == "paid in cash"
    assert shop.app.dead.get_sync(last).resolved_by == SOMEONE


@presses(
    "schedules.pause",
    "schedules.resume",
    "schedules.trigger",
    "schedules.skip",
    "schedules.backfill",
    "schedules.clear",
)
def test_a_schedule_is_run_held_skipped_backfilled_and_cleared(shop: Shop, tab: Tab, press: Press) -> None:
    shop.app.schedules.put_sync(
        "stocktaking", task="pack", args={"order": 0}, queue="warehouse", cron="0 2 * * *", overlap="queue"
    )
    page = tab()
    page.goto(f"{shop.url}schedule?name=stocktaking")

    def schedule() -> Any:
        return shop.app.schedules.get_sync("stocktaking")

    press(button(page, "Pause").last, "schedules.pause", on_record="schedule.pause")
    paused = schedule().state
    press(button(page, "Resume").last, "schedules.resume", on_record="schedule.resume")
    resumed, next_at = schedule().state, schedule().next_at
    press(button(page, "Skip the next"), "schedules.skip", on_record="schedule.skip")
    skipped = schedule().next_at
    run = press(button(page, "Run now"), "schedules.trigger", on_record="schedule.trigger")
    shop.running(run.details["job"])
    form = unfolded(page, "Backfill")
    today = datetime.now(UTC)
    form.get_by_label("From").fill((today - timedelta(days=5)).isoformat())
    form.get_by_label("To before").fill((today - timedelta(days=1)).isoformat())
    button(form, "Preview").click()
    expect(page.get_by_role("status").filter(has_text="4 slot(s) of this time have not run")).to_be_visible()
    press(button(page, "Do it"), "schedules.backfill", on_record="schedule.backfill")
    shop.until(lambda: schedule().waiting, "runs wait for the one that runs")
    forget = page.get_by_role("button", name="that wait")
    expect(forget).to_be_visible()
    press(forget, "schedules.clear", on_record="schedule.clear")
    shop.app.jobs.cancel_sync(run.details["job"], "seen enough")

    assert (paused, resumed) == ("paused", "active")
    assert skipped > next_at
    assert schedule().waiting == 0
    assert shop.ended(run.details["job"]) == "cancelled"


@presses("schedules.delete")
def test_a_schedule_is_deleted(shop: Shop, tab: Tab, press: Press) -> None:
    shop.app.schedules.put_sync("spring sale", task="tidy_carts", cron="0 2 1 3 *")
    page = tab()
    page.goto(f"{shop.url}schedule?name=spring+sale")

    button(page, "Delete").click()
    page.get_by_label("Type spring sale to do it").fill("spring sale")
    press(button(page, "Do it"), "schedules.delete", on_record="schedule.delete")

    expect(page).to_have_url(f"{shop.url}schedules")
    assert shop.app.schedules.list_sync(prefix="spring sale") == []


@presses("leaders.resign")
def test_a_leader_steps_down_and_the_next_term_begins(shop: Shop, tab: Tab, press: Press) -> None:
    def leader() -> Any:
        return next(each for each in shop.app.leaders.list_sync() if each.name == "stock-indexer")

    shop.until(lambda: leader().holder, "someone leads")
    before = leader().epoch
    page = tab()
    page.goto(f"{shop.url}members")

    press(button(row(page, "leader-stock-indexer"), "Have it step down"), "leaders.resign", on_record="resign")

    shop.until(lambda: leader().holder and leader().epoch > before, "the next term has begun")
    ended = next(term for term in shop.app.leaders.terms_sync("stock-indexer") if term.epoch == before)
    assert ended.end_reason == "resigned"


@presses("pollers.pause", "pollers.resume", "pollers.release")
def test_a_poller_is_held_and_goes_on_and_its_parked_rows_are_released(shop: Shop, tab: Tab, press: Press) -> None:
    def poller() -> Any:
        return shop.app.pollers.list_sync()[0]

    shop.sql("insert into public.suppliers values (1, false), (2, false), (3, false)")
    shop.until(lambda: poller().parked == 3, "all are parked")
    page = tab()
    page.goto(f"{shop.url}pollers")
    suppliers = row(page, "poller-suppliers")

    press(button(suppliers, "Pause"), "pollers.pause", on_record="poller.pause")
    paused = poller().paused_by
    shop.sql("update public.suppliers set answers = true")
    one = press(
        button(page.get_by_role("row").filter(has_text="[2]"), "Release"), "pollers.release", on_record="poller.release"
    )
    rest = press(button(suppliers, "Release 2 parked"), "pollers.release", on_record="poller.release")
    press(button(suppliers, "Resume"), "pollers.resume", on_record="poller.resume")

    assert paused == SOMEONE
    assert (one.details["rows"], rest.details["rows"]) == (1, 2)
    assert poller().paused_at is None
    shop.until(
        lambda: shop.sql("select count(*) from public.suppliers where asked_at is not null")[0][0] == 3,
        "all have been asked",
    )


@presses("projections.pause", "projections.resume", "projections.skip", "projections.replay", "projections.drop")
def test_a_projection_is_held_and_goes_on_and_what_it_cannot_take_in_is_decided_about(
    shop: Shop, tab: Tab, press: Press
) -> None:
    def view(name: str) -> Any:
        return next((each for each in shop.app.projections.list_sync() if each.name == name), None)

    orders = shop.app.event_log("orders")
    orders.append_sync("order-1", "Paid", {"total": 3})
    orders.append_sync("order-2", "Paid", {"sum": 7})
    shop.until(lambda: view("revenue") and view("revenue").state == "stopped", "the first has stopped")
    shop.until(lambda: view("newsletter") and view("newsletter").parked == 2, "the other has parked both")
    page = tab()
    page.goto(f"{shop.url}projections")
    revenue, newsletter = row(page, "projection-revenue-1"), row(page, "projection-newsletter-1")

    press(button(revenue, "Skip the event"), "projections.skip", on_record="projection.skip")
    resume = button(revenue, "Resume")
    if resume.count():
        press(resume, "projections.resume", on_record="projection.resume")
    shop.until(lambda: shop.sql("select sum from public.revenue") == [(7,)], "it goes on behind it")
    press(button(revenue, "Pause"), "projections.pause", on_record="projection.pause")
    paused = view("revenue")
    press(button(revenue, "Resume"), "projections.resume", on_record="projection.resume")
    shop.sql("insert into public.readers values ('order-2')")
    parked = page.get_by_role("row").filter(has_text="order-2")
    press(button(parked, "Replay"), "projections.replay", on_record="projection.replay")
    shop.until(lambda: view("newsletter").parked == 1, "it is taken in")
    page.goto(f"{shop.url}projections")
    lost = page.get_by_role("row").filter(has_text="order-1")
    press(button(newsletter, "Replay 1 parked"), "projections.replay", on_record="projection.replay")
    press(button(lost, "Drop"), "projections.drop", on_record="projection.drop")

    assert (paused.state, paused.state_by) == ("paused", SOMEONE)
    assert view("revenue").state == "running"
    shop.until(lambda: view("newsletter").parked == 0, "nothing is parked")
