"""What the app of a framework puts around every body, wherever it was declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from rota import ConfigurationError, Package, Rota

pytestmark = pytest.mark.usefixtures("history_aside")


class Around(Rota):
    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            return ["around", function(*args, **kwargs)]

        return body


def test_every_body_is_called_through_it_once() -> None:
    app = Around("dbname=x")
    package = Package("theirs")

    @package.task
    def before() -> str:
        return "before"

    app.package(package)
    app.package(package)

    @package.task
    def after() -> str:
        return "after"

    @app.task
    def own() -> str:
        return "own"

    @app.poller(table="orders", due="due_at")
    def poll(row: Any) -> str:
        return f"row {row}"

    assert [before(), after(), own(), poll(7)] == [
        ["around", "before"],
        ["around", "after"],
        ["around", "own"],
        ["around", "row 7"],
    ]


def test_two_tasks_of_one_name_are_told_apart_through_it() -> None:
    app = Around("dbname=x")

    def declare() -> Any:
        @app.task
        def twice() -> None: ...

    declare()
    declare()  # a module that is imported twice

    with pytest.raises(ConfigurationError, match="Two tasks are called 'twice'"):

        @app.task(name="twice")
        def other() -> None: ...
