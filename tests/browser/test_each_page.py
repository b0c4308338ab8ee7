"""Every page there is, with a shop in the middle of its day behind it: by day and by night, on a desk and on a phone, alone and
behind a proxy under a path of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from tests.browser.conftest import Busy

pytestmark = [pytest.mark.one_server, pytest.mark.long]

VIEWPORTS = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
PLACES = ("alone", "proxied")

Tab = Callable[..., Page]

# charts without a table behind them, and what is wider than the page and not in a box that scrolls
BARE_CHARTS = """
    [...document.querySelectorAll('svg.chart')].filter((each) => !each.closest('figure')?.querySelector('details table')).length
"""
WIDER = """
    [...document.querySelectorAll('main *')]
        .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest('.scroll, .picture, nav, pre'))
        .map((each) => each.outerHTML.slice(0, 120))
"""


def grave_faults(page: Page) -> list[str]:
    """What someone who cannot see, or not well, could not use."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {[node['html'][:200] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def place(busy: Busy, name: str) -> tuple[str, dict[str, Any]]:
    """The address of the dashboard there, and what a browser needs for it."""
    if name == "alone":
        return busy.shop.url, {}
    return busy.proxied, {"http_credentials": {"username": "ana", "password": "a-long-password"}}


def one_of_each_kind(links: set[str]) -> list[str]:
    """Where the same pages are looked at a second time: of those that differ in a number or the value of a filter, one."""
    return list({re.sub(r"\d+|=[^&]*", "", link): link for link in sorted(links)}.values())


@pytest.mark.parametrize("viewport", VIEWPORTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("where", PLACES)
def test_every_page_is_fit_for_everyone(where: str, theme: Any, viewport: str, busy: Busy, tab: Tab) -> None:
    url, options = place(busy, where)
    page = tab(viewport=VIEWPORTS[viewport], color_scheme=theme, **options)

    for name, addresses in busy.addresses().items():
        for address in addresses:
            answer = page.goto(url + address)
            assert answer is not None
            assert answer.status == 200, name
            expect(page.locator("main h1")).to_be_visible()
            page.evaluate("document.querySelectorAll('main details').forEach((each) => (each.open = true))")
            # what is looked at is the same behind a proxy, and this is what takes long
            assert where == "proxied" or grave_faults(page) == [], address
            assert page.evaluate("document.documentElement.scrollWidth") <= VIEWPORTS[viewport]["width"], address
            assert page.evaluate(WIDER) == [], address
            assert page.evaluate(BARE_CHARTS) == 0, address
            assert page.get_by_text("cannot be read now").count() == 0, address
            assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == theme


@pytest.mark.parametrize("where", PLACES)
def test_every_link_of_every_page_leads_to_a_page(where: str, busy: Busy, tab: Tab) -> None:
    url, options = place(busy, where)
    page = tab(**options)
    links = set()

    for addresses in busy.addresses().values():
        for address in addresses:
            page.goto(url + address)
            found = page.locator("a[href]").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
            links |= {urldefrag(urljoin(url + address, link))[0] for link in found}

    assert [link for link in links if not link.startswith(url)] == []
    assert len(links) > 100
    for link in sorted(links) if where == "alone" else one_of_each_kind(links):
        assert page.request.get(link).status == 200, link
