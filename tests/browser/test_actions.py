"""What is decided about with care: previews are read first, names are typed, and what does not fit comes back as it was typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import Shop
from tests.browser.pressing import Press, presses
from tests.browser.test_buttons import button, row, unfolded

from rota.projections.checkpoint import declare_projection

pytestmark = [pytest.mark.one_server, pytest.mark.long]

Tab = Callable[..., Page]


def view(shop: Shop, name: str) -> Any:
    """As it is known; None as long as no process has declared it."""
    return next((each for each in shop.app.projections.list_sync() if each.name == name), None)


def type_it(page: Page, word: str) -> None:
    page.get_by_label(f"Type {word} to do it").fill(word)


def stocked(shop: Shop) -> list[int]:
    return [position for (position,) in shop.sql("select position from public.stock order by 1")]


def fill_the_log(shop: Shop, events: int) -> None:
    orders = shop.app.event_log("orders")
    for number in range(events):
        orders.append_sync(f"order-{number}", "Paid", {"sum": number})
    shop.until(lambda: view(shop, "stock") and view(shop, "stock").live_at, "readers use it")
    shop.until(lambda: len(stocked(shop)) >= events, "all are taken in")


@presses("projections.rebuild", "projections.cancel_rebuild")
def test_a_projection_is_rebuilt_beside_what_readers_use_and_a_rebuild_is_given_up(
    shop: Shop, tab: Tab, press: Press
) -> None:
    fill_the_log(shop, 3)
    shop.sql("insert into public.closed values ('stocktaking')")
    page = tab()
    page.goto(f"{shop.url}projections")

    page.get_by_role("link", name="stock", exact=True).click()
    button(page, "Rebuild").click()
    expect(page.get_by_role("status").filter(has_text="Build 2 of version 1 takes in all events")).to_be_visible()
    type_it(page, "stock")
    press(button(page, "Do it"), "projections.rebuild", on_record="projection.rebuild")
    expect(row(page, "build-2")).to_contain_text("stopped")
    button(page, "Give up the rebuild").click()
    type_it(page, "stock")
    press(button(page, "Do it"), "projections.cancel_rebuild", on_record="projection.cancel_rebuild")
    expect(row(page, "build-2")).to_have_count(0)
    given_up = [each.build for each in shop.app.projections.builds_sync("stock")]
    shop.sql("delete from public.closed")
    button(page, "Rebuild").click()
    type_it(page, "stock")
    press(button(page, "Do it"), "projections.rebuild", on_record="projection.rebuild")

    assert given_up == [1]
    shop.until(lambda: view(shop, "stock").build == 3 and view(shop, "stock").live_at, "readers are given the new one")
    assert len(stocked(shop)) >= 3
    expect(row(page, "build-3")).to_contain_text("100.0 %")


@presses("projections.pause", "projections.rewind", "projections.resume")
def test_a_projection_reads_again_what_a_preview_has_told(shop: Shop, tab: Tab, press: Press) -> None:
    fill_the_log(shop, 2)
    page = tab()
    page.goto(f"{shop.url}projection?name=stock")

    press(button(page, "Pause").last, "projections.pause", on_record="projection.pause")
    before, last = stocked(shop), view(shop, "stock").position
    form = unfolded(page, "Rewind")
    form.get_by_label("To the event at position").fill(str(last))
    button(form, "Preview").click()
    expect(page.get_by_role("status").filter(has_text="1 event(s) are read again")).to_be_visible()
    type_it(page, "stock")
    rewound = press(button(page, "Do it"), "projections.rewind", on_record="projection.rewind")
    press(button(page, "Resume").last, "projections.resume", on_record="projection.resume")

    assert rewound.details["to"] == last
    shop.until(lambda: stocked(shop) == sorted([*before, last]), "that one is taken in again")


@presses("projections.replay", "projections.drop", "projections.forget")
def test_parked_events_are_seen_with_what_they_hold_and_replayed_or_given_up_together(
    shop: Shop, tab: Tab, press: Press
) -> None:
    orders = shop.app.event_log("orders")
    orders.append_sync("parcel-7", "Sent", {"weight": "seven stone"})
    shop.until(lambda: view(shop, "newsletter") and view(shop, "newsletter").parked, "nobody reads of it")
    shop.app.database.run_sync(declare_projection("catalogue", 3, {"source": "orders"}, 1))
    page = tab()

    page.goto(f"{shop.url}projection?name=newsletter")
    event = page.locator("section").filter(has_text="Sent at")
    expect(event).to_contain_text('"weight": "seven stone"')
    expect(event).to_contain_text("LookupError: nobody reads of parcel-7")
    replayed = press(page.get_by_role("button", name="Replay all"), "projections.replay", on_record="projection.replay")
    page.get_by_role("button", name="Give up all").click()
    type_it(page, "newsletter")
    dropped = press(button(page, "Do it"), "projections.drop", on_record="projection.drop")
    page.goto(f"{shop.url}projection?name=catalogue")
    button(page, "Forget this version").click()
    type_it(page, "catalogue")
    press(button(page, "Do it"), "projections.forget", on_record="projection.forget")

    assert replayed.details["events"] >= 1
    assert dropped.details["events"] >= 1
    expect(page).to_have_url(f"{shop.url}projections")
    assert view(shop, "catalogue") is None


@presses("leaders.resign")
def test_a_term_is_ended_by_force_when_its_name_is_typed(shop: Shop, tab: Tab, press: Press) -> None:
    def leader() -> Any:
        return next((each for each in shop.app.leaders.list_sync() if each.name == "stock-indexer"), None)

    shop.until(lambda: leader() and leader().holder, "someone leads")
    before = leader().epoch
    page = tab(refused=True)
    page.goto(f"{shop.url}members")

    button(row(page, "leader-stock-indexer"), "End its term").click()
    page.get_by_label("Type stock-indexer to do it").fill("stock")
    button(page, "Do it").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was done")
    expect(page.get_by_label("Type stock-indexer to do it")).to_have_value("stock")
    kept = leader().epoch
    type_it(page, "stock-indexer")
    done = press(button(page, "Do it"), "leaders.resign", on_record="resign")

    assert kept == before
    assert done.details["force"] is True
    shop.until(lambda: leader().holder and leader().epoch > before, "the next term has begun")
    ended = next(term for term in shop.app.leaders.terms_sync("stock-indexer") if term.epoch == before)
    assert ended.end_reason == "taken"


def test_what_does_not_fit_comes_back_as_it_was_typed_with_the_error_beside_the_field(shop: Shop, tab: Tab) -> None:
    page = tab(refused=True)
    page.goto(f"{shop.url}queues")
    form = unfolded(row(page, "queue-mail"), "Limit")
    form.get_by_label("At once").fill("3")
    form.get_by_label("In a period").fill("a hundred")

    button(form, "Limit").click()

    asked = page.locator("form.asked")
    expect(asked.get_by_label("rate")).to_have_value("a hundred")
    expect(asked.get_by_label("rate")).to_be_focused()
    expect(asked.get_by_label("rate")).to_have_attribute("aria-invalid", "true")
    expect(asked.get_by_label("running")).to_have_value("3")
    expect(asked.get_by_role("alert")).to_contain_text("rate")
    assert shop.app.queues.get_sync("mail").rate is None


@presses("schedules.put", "schedules.change", "schedules.trigger")
def test_a_schedule_is_put_and_changed_when_its_next_runs_were_seen_and_run_with_other_arguments(
    shop: Shop, tab: Tab, press: Press
) -> None:
    page = tab()
    page.goto(f"{shop.url}schedules")

    page.get_by_role("link", name="Put a new schedule").click()
    for label, text in {"name": "greetings", "task": "send_receipt", "args": '{"order": 1, "to": "ana"}'}.items():
        page.get_by_label(f"{label}:").fill(text)
    page.get_by_label("cron:").fill("0 7 * * mon")
    page.get_by_label("tz:").fill("Asia/Tokyo")
    button(page, "Preview").click()
    expect(page.get_by_role("status")).to_contain_text("At 07:00 on Monday, Asia/Tokyo time")
    told = page.get_by_role("region", name="What it would do").locator("tbody tr")
    expect(told).to_have_count(10)
    expect(told.first).to_contain_text("07:00:00 JST")
    expect(told.first).to_contain_text("22:00:00")
    nothing_yet = shop.app.schedules.list_sync(prefix="greetings")
    press(button(page, "Do it"), "schedules.put", on_record="schedule.put")
    expect(page).to_have_url(f"{shop.url}schedule?name=greetings")

    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_label("cron:")).to_have_value("0 7 * * mon")
    page.get_by_label("cron:").fill("30 8 * * mon")
    button(page, "Preview").click()
    expect(told.first).to_contain_text("08:30:00 JST")
    press(button(page, "Do it"), "schedules.change", on_record="schedule.change")

    form = unfolded(page, "Run with other arguments")
    form.get_by_label("Arguments to replace").fill('{"to": "eve"}')
    run = press(button(form, "Run"), "schedules.trigger", on_record="schedule.trigger")

    schedule = shop.app.schedules.get_sync("greetings")
    assert nothing_yet == []
    assert (schedule.cron, schedule.tz, schedule.args) == ("30 8 * * mon", "Asia/Tokyo", {"order": 1, "to": "ana"})
    assert shop.ended(run.details["job"]) == "succeeded"
    assert shop.app.jobs.get_sync(run.details["job"]).result == "sent to eve"


@presses("pollers.release", "pollers.forget")
def test_a_row_that_hangs_is_taken_away_and_a_poller_of_no_code_is_forgotten(
    shop: Shop, tab: Tab, press: Press
) -> None:
    shop.until(lambda: [each for each in shop.app.pollers.list_sync() if each.name == "suppliers"], "it is declared")
    shop.sql("""
        insert into rota.poll_claims (poller, key, claimed_at, token, member)
        select 'suppliers', '[4711]', now() - interval '2 hours', 1, member.id
        from rota.members as member
        where member.ended_at is null
          and member.work -> 'pollers' ? 'suppliers'
        limit 1
    """)
    shop.sql("insert into rota.pollers (name, definition) values ('prices', '{}')")
    page = tab()
    page.goto(f"{shop.url}pollers")

    page.get_by_role("link", name="suppliers", exact=True).click()
    hanging = page.get_by_role("row").filter(has_text="[4711]")
    expect(hanging).to_contain_text("2 h")
    taken = press(button(hanging, "Take it away"), "pollers.release", on_record="poller.release")
    expect(hanging).to_have_count(0)
    button(page, "Ask PostgreSQL").click()
    expect(page.get_by_role("heading", name="The plan")).to_be_visible()
    page.goto(f"{shop.url}poller?name=prices")
    button(page, "Forget it").click()
    type_it(page, "prices")
    press(button(page, "Do it"), "pollers.forget", on_record="poller.forget")

    assert (taken.details["rows"], taken.details["held"]) == (1, True)
    expect(page).to_have_url(f"{shop.url}pollers")
    assert "prices" not in [each.name for each in shop.app.pollers.list_sync()]


def test_who_holds_a_lock_is_seen_beside_who_leads(shop: Shop, tab: Tab) -> None:
    page = tab()

    with shop.app.lock("closing the books") as connection:
        pid = connection.info.backend_pid
        page.goto(f"{shop.url}members")
        held = row(page, f"lock-closing the books-{pid}")
        expect(held).to_contain_text("held")

    expect(held).to_have_count(0)
    expect(page.get_by_text("Nobody holds a lock of app.lock.")).to_be_visible()
