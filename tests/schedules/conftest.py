"""What becomes of schedules and their runs has nothing to do with the upkeep of the history."""

import pytest


@pytest.fixture(autouse=True)
def _history_aside(history_aside: None) -> None: ...
