"""The page of members in a browser: processes as they are, and having one of them rest, go on and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import SHOP, Shop
from tests.browser.pressing import Press, presses

from rota.testing import WorkerProcess

pytestmark = [pytest.mark.one_server, pytest.mark.long]

Tab = Callable[..., Page]


@pytest.fixture
def worker(shop: Shop, tmp_path: Path) -> Iterator[WorkerProcess]:
    """One more than the shop has, to be ended."""
    (tmp_path / "more.py").write_text(SHOP.replace("app = Rota(", 'app = Rota(release="v42", '))
    with WorkerProcess(tmp_path / "more.py", dsn=shop.dsn, schema="rota") as worker:
        yield worker.wait_until_working()


@presses("members.quiet", "members.resume", "members.drain")
def test_a_process_rests_goes_on_and_ends_and_the_page_tells_so(
    shop: Shop, tab: Tab, press: Press, worker: WorkerProcess
) -> None:
    member = next(each for each in shop.app.members_sync() if each.pid == worker.pid)
    page = tab()
    page.goto(f"{shop.url}members")
    row = page.locator(f'[data-key="member-{member.id}"]')

    expect(row).to_contain_text("v42")
    expect(row).to_contain_text("of 20")
    expect(row).to_contain_text("MB", timeout=20_000)
    quieted = press(row.get_by_role("button", name="Quiet"), "members.quiet", on_record="member.quiet")
    expect(row.locator(".badge.is-quiet")).to_be_visible(timeout=20_000)
    press(row.get_by_role("button", name="Resume"), "members.resume", on_record="member.resume")
    expect(row.locator(".badge.is-live")).to_be_visible(timeout=20_000)
    drained = press(row.get_by_role("button", name="Drain"), "members.drain", on_record="member.drain")
    code = worker.wait(30)
    page.get_by_text("that ended").click()
    expect(row).to_contain_text("stopped cleanly", timeout=20_000)

    assert quieted.said == f"{member.name} takes on nothing new."
    assert drained.said == f"{member.name} ends when what it runs has finished."
    assert drained.details == {"member": str(member.id), "name": member.name}
    assert code == 0


def test_the_pools_of_each_process_are_shown_with_the_database(shop: Shop, tab: Tab) -> None:
    member = next(each for each in reversed(shop.app.members_sync()) if "tasks" in each.work)
    page = tab()
    page.goto(f"{shop.url}database")

    expect(page.locator(f'[data-key="pool-{member.id}-app"]')).to_contain_text(member.name, timeout=20_000)
