"""The pictures of the documentation are of pages that there are, and are taken here: `make screenshots`.

They are taken of the shop in the middle of its day, whose past is always the same; times are told as time ago, so they are as well.
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.conftest import Busy

from rota.dashboard.page import Page
from rota.dashboard.pages import PAGES

ROOT = Path(__file__).parent.parent.parent
PICTURES = ROOT / "docs" / "images" / "dashboard"
GUIDE = ROOT / "docs" / "guides" / "dashboard.md"

HEIGHTS = {"now": 980, "job": 900, "members": 860, "projection": 900}
#: A page more than once: its name, how it is looked at, and the name of the picture.
ALSO = (("now", "dark", 1280, "now-dark"), ("jobs", "light", 390, "jobs-phone"))
LARGEST = 1_500_000  # bytes of all of them: whoever clones the repository has them
# a third of what a PNG takes
AS_WEBP = """
    async (png) => {
        const image = new Image();
        image.src = `data:image/png;base64,${png}`;
        await image.decode();
        const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
        canvas.getContext("2d").drawImage(image, 0, 0);
        return canvas.toDataURL("image/webp", 0.9).split(",")[1];
    }
"""


def name_of(page: Page) -> str:
    return page.name.replace(" ", "-")


def test_every_page_has_a_picture_in_its_guide() -> None:
    shown = set(re.findall(r"\]\(\.\./images/dashboard/([\w-]+\.webp)\)", GUIDE.read_text("utf-8")))

    assert {f"{name_of(page)}.webp" for page in PAGES} <= shown
    assert {file.name for file in PICTURES.iterdir()} == {f"{name_of(page)}.webp" for page in PAGES} | {
        f"{name}.webp" for *_, name in ALSO
    }
    assert sum(file.stat().st_size for file in PICTURES.iterdir()) < LARGEST


@pytest.mark.one_server
@pytest.mark.long
@pytest.mark.skipif(
    not os.environ.get("ROTA_SCREENSHOTS"), reason="the pictures are there: `make screenshots` takes them anew"
)
def test_take_the_pictures(busy: Busy, browser: Browser) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    addresses = busy.addresses()
    wanted = [*((page.name, "light", 1280, name_of(page)) for page in PAGES), *ALSO]

    for page_name, theme, width, name in wanted:
        context = browser.new_context(
            viewport={"width": width, "height": HEIGHTS.get(page_name, 800)},
            color_scheme=theme,
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.goto(busy.shop.url + addresses[page_name][0])
        expect(page.locator("main h1")).to_be_visible()
        taken = page.screenshot(animations="disabled")
        page.goto("about:blank")
        (PICTURES / f"{name}.webp").write_bytes(
            base64.b64decode(page.evaluate(AS_WEBP, base64.b64encode(taken).decode()))
        )
        context.close()
