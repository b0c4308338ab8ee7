"""Items 10 and 12: what a drain does beside much else, in the same tables; always beside the drain that has them for itself."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from field import Place, wait_until
from peers.rota_tasks import define
from rota import Rota
from speed_items.table import Row, Run

IDLE = 50

SETTLED = """
    insert into rota.history (
        id, created_at, due_at, claimed_at, started_at, finished_at, token, attempt, losses, priority, version, member,
        state, queue, task, args
    )
    select n, clock.now, clock.now, clock.now, clock.now, clock.now, n, 1, 0, 0, 1, clock.id,
           'succeeded', 'default', 'noop', '{{"i": 1}}'
    from generate_series(100000001, 100000000 + {rows}) as n, (select now(), gen_random_uuid()) as clock(now, id)
"""
WAITING = """
    insert into rota.jobs (task, queue, due_at, args)
    select 'noop', {queue}, {due_at}, jsonb_build_object('i', n)
    from generate_series(1, {rows}) as n
"""


def flat(run: Run) -> list[Row]:
    jobs, million = run.size(50_000, 20_000), run.size(1_000_000, 100_000)
    spread = WAITING.format(queue="'queue' || n % 1000", due_at="now()", rows=jobs)

    def waiting(rows: int, due_at: str = "now()") -> str:
        return WAITING.format(queue="'default'", due_at=due_at, rows=rows)

    cases: dict[str, tuple[str, str]] = {
        # what is there before, and what is then drained
        "1,000,000 settled": (SETTLED.format(rows=million), waiting(jobs)),
        "500,000 waiting": (waiting(million // 2), waiting(jobs)),
        "1,000,000 delayed": (waiting(million, "now() + interval '1 day'"), waiting(jobs)),
        "1,000 queues": ("select", spread),
    }
    rows = []
    with contextlib.ExitStack() as stack:
        empty = stack.enter_context(run.field.place(run.rota))
        places = {name: stack.enter_context(run.field.place(run.rota)) for name in cases}
        for name, (before, _) in cases.items():
            places[name].sql(before)
        shares: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(run.rounds):
            earlier = _rate(empty, waiting(jobs), jobs)
            for name, (_, drained) in cases.items():
                rate = _rate(places[name], drained, jobs)
                later = _rate(empty, waiting(jobs), jobs)
                shares[name].append(rate * 2 / (earlier + later))
                run.say(f"{name:18} {rate:8,.0f}/s, empty {earlier:8,.0f} and {later:8,.0f}/s")
                earlier = later
        for name, each in shares.items():
            rows.append(Row(10, f"drain beside {name}: of the empty case", statistics.median(each), 0.9, 1.0))
        rows.append(_beside_idle_workers(run, empty, waiting(jobs), jobs))
    run.figures["10"] = {**shares, "idle": rows[-1].measured}
    return rows


def _beside_idle_workers(run: Run, place: Place, drained: str, jobs: int) -> Row:
    """They come once and stay for all its rounds, as they take long to start."""
    free = [_rate(place, drained, jobs) for _ in range(run.rounds)]
    idle = Place(place.field, replace(run.rota, settings={"queues": ["of-nobody"]}), place.dsn, place.db)
    with idle.workers(IDLE, idle=True):
        present = "select count(*) from rota.members where ended_at is null and renewed_at > now() - interval '5 s'"
        while place.value(present) < IDLE:
            time.sleep(0.5)
        time.sleep(15)  # one that has just come looks after what others may have left, and is idle only then
        beside = [_rate(place, drained, jobs) for _ in range(run.rounds)]
    free += [_rate(place, drained, jobs) for _ in range(run.rounds)]
    run.say(f"beside {IDLE} idle workers {statistics.median(beside):,.0f}/s, alone {statistics.median(free):,.0f}/s")
    return Row(
        10,
        f"drain beside {IDLE} idle workers: of the empty case",
        statistics.median(beside) / statistics.median(free),
        0.9,
        1.0,
    )


def _rate(place: Place, drained: str, jobs: int) -> float:
    """Bodies begun per second, of the first so many: beside a backlog the last one comes much later."""
    place.sql(drained)
    place.sql("vacuum analyze")
    with place.workers() as working:
        count, first, last = wait_until(working, jobs, within=120)
    return count / (last - first)


def used(run: Run) -> list[Row]:
    """Limits, priorities and unique keys, elsewhere and in the drained queue."""
    jobs = run.size(50_000, 20_000)
    ways: dict[str, Callable[[dict[str, Any], int], Any]] = {
        "plain": lambda tasks, i: tasks["noop"].bind(i),
        "priorities": lambda tasks, i: tasks["noop"].using(priority=i % 5).bind(i),
        "unique keys": lambda tasks, i: tasks["noop"].using(unique=f"key-{i}").bind(i),
        "a limit": lambda tasks, i: tasks["limited"].bind(i),
        "a limit by key": lambda tasks, i: tasks["by_key"].bind(i),
    }
    shares: dict[str, list[float]] = {name: [] for name in ("elsewhere", *list(ways)[1:])}
    for _ in range(run.rounds):
        earlier = _drained(run, ways["plain"], jobs)
        for name in shares:
            way = ways.get(name, ways["plain"])
            rate = _drained(run, way, jobs, elsewhere=jobs if name == "elsewhere" else 0)
            later = _drained(run, ways["plain"], jobs)
            shares[name].append(rate * 2 / (earlier + later))
            run.say(f"{name:18} {rate:8,.0f}/s, plain {earlier:8,.0f} and {later:8,.0f}/s")
            earlier = later
    run.figures["12"] = shares
    medians = {name: statistics.median(each) for name, each in shares.items()}
    return [
        Row(12, "drain, with all that in use elsewhere: of the plain one", medians.pop("elsewhere"), 0.9),
        *(Row(12, f"drain of jobs with {name}: of the plain one", share, 0.5) for name, share in medians.items()),
    ]


def _drained(run: Run, way: Callable[[dict[str, Any], int], Any], jobs: int, elsewhere: int = 0) -> float:
    with run.field.place(replace(run.rota, settings={**run.rota.settings, "queues": ["default"]})) as place:
        with _app(place.dsn) as (app, tasks):
            if elsewhere:
                held = tasks["one_by_one"].using(queue="elsewhere")
                app.enqueue_many_sync([held.bind(i) for i in range(elsewhere)])
                more = tasks["noop"].using(queue="elsewhere", priority=3)
                app.enqueue_many_sync([more.bind(i) for i in range(elsewhere)])
                app.enqueue_many_sync(
                    [tasks["noop"].using(queue="elsewhere", unique=f"{i}").bind(i) for i in range(elsewhere // 5)]
                )
            app.enqueue_many_sync([way(tasks, i) for i in range(jobs)])
        place.sql("vacuum analyze")
        with place.workers() as working:
            count, first, last = wait_until(working, jobs, within=240)
        return count / (last - first)


@contextlib.contextmanager
def _app(dsn: str) -> Iterator[tuple[Rota, dict[str, Any]]]:
    with Rota(dsn) as app:
        yield app, define(app)


ITEMS: dict[int, Any] = {10: flat, 12: used}
