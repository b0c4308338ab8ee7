"""Every page shows what there is of its kind, and each of its buttons does what it says and is on record."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin

import psycopg
import pytest
from tests.dashboard.visitor import PREFIX, Visitor
from tests.dashboard.world import World, make_world

from rota.dashboard.pages import MENU, PAGES
from rota.testing import TestRota

pytestmark = pytest.mark.one_server

ANA = ("ana", "a-long-password")


@pytest.fixture
async def world(rota_app: TestRota, rota_database: str, history_aside: None) -> World:
    return await make_world(rota_app, rota_database)


@pytest.fixture
def visitor(rota_app: TestRota) -> Visitor:
    return Visitor(rota_app.dashboard(auth="ana:a-long-password"), auth=ANA)


def actions_of(page: str) -> set[str]:
    return set(re.findall(r'name="action" value="([\w.]+)"', page))


def record(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as connection:
        entries = "select actor, action from rota.audit where actor = 'ana' order by id"
        return connection.execute(entries).fetchall()


SHOWN = {
    "": ("things need you", "projection totals has stopped", "1 dead letters wait", "2 rows of poller fetch"),
    "jobs": ("send", "fail", "cancelled"),
    "queues": ("mail", "default"),
    "dead": ("ValueError", "cannot do 7", "open letter fits"),
    "bulk": ("No bulk was begun", "say which here"),
    "bulk/new": ("Nothing is changed by looking",),
    "bulk/new?do=cancel&state=queued": ("Cancel: 1 job", "It can be undone", "Type <strong>cancel</strong>", "bob"),
    "schedules": ("reports/nightly", "quarter of an hour", "The next"),
    "schedule?name=reports%2Fnightly": ("Europe/Berlin", "Next 10", "Run now", "planned"),
    "schedule/edit": ("A new schedule", "Preview", "Save"),
    "schedule/edit?name=reports%2Fnightly": (
        'value="0 2 * * *"',
        'value="Europe/Berlin"',
        "&#34;to&#34;: &#34;all&#34;",
    ),
    "members": ("stopped cleanly", "indexer", "Who led when", "Nobody holds a lock"),
    "pollers": ("public.feeds", "no such feed", "Release 2 parked"),
    "projections": ("KeyError", "Skip the event", "Replay 1 parked", "order-1"),
    "poller?name=fetch": ("public.feeds", "no such feed", "Release 2 parked", "Ask PostgreSQL", "No row is polled"),
    "poller?name=fetch&check=1": ("No index leads to the due rows", "Copy"),
    "projection?name=counts": (
        "KeyError",
        "Paid at 1 of order-1",
        "&#34;sum&#34;: 7",
        "Give up all 1",
        "100 %, 0 event(s)",
    ),
    "projection?name=stock&version=1": ("Rebuild", "Rewind", "Readers use it since", "Nothing is parked"),
    "database": ("Tables", "history", "PostgreSQL"),
    "audit": ("cancel",),
    "about": ("applied", "openapi.json"),
    "about?examine=1": ("checks in", "dead letters"),
}


async def test_every_page_shows_its_part_of_the_world_and_all_its_links_lead_somewhere(
    world: World, visitor: Visitor
) -> None:
    seen: set[str] = set()
    for path, texts in SHOWN.items():
        page = await visitor.get(path)
        assert page.status_code == 200, path
        assert [text for text in texts if text not in page.text] == [], path
        links = re.findall(r'href="([^"#]+)"', page.text)
        seen |= {urljoin(f"{PREFIX}/{path}", link.replace("&amp;", "&")) for link in links}

    assert {PREFIX + page.path for page in PAGES if "{" not in page.path} <= {link.partition("?")[0] for link in seen}
    for link in sorted(seen):
        assert (await visitor.client.get(link)).status_code == 200, link


async def test_each_button_does_what_it_says_under_the_name_of_who_pressed_it(
    world: World, visitor: Visitor, rota_app: TestRota, rota_database: str
) -> None:
    async def press(path: str, action: str, **fields: Any) -> str:
        answer = await visitor.act(path, action, **fields)
        assert answer.status_code == 303, answer.text
        return await visitor.said(path)

    nightly, schedule = {"name": "reports/nightly"}, "schedule?name=reports%2Fnightly"
    told = [
        await press("queues", "queues.pause", name="mail", reason="provider outage", **{"for": "30m"}),
        await press("queues", "queues.limit", name="mail", running="3", rate="100/1m"),
        await press("queues", "queues.weigh", name="mail", weight="2.5"),
    ]
    mail = await rota_app.queues.get("mail")
    told += [
        await press("queues", "queues.resume", name="mail"),
        await press("queues", "queues.limit", name="mail", running="", rate=""),
        await press("queues", "queues.pause", name="", reason="all of it"),
    ]
    everything = await rota_app.queues.get(None)
    told += [
        await press("queues", "queues.resume", name=""),
        await press(schedule, "schedules.pause", **nightly),
        await press(schedule, "schedules.resume", **nightly),
        await press(schedule, "schedules.skip", **nightly),
        await press(schedule, "schedules.trigger", **nightly),
        await press(schedule, "schedules.backfill", **nightly, start="2030-01-01T00:00Z", end="2030-01-03T00:00Z"),
        await press("pollers", "pollers.pause", name="fetch"),
        await press("pollers", "pollers.resume", name="fetch"),
        await press("pollers", "pollers.release", name="fetch", keys="[1]"),
        await press("projections", "projections.skip", name="totals"),
        await press("projections", "projections.resume", name="totals", version="1"),
        await press("projections", "projections.pause", name="totals", version="1"),
        await press("projections", "projections.replay", name="counts", version="1", positions='["1"]'),
        await press("projections", "projections.drop", name="counts", version="1", _typed="counts"),
        await press("dead?task=fail", "dead.retry_many", task="fail"),
        await press(schedule, "schedules.delete", **nightly, _typed="reports/nightly"),
    ]

    assert (mail.pause_reason, mail.paused_by, mail.running_limit, mail.rate, mail.weight) == (
        "provider outage",
        "ana",
        3,
        "100/1m",
        2.5,
    )
    assert mail.paused_until is not None
    assert everything.pause_reason == "all of it"
    after = await rota_app.queues.get("mail")
    assert (after.paused_at, after.running_limit, after.rate) == (None, None, None)
    assert (await rota_app.dead.get(world.dead.id)).resolved_by == "ana"
    assert [poller.parked for poller in await rota_app.pollers.list()] == [1]
    assert {view.name: (view.state, view.parked) for view in await rota_app.projections.list()} == {
        "totals": ("paused", 0),
        "counts": ("running", 0),
        "stock": ("running", 0),
    }
    assert [text for text in told if "cannot" in text or not text] == []
    assert len(record(rota_database)) >= len(told) - 2


async def test_what_cannot_be_done_is_said_and_leaves_no_record(
    world: World, visitor: Visitor, rota_database: str
) -> None:
    token = await visitor.token("queues")
    answers = {
        (path, action): (await visitor.act(path, action, token=token, **fields), await visitor.said(path))[1]
        for path, action, fields in [
            ("queues", "queues.pause", {"reason": "no name at all"}),
            ("queues", "queues.limit", {"name": "mail", "running": "-1"}),
            ("queues", "queues.weigh", {"name": "mail", "weight": "heavy"}),
            ("members", "leaders.resign", {"name": "nothing"}),
            ("pollers", "pollers.pause", {"name": "nothing"}),
            ("projections", "projections.pause", {"name": "nothing"}),
            ("dead", "dead.acknowledge", {"id": "99999"}),
        ]
    }

    assert [asked for asked, said in answers.items() if not said] == []
    assert record(rota_database) == []


async def test_who_may_only_look_sees_every_page_without_a_button(world: World, rota_app: TestRota) -> None:
    looker = Visitor(rota_app.dashboard(read_only=True))

    buttons = {path: actions_of((await looker.get(path)).text) for path in (entry.path.lstrip("/") for entry in MENU)}

    assert not any(buttons.values())


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    "page",
    [
        page.path.lstrip("/")
        for page in PAGES
        if "{" not in page.path and page.name not in ("schedule", "poller", "projection")
    ],
)
async def test_a_page_of_nothing_says_what_would_be_there(page: str, rota_app: TestRota) -> None:
    answer = await Visitor(rota_app.dashboard()).get(page)

    assert answer.status_code == 200
    assert "cannot be read now" not in answer.text


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("schedule?name=none", 404),
        ("schedule/edit?name=none", 404),
        ("schedule", 422),
        ("projection?name=none", 409),
        ("projection", 422),
        ("poller?name=none", 409),
        ("poller", 422),
        ("projection?name=none&version=x", 422),
        ("projection?name=none&version=99999999999", 422),
        ("dead?reason=bored", 422),
        ("schedules?state=lost", 422),
    ],
)
async def test_what_is_not_there_is_said(path: str, status: int, rota_app: TestRota) -> None:
    assert (await Visitor(rota_app.dashboard()).get(path)).status_code == status
