"""No button is forgotten."""

from __future__ import annotations

from tests.browser.pressing import pressed_by_tests

from rota.dashboard.actions import ACTIONS
from rota.dashboard.pages import PAGES


def test_every_action_is_offered_by_a_page_and_pressed_in_a_browser_by_some_test() -> None:
    offered = {action for page in PAGES for action in page.actions}

    assert offered == set(ACTIONS)
    assert pressed_by_tests() == set(ACTIONS)
