"""Many jobs are changed from the pages and by the API: seen first, meant, under one's own name, and within one's rights."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from tests.dashboard.visitor import PREFIX, Visitor
from tests.jobs.bulk_turns import turned

from rota import Job
from rota.dashboard import User
from rota.testing import TestRota, until

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("history_aside")]

API = f"{PREFIX}/api/v1"
NASTY = '<script>alert("x")</script>'


async def some_jobs(app: TestRota, count: int = 7) -> list[Job[Any]]:
    task = app.task(name="send", queue="mail")(lambda to: None)
    return await app.enqueue_many([task.using(delay="1h", tags=["blue"]).bind(f"user {n}") for n in range(count)])


def form_of(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the form of this action."""
    forms = re.findall(r"<form method=\"post\".*?</form>", page, re.DOTALL)
    (form,) = [each for each in forms if f'value="{action}"' in each]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    return {name: html.unescape(value) for name, value in fields.items() if name not in ("_token", "action")}


async def shown(visitor: Visitor, path: str, text: str) -> str | None:
    """The page, once it has this."""
    page = (await visitor.get(path)).text
    return page if text in page else None


async def test_a_selection_is_seen_first_then_done_watched_and_undone_without_any_script(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard(auth="ana:a-long-password"), auth=("ana", "a-long-password"))

    listed = (await visitor.get("jobs")).text
    boxes = re.findall(r'<input type="checkbox" name="id" value="(\d+)" form="selected"', listed)
    path = f"bulk/new?id={boxes[0]}&id={boxes[1]}&do=cancel"
    preview = (await visitor.get(path)).text
    untyped = await visitor.act(path, "bulk.cancel", **form_of(preview, "bulk.cancel"))
    typed = await visitor.act(path, "bulk.cancel", **form_of(preview, "bulk.cancel"), _typed="cancel", reason="no")
    begun = (await visitor.get("bulk/1")).text
    await turned(rota_app, await rota_app.bulk.get(1))
    # a page shows for a moment what it knew
    ended = await until(lambda: shown(visitor, "bulk/1", "2 of 2 cancelled"), what="the page shows the end")
    cancelled = [(await job.refresh()).reason for job in jobs]
    undone = await visitor.act("bulk/1", "bulk.undo", id="1")
    bulk = await turned(rota_app, await rota_app.bulk.get(1))

    assert [int(each) for each in boxes] == [job.id for job in reversed(jobs)]
    assert "Cancel: 2 jobs" in preview
    assert "No worker is running that would do it" in preview
    assert "They wait again as they did" in preview
    assert (untyped.status_code, (await rota_app.bulk.list())[-1].id) == (200, 1)
    assert (typed.status_code, typed.headers["location"]) == (303, "../bulk/1")
    assert "0 of 2 cancelled" in begun
    assert 'value="bulk.stop"' in begun
    assert 'value="bulk.undo"' in ended
    assert cancelled == [None] * 5 + ["no"] * 2
    assert undone.status_code == 303
    assert (bulk.state, bulk.undone, bulk.actor) == ("undone", 2, "ana")
    assert {(await job.refresh()).state for job in jobs} == {"queued"}


async def test_all_that_fit_a_search_are_changed_by_the_filter_of_the_page(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())

    listed = (await visitor.get("jobs?tag=blue&arg=to%3Duser+3")).text
    kept = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', listed)
    path = "bulk/new?" + "&".join(f"{name}={value.replace('=', '%3D')}" for name, value in kept) + "&do=move"
    preview = (await visitor.get(path)).text
    unsaid = await visitor.act(path, "bulk.move", **form_of(preview, "bulk.move"))
    await visitor.act(path, "bulk.move", **form_of(preview, "bulk.move"), to="slow", pace="1000")
    told = await turned(rota_app, await rota_app.bulk.get(1))

    assert dict(kept) == {"tag": "blue", "arg": "to=user 3"}
    assert "Move: 1 job" in preview
    assert (unsaid.status_code, "move needs to" in unsaid.text) == (422, True)
    assert (told.done, told.pace) == (1, 1000)
    assert [(await job.refresh()).queue for job in jobs] == ["mail"] * 3 + ["slow"] + ["mail"] * 3


async def test_dead_letters_are_selected_and_chosen_likewise(rota_app: TestRota) -> None:
    task = rota_app.task(name="fail", retry=None)(lambda number: 1 / 0)
    letters = [await task.enqueue(n) for n in range(3)]
    await rota_app.drain()
    visitor = Visitor(rota_app.dashboard())

    page = (await visitor.get("dead?task=fail")).text
    of_reason = (await visitor.get("dead?reason=failed")).text
    resolved = (await visitor.get("dead?which=resolved")).text
    answer = await visitor.act(
        "bulk/new?do=retry&state=dead&task=fail",
        "bulk.retry",
        state="dead",
        task="fail",
        token=await visitor.token("queues"),
    )
    told = await turned(rota_app, await rota_app.bulk.get(1))

    assert re.findall(r'name="id" value="(\d+)" form="selected"', page) == [str(each.id) for each in reversed(letters)]
    assert '<input type="hidden" name="state" value="dead">' in page
    assert "All that fit:" not in of_reason
    assert "Selected letters" in of_reason
    assert 'form="selected"' not in resolved
    assert (answer.status_code, told.done) == (303, 3)


async def test_who_may_not_sees_no_box_and_no_button_and_is_refused(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app)
    looker = Visitor(rota_app.dashboard(read_only=True))
    cancels = Visitor(rota_app.dashboard(auth=lambda request: User("eve", ["jobs.cancel"])))

    pages = [(await looker.get(path)).text for path in ("jobs", "dead", "bulk", "bulk/new?do=cancel&tag=blue")]
    limited = (await cancels.get("jobs")).text
    foreign = (await cancels.get("bulk/new?do=move&tag=blue")).text
    token = await cancels.token("bulk/new?do=cancel&tag=blue")
    refused = await cancels.act("bulk/new?do=move&tag=blue", "bulk.move", token=token, tag="blue", to="slow")
    by_api = await looker.client.post(f"{API}/actions/bulk.cancel", json={"tag": "blue"})

    assert not any('form="selected"' in page or 'name="_token"' in page for page in pages)
    assert "it needs the right jobs.cancel" in pages[3]
    assert set(re.findall(r'name="do" value="(\w+)"', limited)) == {"cancel"}
    assert 'value="bulk.move"' not in foreign
    assert (refused.status_code, by_api.status_code) == (403, 403)
    assert list(await rota_app.bulk.list()) == []
    assert {(await job.refresh()).state for job in jobs} == {"queued"}


async def test_what_is_redacted_is_neither_shown_nor_chosen_by(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app, 1)
    visitor = Visitor(rota_app.dashboard(redact=["to"]))
    await rota_app.bulk.start("prioritise", priority=3, state="queued", until="0s")
    rota_app.bulk.stop_sync(1)
    by_error = {"tag": "blue", "error": "user 0", "to": "slow"}

    preview = await visitor.get("bulk/new?do=cancel&tag=blue")
    told = (await visitor.client.get(f"{API}/bulk/preview?action=cancel&tag=blue")).json()
    searched = [
        (await visitor.get("bulk/new?do=cancel&arg=to%3Duser+0")).status_code,
        (await visitor.client.get(f"{API}/bulk/preview?action=cancel&error=user")).status_code,
        (await visitor.client.post(f"{API}/actions/bulk.move", json=by_error)).status_code,
        (await visitor.client.post(f"{API}/actions/bulk.move", json={"arg": "to=user 0", "to": "x"})).status_code,
        (await visitor.act("bulk/new?do=move&tag=blue", "bulk.move", **by_error)).status_code,
    ]

    assert "Cancel: 1 job" in preview.text
    assert "user 0" not in preview.text
    assert "user 0" not in str(told)
    assert told["count"] == 1
    letters = await visitor.act("dead", "dead.retry_many", error="user 0", token=await visitor.token("queues"))

    assert (searched, letters.status_code) == ([422] * 5, 422)
    assert (await jobs[0].refresh()).queue == "mail"


async def test_an_error_that_jobs_were_chosen_by_is_not_shown_where_arguments_are_redacted(rota_app: TestRota) -> None:
    task = rota_app.task(name="fail", retry=None)(lambda card: (_ for _ in ()).throw(ValueError(f"no card {card}")))
    await task.enqueue("4111")
    await rota_app.drain()
    await rota_app.bulk.start("acknowledge", error="card 4111")
    visitor = Visitor(rota_app.dashboard(redact=["card"]))

    pages = [(await visitor.get(path)).text for path in ("bulk", "bulk/1")]
    told = (await visitor.client.get(f"{API}/bulk/1")).text

    assert not any("4111" in text for text in (*pages, told))


async def test_text_of_others_is_shown_as_text(rota_app: TestRota) -> None:
    task = rota_app.task(name=NASTY, queue=NASTY)(lambda to: None)
    await task.using(delay="1h", tags=[NASTY]).enqueue(NASTY)
    visitor = Visitor(rota_app.dashboard(auth=lambda request: User(NASTY, "all")))
    filters: dict[str, Any] = {"tag": NASTY, "task": NASTY, "queue": NASTY}
    await rota_app.bulk.start("move", to=NASTY + "!", by=NASTY, **filters)

    path = "bulk/new?do=cancel&tag=%3Cscript%3Ealert(%22x%22)%3C%2Fscript%3E"
    pages = [(await visitor.get(each)).text for each in ("jobs", "bulk", "bulk/1", path)]

    assert not any("<script>alert" in page for page in pages)
    assert all("&lt;script&gt;alert" in page for page in pages)


async def test_the_api_shows_begins_tells_stops_and_undoes(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())

    async def act(action: str, **fields: Any) -> Any:
        return await visitor.client.post(f"{API}/actions/bulk.{action}", json=fields)

    async def get(path: str) -> Any:
        return (await visitor.client.get(f"{API}/{path}")).json()

    preview = await get(f"bulk/preview?action=cancel&ids={jobs[0].id},{jobs[1].id}")
    which = await act("cancel")
    begun = (await act("cancel", tag="blue", pace=0.01)).json()["result"]
    await turned(rota_app, await rota_app.bulk.get(int(begun["id"])))
    shown = await get(f"bulk/{begun['id']}")
    listed = await get("bulk?which=open")
    stopped = (await act("stop", id=begun["id"])).json()["result"]
    undone = (await act("undo", id=begun["id"])).json()
    back = await turned(rota_app, await rota_app.bulk.get(int(begun["id"])))
    again = await act("stop", id=begun["id"])

    assert (preview["count"], preview["exact"], preview["excluded"]) == (2, True, {})
    assert (which.status_code, "all=true" in which.json()["detail"]) == (422, True)
    assert (begun["id"], begun["total"], begun["state"]) == ("1", 7, "running")
    assert (shown["done"], round(shown["progress"], 2), shown["filter"]) == (1, 0.14, {"tag": "blue"})
    assert [each["id"] for each in listed["items"]] == ["1"]
    assert (stopped["state"], stopped["undoable"]) == ("stopped", True)
    assert undone["said"] == "Bulk 1 is being undone."
    assert (back.state, back.undone) == ("undone", 1)
    assert (again.status_code, (await visitor.client.get(f"{API}/bulk/99")).status_code) == (409, 404)
