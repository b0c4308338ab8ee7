"""What holds for every action there is, and for each that is added: it acts, under the name of who asked, and for nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.dashboard.visitor import PREFIX, Visitor
from tests.dashboard.world import make_world
from tests.jobs.bulk_turns import done

from rota import LeadershipLost
from rota.dashboard import RIGHTS, User
from rota.dashboard.actions import ACTIONS
from rota.dashboard.asked import TYPED
from rota.dashboard.pages import PAGES
from rota.testing import TestRota

pytestmark = pytest.mark.one_server

API = f"{PREFIX}/api/v1/actions"
ANA = ("ana", "a-long-password")
NIGHTLY = {"name": "reports/nightly"}
COUNTS = {"name": "counts", "version": "1"}


def days_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


# In this order, on a world of everything: what is asked for. Each must leave an entry in the audit; where it says {dead}, {group}
# or {epoch}, those of the world stand there. Nobody works, so bulks are begun and go no further.
DEEDS: list[tuple[str, dict[str, str]]] = [
    ("bulk.prioritise", {"ids": "{queued}", "priority": "7", "pace": "100"}),
    ("bulk.move", {"ids": "{queued}", "to": "slow"}),
    ("bulk.put_off", {"tag": "later", "delay": "9h"}),
    ("bulk.retry", {"ids": "{queued}", "undo_for": "2h"}),
    ("bulk.cancel", {"task": "send", "reason": "too late", TYPED: "cancel"}),
    ("bulk.discard", {"ids": "{queued}", TYPED: "discard"}),
    ("bulk.acknowledge", {"error": "cannot do", "reason": "known"}),
    ("bulk.stop", {"id": "2"}),
    ("bulk.undo", {"id": "{bulk}"}),
    ("jobs.retry", {"id": "{queued}"}),
    ("jobs.cancel", {"id": "{queued}", "reason": "too late"}),
    ("jobs.discard", {"id": "{other}", "reason": "never mind"}),
    ("dead.retry", {"id": "{dead}", "args": '{"number": 8}'}),
    ("dead.acknowledge", {"id": "{letter}", "note": "known"}),
    ("dead.retry_many", {"task": "fail", "tag": "some"}),
    ("dead.acknowledge_many", {"task": "fail", "tag": "more", "note": "known"}),
    ("dead.retry_group", {"group": "{group}", "canary": "1"}),
    ("dead.acknowledge_group", {"group": "{group}", "note": "known"}),
    ("queues.pause", {"name": "mail", "reason": "provider outage", "for": "30m"}),
    ("queues.resume", {"name": "mail"}),
    ("queues.limit", {"name": "mail", "running": "3", "rate": "100/1m"}),
    ("queues.weigh", {"name": "mail", "weight": "2.5"}),
    ("queues.relax", {"name": "mail"}),
    ("queues.tighten", {"name": "mail"}),
    ("schedules.put", {"name": "hourly", "task": "send", "args": '{"to": "eve"}', "every": "1h", "tags": "a, b"}),
    ("schedules.change", {"name": "hourly", "every": "2h", "tags": "", "note": "less often"}),
    ("schedules.pause", NIGHTLY),
    ("schedules.backfill", {**NIGHTLY, "start": days_ago(4), "end": days_ago(1)}),
    ("schedules.clear", NIGHTLY),
    ("schedules.resume", NIGHTLY),
    ("schedules.skip", NIGHTLY),
    ("schedules.trigger", {**NIGHTLY, "args": '{"to": "ana"}'}),
    ("schedules.delete", {**NIGHTLY, TYPED: NIGHTLY["name"]}),
    ("members.quiet", {"member": "elsewhere:7"}),
    ("members.resume", {"member": "elsewhere:7"}),
    ("members.drain", {"member": "elsewhere:7"}),
    ("leaders.resign", {"name": "reindex", "epoch": "{epoch}", "force": "on", TYPED: "reindex"}),
    ("pollers.pause", {"name": "fetch"}),
    ("pollers.resume", {"name": "fetch"}),
    ("pollers.release", {"name": "fetch", "keys": "[1]"}),
    ("pollers.forget", {"name": "fetch", TYPED: "fetch"}),
    ("projections.skip", {"name": "totals"}),
    ("projections.resume", {"name": "totals", "version": "1"}),
    ("projections.pause", {"name": "totals", "version": "1"}),
    ("projections.replay", {**COUNTS, "positions": '["1"]'}),
    ("projections.drop", {**COUNTS, TYPED: "counts"}),
    ("projections.rewind", {**COUNTS, "position": "1", TYPED: "counts"}),
    ("projections.rebuild", {"name": "stock", TYPED: "stock"}),
    ("projections.cancel_rebuild", {"name": "stock", TYPED: "stock"}),
    ("projections.forget", {**COUNTS, TYPED: "counts"}),
]

# A process elsewhere that can be asked for something; it never answers.
WORKER = """
    insert into rota.members (id, name, host, pid, release, expires_at, work)
    values (gen_random_uuid(), 'elsewhere:7', 'elsewhere', 7, 'any', now() + interval '1 day', '{"tasks": {}, "drains": "exits"}')
"""

# Where its forms stand; of an action on several pages, the first.
PATHS = {
    "job": "jobs/{dead}",
    "schedule": "schedule?name=reports%2Fnightly",
    "bulk one": "bulk/1",
    "projection": "projection?name=counts",
    "poller": "poller?name=fetch",
}
HOMES = {
    action: PATHS.get(page.name, page.path.lstrip("/")) for page in reversed(PAGES) for action in reversed(page.actions)
}


def test_every_action_is_on_a_page_has_a_right_and_is_tried_here() -> None:
    assert set(HOMES) == set(ACTIONS)
    assert {action.right for action in ACTIONS.values()} == set(RIGHTS)
    assert {name for name, _ in DEEDS} == set(ACTIONS), "a new action needs a deed in DEEDS"


@contextlib.asynccontextmanager
async def busy_world(app: TestRota, dsn: str) -> AsyncIterator[dict[str, str]]:
    """A world of everything, with some more of it dead, and a leader; what stands for what."""
    world = await make_world(app, dsn)
    fail, send = app.tasks["fail"], app.tasks["send"]
    for tags in ([], [], [], ["some"], ["more"]):
        await fail.using(tags=tags).enqueue(number=1)
    await app.drain()
    other = await send.using(delay="1h").enqueue("eve")
    letters = await app.dead.list(task="fail")
    group = (await app.dead.groups()).groups[0].id
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(WORKER)
    leads = asyncio.Event()
    leading = asyncio.create_task(lead(app, leads))
    await asyncio.wait_for(leads.wait(), 30)
    leader = next(each for each in await app.leaders.list() if each.name == "reindex")
    yield {
        "queued": str(world.queued.id),
        "other": str(other.id),
        "dead": str(world.dead.id),
        "letter": str(next(each.id for each in letters if each.id != world.dead.id and not each.tags)),
        "group": group,
        "epoch": str(leader.epoch),
        "bulk": str(await a_bulk_that_ended(app)),
    }
    leading.cancel()
    await asyncio.wait([leading])


async def a_bulk_that_ended(app: TestRota) -> int:
    task = app.task(name="kept", queue="apart")(lambda: None)
    job = await task.using(delay="1h").enqueue()
    return (await done(app, "move", ids=[job.id], to="elsewhere")).id


async def lead(app: TestRota, leads: asyncio.Event) -> None:
    """Until someone ends it."""
    with contextlib.suppress(LeadershipLost):
        async with app.leadership("reindex"):
            leads.set()
            await asyncio.Event().wait()


def entries(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from rota.audit where actor = 'ana'").fetchone()
    assert row is not None
    return int(row[0])


async def test_each_action_is_done_from_its_page_and_is_on_record_under_the_name_of_who_asked(
    rota_app: TestRota, rota_database: str, history_aside: None
) -> None:
    visitor = Visitor(rota_app.dashboard(auth="ana:a-long-password"), auth=ANA)
    told: dict[str, tuple[int, int]] = {}
    async with busy_world(rota_app, rota_database) as known:
        token = await visitor.token("queues")
        for action, fields in DEEDS:
            before = entries(rota_database)
            given = {name: known.get(text.strip("{}"), text) for name, text in fields.items()}
            answer = await visitor.act(HOMES[action].format(**known), action, token=token, **given)
            told[action] = (answer.status_code, entries(rota_database) - before)
            assert answer.status_code == 303, f"{action}: {await visitor.said('')}"

    assert [action for action, (_, added) in told.items() if added < 1] == []


@pytest.mark.writes_nothing
@pytest.mark.parametrize("name", ACTIONS)
async def test_nobody_else_can_have_it_done(name: str, rota_app: TestRota) -> None:
    path, action = HOMES[name].format(dead=7), ACTIONS[name]
    others = [right for right in RIGHTS if right != action.right]
    lacking = Visitor(rota_app.dashboard(auth=lambda request: User("eve", others)))
    ana = Visitor(rota_app.dashboard(auth=lambda request: User("ana", "all")))
    read_only = Visitor(rota_app.dashboard(read_only=True))
    fields = dict.fromkeys(action.fields, "x")

    refused = [
        await lacking.act(path, name, token=await lacking.token("queues"), **fields),
        await ana.act(path, name, token="", **fields),
        await ana.act(path, name, token=await lacking.token("queues"), **fields),
        await ana.act(path, name, token=await ana.token("queues"), headers={"sec-fetch-site": "cross-site"}, **fields),
        await lacking.client.post(f"{API}/{name}", json={}),
        await read_only.client.post(f"{API}/{name}", json={}),
        await ana.client.post(f"{API}/{name}", json={}, headers={"origin": "https://evil.example"}),
    ]

    assert [answer.status_code for answer in refused] == [403] * 7


def alerts(page: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r'role="alert">([^<]*)</p>', page)]


@pytest.mark.writes_nothing
@pytest.mark.parametrize("name", ACTIONS)
async def test_what_cannot_be_done_comes_back_with_all_that_was_typed_and_why(name: str, rota_app: TestRota) -> None:
    action, visitor = ACTIONS[name], Visitor(rota_app.dashboard())
    # of a queue nobody has heard of one may speak, but not at such length
    typed = {
        field: f"<{field}> & so on" + "." * 2000 * (each.kind == "queue") for field, each in action.fields.items()
    } | {TYPED: "something else"}

    answer = await visitor.act(HOMES[name].format(dead=7), name, token=await visitor.token("queues"), **typed)

    assert answer.status_code in (404, 409, 422), answer.text
    assert alerts(answer.text)
    asked = re.search(r'<section class="asked".*?</section>', answer.text, re.DOTALL)
    assert asked is not None
    if "<form" in asked[0]:
        kept = html.unescape(asked[0])
        is_kept = {field: typed[field] in kept for field, each in action.fields.items() if not _is_picked(each)}
        assert all(is_kept.values()), is_kept
    else:
        assert all(each.fixed for each in action.fields.values())


def _is_picked(field: Any) -> bool:
    """Whether one does not type it: a box to tick, or one of few."""
    return field.kind == "flag" or bool(field.choices)


@pytest.mark.writes_nothing
async def test_the_field_that_is_wrong_has_the_error_beside_it(rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard())

    answer = await visitor.act("queues", "queues.limit", name="mail", running="many", rate="100/1m")

    field = re.search(
        r'<input name="running" value="many"[^>]*aria-describedby="asked-why"[^>]*>.*?</div>', answer.text, re.S
    )
    assert field is not None
    assert "running cannot be" in html.unescape(field[0])
    assert '<input name="rate" value="100/1m"' in answer.text
    assert '<input type="hidden" name="name" value="mail">' in answer.text


async def test_what_cannot_be_taken_back_is_done_when_its_name_is_typed(rota_app: TestRota) -> None:
    @rota_app.task
    async def tidy() -> None: ...

    await rota_app.schedules.put("nightly", task=tidy, cron="0 2 * * *")
    visitor, page = Visitor(rota_app.dashboard()), "schedule?name=nightly"

    pressed = await visitor.act(page, "schedules.delete", name="nightly")
    mistyped = await visitor.act(page, "schedules.delete", name="nightly", _typed="nightl")
    still_there = await rota_app.schedules.get("nightly")
    typed = await visitor.act(page, "schedules.delete", name="nightly", _typed="nightly")

    assert pressed.status_code == 200
    assert "Type <strong>nightly</strong> to do it" in pressed.text
    assert alerts(pressed.text) == []
    assert mistyped.status_code == 422
    assert 'value="nightl"' in mistyped.text
    assert still_there.name == "nightly"
    assert (typed.status_code, typed.headers["location"]) == (303, "schedules")
    assert [each.name for each in await rota_app.schedules.list()] == []
