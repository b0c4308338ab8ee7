"""Putting and changing schedules on a page: what would be is shown first, and what is not said stays as it is."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.dashboard.visitor import PREFIX, Visitor

from rota.testing import TestRota

pytestmark = pytest.mark.one_server

EDIT = "schedule/edit?name=report"
PREVIEWS = f"{PREFIX}/api/v1/previews"


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(queue="mail")
    async def send(to: str, copies: int = 1) -> None: ...

    return rota_app


async def form_of(visitor: Visitor, path: str) -> dict[str, str]:
    """What a browser would send that changes nothing."""
    page = (await visitor.get(path)).text
    form = re.search(r'<form method="post" class="whole">.*?</form>', page, re.DOTALL)
    assert form is not None
    found = dict(re.findall(r'<input[^>]*name="([a-z]\w*)" value="([^"]*)"', form[0]))
    found |= dict.fromkeys(re.findall(r'<textarea name="(\w+)"', form[0]), "")
    for name, choices in re.findall(r'<select name="(\w+)">(.*?)</select>', form[0]):
        chosen = re.search(r"<option selected>(\w+)", choices)
        found[name] = chosen[1] if chosen else ""
    del found["action"]
    return {name: html.unescape(text) for name, text in found.items()}


def cells(page: str) -> list[list[str]]:
    table = re.search(r'aria-label="What it would do">.*?</table>', page, re.DOTALL)
    assert table is not None
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table[0])[1:]]


async def test_a_new_schedule_is_foretold_in_its_zone_and_in_utc_and_then_put(app: TestRota) -> None:
    visitor = Visitor(app.dashboard())
    words = {"name": "report", "task": "send", "args": '{"to": "ana"}', "cron": "0 7 * * mon", "tz": "America/New_York"}
    blank = {**await form_of(visitor, "schedule/edit"), **words, "start_at": "2080-01-01T00:00Z"}

    shown = await visitor.act("schedule/edit", "schedules.put", **blank, _preview="1")
    nothing_yet = await app.schedules.list()
    put = await visitor.act("schedule/edit", "schedules.put", **blank)

    assert shown.status_code == 200
    assert "At 07:00 on Monday, America/New_York time" in shown.text
    rows = cells(shown.text)
    assert len(rows) == 10
    slots = [slot.strftime("%Y-%m-%d %H:%M:%S") for slot in await app.schedules.preview("report")]
    assert [utc for _, utc in rows] == slots
    assert all(re.fullmatch(r"Mon \d{4}-\d\d-\d\d 07:00:00 E[SD]T", local) for local, _ in rows)
    assert nothing_yet == []
    assert (put.status_code, put.headers["location"]) == (303, "../schedule?name=report")
    schedule = await app.schedules.get("report")
    assert (schedule.args, schedule.cron, schedule.queue) == ({"to": "ana"}, "0 7 * * mon", "mail")


@pytest.mark.parametrize(
    "words",
    [
        {
            "cron": "0 9 * * *",
            "tz": "Europe/Berlin",
            "jitter": "90s",
            "tags": ["a", "b"],
            "dst_gap": "skip",
            "key": "k",
        },
        {
            "every": "90m",
            "overlap": "queue",
            "misfire": "all",
            "misfire_grace": "5m",
            "max_runs": 7,
            "note": "now & then",
        },
        {"every": "10m", "counted_from": "end"},
        {"at": datetime(2080, 1, 31, 9, tzinfo=UTC)},
        {"on": "paid"},
        {},
    ],
    ids=["cron", "every", "delay", "once", "event", "manual"],
)
async def test_a_form_that_is_sent_as_it_came_changes_nothing(app: TestRota, words: dict[str, Any]) -> None:
    before = await app.schedules.put("report", task="send", args={"to": "ana"}, **words)
    visitor = Visitor(app.dashboard())

    answer = await visitor.act(EDIT, "schedules.change", **await form_of(visitor, EDIT))

    assert answer.status_code == 303, answer.text
    assert (await app.schedules.get("report")).revision == before.revision


async def test_what_is_said_changes_what_is_emptied_is_taken_back_and_the_rest_stays(app: TestRota) -> None:
    await app.schedules.put(
        "report", task="send", args={"to": "ana"}, cron="0 9 * * *", tz="Europe/Berlin", note="old", key="k"
    )
    visitor = Visitor(app.dashboard())
    form = await form_of(visitor, EDIT)

    await visitor.act(
        EDIT, "schedules.change", **{**form, "cron": "", "every": "2h", "note": "", "args": '{"copies": 2}'}
    )

    schedule = await app.schedules.get("report")
    assert (schedule.cron, schedule.every, schedule.note, schedule.key) == (None, "2h", None, "k")
    assert (schedule.args, schedule.tz) == ({"to": "ana", "copies": 2}, "Europe/Berlin")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("cron", "0 9 * * mom"),
        ("args", '{"copies": "many"}'),
        ("tz", "Europe/Berlino"),
        ("jitter", "a while"),
        ("max_runs", "few"),
    ],
)
async def test_a_mistake_in_the_form_stands_beside_its_field(app: TestRota, field: str, text: str) -> None:
    await app.schedules.put("report", task="send", args={"to": "ana"}, cron="0 9 * * *")
    visitor = Visitor(app.dashboard())
    form = {**await form_of(visitor, EDIT), field: text, "note": "typed before"}

    answer = await visitor.act(EDIT, "schedules.change", **form)

    assert answer.status_code == 422
    wrong = re.search(r'name="(\w+)"[^>]*aria-invalid="true"', answer.text)
    assert wrong is not None
    assert wrong[1] == field
    assert html.escape(text, quote=False) in answer.text.replace("&#34;", '"')
    assert 'value="typed before"' in answer.text
    assert (await app.schedules.get("report")).note is None


async def test_a_backfill_tells_its_slots_first(app: TestRota) -> None:
    await app.schedules.put("report", task="send", args={"to": "ana"}, cron="0 2 * * *", tz="Europe/Berlin")
    visitor, page = Visitor(app.dashboard()), "schedule?name=report"
    start = datetime(2020, 1, 1, tzinfo=UTC)
    asked = {"name": "report", "start": start.isoformat(), "end": (start + timedelta(days=30)).isoformat()}

    shown = await visitor.act(page, "schedules.backfill", **asked, _preview="1")
    told = (await visitor.client.post(f"{PREVIEWS}/schedules.backfill", json=asked)).json()
    before = await app.schedules.history("report")
    await visitor.act(page, "schedules.backfill", **asked)
    again = (await visitor.client.post(f"{PREVIEWS}/schedules.backfill", json=asked)).json()

    assert "30 slot(s) of this time have not run, and would. These are the first 20." in shown.text
    assert len(cells(shown.text)) == 20
    assert told["columns"] == ["Europe/Berlin", "UTC"]
    assert told["rows"][0] == ["Wed 2020-01-01 02:00:00 CET", "2020-01-01 01:00:00"]
    assert before == []
    assert (await app.schedules.get("report")).waiting == 30
    assert again == {"said": "All slots of it have run.", "columns": ["Europe/Berlin", "UTC"], "rows": []}


async def test_redacted_arguments_are_not_in_the_form(app: TestRota) -> None:
    await app.schedules.put("report", task="send", args={"to": "ana@example.org"}, cron="0 9 * * *")
    visitor = Visitor(app.dashboard(redact=["to"]))

    page = await visitor.get(EDIT)
    await visitor.act(EDIT, "schedules.change", **{**await form_of(visitor, EDIT), "cron": "0 8 * * *"})

    assert "ana@example.org" not in page.text
    changed = await app.schedules.get("report")
    assert (changed.cron, changed.args["to"]) == ("0 8 * * *", "ana@example.org")
