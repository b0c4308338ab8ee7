"""What the guide and the design page say of times and sizes is what the code has."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from rota import Rota, Stop
from rota.projections import apply, feed, projection, projector, standing

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_defaults_of_a_projection_are_those_that_are_documented() -> None:
    defaults = {name: each.default for name, each in inspect.signature(Rota().projection).parameters.items()}

    assert (defaults["batch"], defaults["version"], defaults["on_error"]) == (500, 1, Stop())
    assert (defaults["types"], defaults["streams"]) == (None, None)


@pytest.mark.parametrize(
    ("page", "said", "value", "is_"),
    [
        ("guides/projections.md", "told of after 30 seconds", projector._STALLED_SECONDS, 30.0),
        ("guides/projections.md", "a handler has five seconds to end its event", apply.STOP_SECONDS, 5.0),
        ("guides/projections.md", "counted up to 100,000", projection._MOST_COUNTED, 100_000),
        ("guides/projections.md", "among the next 100,000 events of all", feed._COUNTED, 100_000),
        ("design/projections.md", "After five seconds the owner says so", standing._HINDERED_SECONDS, 5.0),
        ("design/projections.md", "a look goes through five thousand rows at most", feed._WINDOW, 5_000),
        ("design/projections.md", "looks every five seconds", projector._POLL_SECONDS, 5.0),
        ("design/projections.md", "or every second where no messages arrive", projector._POLL_DEAF_SECONDS, 1.0),
    ],
)
def test_what_is_documented_is_what_holds(page: str, said: str, value: object, is_: object) -> None:
    text = " ".join((DOCS / page).read_text().split())

    assert said in text
    assert value == is_
