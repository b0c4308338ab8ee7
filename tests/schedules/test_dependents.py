"""Schedules that follow others: each success is used once, circles are refused, and what keeps a child idle is told."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.schedules.rounds import give_out

from rota import ConfigurationError, Retry
from rota.schedules.parents import find_circle
from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task
    def tick(n: int = 0) -> None: ...

    @rota_app.task(retry=Retry(attempts=1))
    def fail() -> None:
        raise RuntimeError("no")

    return rota_app


def put(app: TestRota, **after: Any) -> None:
    """Schedules by name, each after those named."""
    items = [
        {"name": name, "task": "tick"} | ({"after": parents} if parents else {}) for name, parents in after.items()
    ]
    app.schedules.put_many_sync(items)


async def run(app: TestRota, name: str) -> None:
    await app.schedules.trigger(name)
    await app.drain()


async def test_each_success_of_a_parent_is_one_run_of_each_child(app: TestRota) -> None:
    put(app, parent=None, one="parent", two="parent", grandchild="one")

    for _ in range(3):
        await run(app, "parent")

    assert [app.schedules.get_sync(name).runs for name in ("one", "two", "grandchild")] == [3, 3, 3]
    runs = await app.schedules.history("one")
    parents = [run.job for run in await app.schedules.history("parent")]
    assert [(run.cause, run.state, run.parent_job) for run in runs] == [("after", "succeeded", job) for job in parents]


async def test_a_success_while_the_child_runs_is_not_lost(app: TestRota, db: psycopg.Connection[Any]) -> None:
    put(app, parent=None)
    app.schedules.put_sync("child", task="tick", after="parent", queue="later")
    for _ in range(2):
        await app.schedules.trigger("parent")
        await app.drain(queues=["default"])
        give_out(app)

    # the first has not run yet, so the second waits for it
    assert [run.state for run in await app.schedules.history("child")] == ["waiting", "queued"]
    await app.drain()
    assert [run.state for run in await app.schedules.history("child")] == ["succeeded", "succeeded"]


async def test_a_child_of_several_runs_when_each_has_one_to_give(app: TestRota) -> None:
    put(app, a=None, b=None, child=["a", "b"])

    for name, runs in (("a", 0), ("a", 0), ("b", 1), ("b", 2), ("b", 2), ("a", 3)):
        await run(app, name)
        assert app.schedules.get_sync("child").runs == runs


async def test_a_failed_run_of_the_parent_is_worth_nothing(app: TestRota) -> None:
    app.schedules.put_sync("parent", task="fail")
    app.schedules.put_sync("child", task="tick", after="parent")

    await run(app, "parent")

    child, parent = app.schedules.get_sync("child"), app.schedules.get_sync("parent")
    assert (child.runs, child.state, parent.failures) == (0, "waiting", 1)
    assert child.why_idle == "its parent 'parent' is failing: 1 dead run(s) since its last success"
    app.schedules.put_sync("parent", task="tick")
    await run(app, "parent")
    assert app.schedules.get_sync("child").why_idle == "it waits until 'parent' succeeds (again)"


def test_what_keeps_a_child_idle_is_told(app: TestRota, db: psycopg.Connection[Any]) -> None:
    put(app, a=None, b=None, c=None, d=None, child=["a", "b", "c", "d"])
    app.schedules.pause_sync("a")
    app.schedules.delete_sync("b")
    db.execute("update rota.schedules set problem = 'odd' where name = 'c'")

    child = app.schedules.get_sync("child")

    assert child.state == "waiting"
    assert child.why_idle == "its parent 'a' is paused; its parent 'b' is gone; its parent 'c' is broken"
    assert child.when == "After each of 'a', 'b', 'c', 'd' succeeded"
    assert child.parents == ("a", "b", "c", "d")


async def test_of_several_parents_it_is_told_who_is_waited_for_and_what_the_others_gave(
    app: TestRota,
) -> None:
    put(app, a=None, b=None, c=None, child=["a", "b", "c"])
    waits = app.schedules.get_sync("child").why_idle
    for name in ("a", "a", "b"):
        await run(app, name)

    assert waits == "it waits until each of 'a', 'b', 'c' succeeds (again)"
    given = "2 success(es) of 'a' wait for that; 1 success(es) of 'b' wait for that"
    assert app.schedules.get_sync("child").why_idle == f"it waits until 'c' succeeds (again); {given}"
    app.schedules.pause_sync("c")
    assert app.schedules.get_sync("child").why_idle == f"its parent 'c' is paused; {given}"


async def test_a_paused_child_takes_no_successes_and_says_so(app: TestRota) -> None:
    put(app, parent=None, child="parent")
    app.schedules.put_sync("listener", task="tick", on="event")
    for name in ("child", "listener"):
        app.schedules.pause_sync(name, by="me")
    await run(app, "parent")

    child, listener = app.schedules.get_sync("child"), app.schedules.get_sync("listener")
    assert (child.why_idle or "").endswith(" UTC; successes of its parents count for nothing meanwhile")
    assert (listener.why_idle or "").endswith(" UTC; events pass it by meanwhile")
    app.schedules.resume_sync("child")
    await app.drain()
    assert await app.schedules.history("child") == []


def test_parents_that_do_not_exist_are_refused_by_name(app: TestRota, db: psycopg.Connection[Any]) -> None:
    with pytest.raises(ConfigurationError, match="no such schedule to follow: 'child' after 'nobody'"):
        app.schedules.put_sync("child", task="tick", after=["nobody"])

    assert app.schedules.list_sync() == []


@pytest.mark.parametrize(
    ("after", "circle"),
    [
        ({"a": "c", "b": "a", "c": "b"}, "a -> b -> c -> a"),
        ({"x": None, "a": ["x", "b"], "b": ["x", "a"]}, "a -> b -> a"),
    ],
)
def test_circles_are_refused_with_the_way_round(app: TestRota, after: dict[str, Any], circle: str) -> None:
    with pytest.raises(ConfigurationError, match=f"in a circle: {circle}\\."):
        put(app, **after)

    assert app.schedules.list_sync() == []


def test_an_edge_that_would_close_a_circle_changes_nothing(app: TestRota) -> None:
    put(app, a=None, b="a", c="b")

    with pytest.raises(ConfigurationError, match="a -> b -> c -> a"):
        app.schedules.put_sync("a", task="tick", after="c")

    assert (app.schedules.get_sync("a").kind, app.schedules.get_sync("a").revision) == ("manual", 1)


def test_two_who_would_close_a_circle_together_cannot(app: TestRota) -> None:
    put(app, a=None, b=None)

    def follow(child: str, parent: str) -> str:
        try:
            app.schedules.put_sync(child, task="tick", after=parent)
        except ConfigurationError:
            return "refused"
        return "put"

    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(follow, ("a", "b"), ("b", "a")))

    assert sorted(told) == ["put", "refused"]


def test_many_ways_to_the_same_parent_are_no_circle() -> None:
    layers = [(f"{row + 1}{to}", f"{row}{of}") for row in range(30) for to in "ab" for of in "ab"]

    assert find_circle(layers) is None
    assert find_circle([*layers, ("0a", "30b")]) is not None


async def test_what_a_parent_gave_is_forgotten_with_the_parent(app: TestRota, db: psycopg.Connection[Any]) -> None:
    put(app, a=None, b=None, c=None, child=["a", "b"])
    await run(app, "a")

    app.schedules.put_sync("child", task="tick", after=["b", "c"])

    assert db.execute("select count(*) from rota.schedule_feed").fetchall() == [(0,)]
    assert app.schedules.get_sync("child").parents == ("b", "c")
    app.schedules.put_sync("child", task="tick")
    assert app.schedules.get_sync("child").parents == ()
