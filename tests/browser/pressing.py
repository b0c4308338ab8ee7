"""Pressing the buttons of pages in a browser, each on record; and which of all there are no test presses.

A test says which actions it presses, and presses them by `press`, which looks that the browser sent that action, that the page said
it was done, and that it is on record under the name of who did it:

    @presses("queues.resume")
    def test_a_queue_is_resumed(shop, tab, press):
        page = tab()
        page.goto(f"{shop.url}queues")
        press(page.get_by_role("button", name="Resume"), "queues.resume", on_record="queue.resume")

What it names and did not press fails it. `test_none_forgotten.py` asks of all tests here that each action is pressed by one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import psycopg
import pytest
from playwright.sync_api import Locator, Request, expect

SOMEONE = "someone at 127.0.0.1"  # who is on this machine, and was asked for no name


def presses(*actions: str) -> pytest.MarkDecorator:
    """What a test presses."""
    return pytest.mark.presses(*actions)


def pressed_by_tests() -> set[str]:
    """What all tests of this folder say that they press."""
    folder = Path(__file__).parent
    modules = [importlib.import_module(f"tests.browser.{file.stem}") for file in folder.glob("test_*.py")]
    return {
        action
        for module in modules
        for _, test in inspect.getmembers(module, inspect.isfunction)
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "presses"
        for action in mark.args
    }


@dataclass(frozen=True)
class Done:
    """What the page said of it, and what is on record."""

    said: str
    details: dict[str, Any]


class Press:
    """A hand on the mouse of a browser, and an eye on the audit."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.pressed: set[str] = set()

    def __call__(self, button: Locator, action: str, *, on_record: str, by: str = SOMEONE) -> Done:
        """Press it; return when the page has come back. What asks for confirmation is confirmed."""
        page = button.page
        before = self._last_entry()

        with page.expect_request(lambda request: request.method == "POST") as sent, page.expect_navigation():
            button.click()
        assert _field(sent.value, "action") == action
        told = page.locator("main > .say.ok, main > .say.trouble")
        expect(told).to_be_visible()
        assert "ok" in (told.get_attribute("class") or ""), told.inner_text()

        entries = self._entries_after(before, by)
        assert [name for name, _ in entries] == [on_record], entries
        self.pressed.add(action)
        return Done(told.inner_text(), entries[0][1])

    def _last_entry(self) -> int:
        with psycopg.connect(self._dsn) as connection:
            found = connection.execute("select coalesce(max(id), 0) from rota.audit").fetchall()
        return int(found[0][0])

    def _entries_after(self, last: int, actor: str) -> list[tuple[str, dict[str, Any]]]:
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(
                "select action, details from rota.audit where id > %s and actor = %s order by id", [last, actor]
            ).fetchall()


def pressing(dsn: str, request: pytest.FixtureRequest) -> Iterator[Press]:
    """For a fixture: what the test says that it presses, it has pressed."""
    press = Press(dsn)
    yield press
    mark = request.node.get_closest_marker("presses")
    named = set(mark.args) if mark else set()
    assert press.pressed == named, f"it names {named - press.pressed}, and pressed {press.pressed - named} unnamed"


def _field(request: Request, name: str) -> str:
    return parse_qs(request.post_data or "")[name][0]
