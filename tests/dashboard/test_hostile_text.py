"""Whatever stands in any column is shown as the text that it is, on every page, in every fragment and in the API."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from tests.dashboard.hostile import CORPUS, MARK, SHORTEST, Planted, plant, read
from tests.dashboard.visitor import Visitor
from tests.dashboard.world import make_world

from rota.dashboard.api.openapi import document
from rota.dashboard.pages import PAGES
from rota.testing import DatabaseServer, TestRota

pytestmark = pytest.mark.one_server


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture
async def planted(rota_app: TestRota, rota_database: str, history_aside: None) -> Planted:
    await make_world(rota_app, rota_database)
    return plant(rota_database)


def written(dsn: str, column: str, table: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return [each for (each,) in connection.execute(f"select {column} from rota.{table}").fetchall()]


def addresses(dsn: str) -> list[str]:
    """Every page there is, of all that can be asked for by name."""
    jobs = [id for table in ("jobs", "history", "dead") for id in written(dsn, "id", table)]
    of_one = {
        "job": [f"jobs/{id}" for id in jobs],
        "schedule": [f"schedule?name={quote(name)}" for name in written(dsn, "name", "schedules")],
        "projection": [f"projection?name={quote(name)}" for name in written(dsn, "name", "projections")],
    }
    of_one |= {
        "poller": [f"poller?name={quote(name)}" for name in written(dsn, "name", "pollers")],
        "bulk one": [f"bulk/{id}" for id in written(dsn, "id", "bulks")],
        "schedule-edit": [each.replace("schedule?", "schedule/edit?") for each in of_one["schedule"]],
    }
    filtered = [f"{page}?task={quote(SHORTEST)}&error={quote(SHORTEST)}" for page in ("jobs", "dead", "jobs/99999")]
    return [*(each for page in PAGES for each in of_one.get(page.name, [page.path.lstrip("/")])), *filtered]


async def test_every_text_column_takes_such_texts_unless_a_check_says_what_may_stand_there(planted: Planted) -> None:
    must = {("history", "task"), ("jobs", "queue"), ("dead", "error_message"), ("members", "name"), ("audit", "actor")}
    must |= {("schedules", "note"), ("terms", "holder"), ("pollers", "name"), ("parked_events", "stream")}

    assert must <= planted.taken
    assert planted.empty == set()
    # states and kinds, of which there are only so many
    assert {column for _, column in planted.refused} <= {
        *("state", "kind", "cause", "outcome", "reason", "resolution", "end_reason", "span"),
        *(
            "misfire",
            "overlap",
            "dst_gap",
            "dst_overlap",
            "cron",
            "every",
            "event",
            "gives",
            "on_failure",
            "ended",
            "wish",
            "action",
        ),
        "class",
    }


async def test_no_element_attribute_or_address_of_any_page_or_fragment_comes_from_a_text(
    planted: Planted, rota_app: TestRota, rota_database: str
) -> None:
    visitor = Visitor(rota_app.dashboard())
    shown = 0

    for address in addresses(rota_database):
        page = await visitor.get(address)
        assert page.status_code == (404 if "99999" in address else 200), address
        assert "cannot be read now" not in page.text
        assert read(page.text).found == [], address
        shown += MARK in " ".join(read(page.text).texts)
    for page in PAGES:
        for region in page.regions:
            for address in (
                each for each in addresses(rota_database) if each.partition("?")[0] == page.path.lstrip("/")
            ):
                fragment = await visitor.get(f"{address}{'&' if '?' in address else '?'}_fragment={region.name}")
                assert read(fragment.text).found == [], (address, region.name)

    assert shown > len(PAGES)


async def test_the_api_gives_such_texts_as_json_that_no_browser_takes_for_a_page(
    planted: Planted, rota_app: TestRota, rota_database: str
) -> None:
    visitor = Visitor(rota_app.dashboard())
    name = {
        "schedule": written(rota_database, "name", "schedules")[0],
        "leader": written(rota_database, "name", "leases")[0],
        "poller": written(rota_database, "name", "pollers")[0],
        "projection": written(rota_database, "name", "projections")[0],
        "queue": written(rota_database, "queue", "jobs")[0],
    }
    dead = written(rota_database, "id", "dead")[0]
    texts = ""

    for path, methods in document()["paths"].items():
        if "get" not in methods:
            continue
        asked = path.replace("{id}", str(dead)).lstrip("/")
        what = asked.partition("/")[0]
        answer = await visitor.get(f"api/v1/{asked}", params={"name": name[what]} if what in name else None)
        assert answer.status_code in (200, 404, 409, 422), path
        assert answer.headers["content-type"].split(";")[0] in ("application/json", "application/problem+json"), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        texts += json.dumps(answer.json(), ensure_ascii=False)

    assert "<zq>" in texts
    assert json.dumps(CORPUS[0])[1:-1] in texts
