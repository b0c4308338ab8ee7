"""What a browser, or someone behind one, might try."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.dashboard.visitor import PREFIX, Visitor

from rota import Job
from rota.dashboard import User
from rota.testing import TestRota

pytestmark = pytest.mark.one_server

WAYS_TO_BREAK_OUT = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</textarea></pre><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
)


async def waiting(app: TestRota, **options: Any) -> Job[Any]:
    @app.task
    async def send(to: str) -> None: ...

    return await send.using(delay="1h", **options).enqueue("ana")


def audit(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select actor, action from rota.audit order by id").fetchall()


@pytest.mark.writes_nothing
@pytest.mark.parametrize("path", ["", "jobs", "jobs/7", "nowhere", "static/x/rota.css", "jobs?state=nonsense"])
async def test_every_answer_carries_the_policy(path: str, rota_app: TestRota) -> None:
    answer = await Visitor(rota_app.dashboard()).get(path)

    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.writes_nothing
async def test_nobody_from_another_origin_is_told_that_they_may(rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard())
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}

    answer = await visitor.client.options(f"{PREFIX}/jobs", headers=asked)

    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
    ],
)
async def test_a_form_that_another_site_sends_changes_nothing_even_with_the_token(
    headers: dict[str, str], rota_app: TestRota, rota_database: str
) -> None:
    job = await waiting(rota_app)
    visitor = Visitor(rota_app.dashboard())

    answer = await visitor.act(f"jobs/{job.id}", "jobs.cancel", id=str(job.id), headers=headers)

    assert answer.status_code == 403
    assert (await rota_app.jobs.get(job.id)).state == "queued"
    assert audit(rota_database) == []


@pytest.mark.parametrize("token", ["", "0" * 64, "é", "\ud800".encode(errors="surrogatepass").decode(errors="replace")])
async def test_a_form_without_its_token_changes_nothing(token: str, rota_app: TestRota) -> None:
    job = await waiting(rota_app)
    visitor = Visitor(rota_app.dashboard())
    await visitor.get("jobs")

    answer = await visitor.act(f"jobs/{job.id}", "jobs.cancel", token=token, id=str(job.id))

    assert answer.status_code == 403
    assert (await rota_app.jobs.get(job.id)).state == "queued"


async def test_the_token_of_one_user_or_browser_is_none_of_another(rota_app: TestRota) -> None:
    job = await waiting(rota_app)
    page = f"jobs/{job.id}"
    dashboard = rota_app.dashboard(auth={"ana:a-long-password": "all", "bob:b-long-password": "all"})
    ana, bob = (Visitor(dashboard, auth=(name, f"{name[0]}-long-password")) for name in ("ana", "bob"))
    theirs = await ana.token(page)
    await bob.get("jobs")
    same_browser = Visitor(dashboard, auth=("bob", "b-long-password"))
    same_browser.client.cookies = ana.client.cookies

    for visitor in (bob, same_browser):
        assert (await visitor.act(page, "jobs.cancel", token=theirs, id=str(job.id))).status_code == 403
    assert (await ana.act(page, "jobs.cancel", token=theirs, id=str(job.id))).status_code == 303


async def test_a_token_holds_in_every_process_with_the_same_settings(rota_app: TestRota) -> None:
    job = await waiting(rota_app)
    page = f"jobs/{job.id}"
    one, other = (Visitor(rota_app.dashboard(auth="a-long-token"), auth=("x", "a-long-token")) for _ in range(2))
    token = await one.token(page)
    other.client.cookies = one.client.cookies

    assert (await other.act(page, "jobs.cancel", token=token, id=str(job.id))).status_code == 303


async def test_nobody_does_what_they_have_no_right_to_and_no_button_for(rota_app: TestRota, rota_database: str) -> None:
    job = await waiting(rota_app)
    page = f"jobs/{job.id}"
    visitor = Visitor(rota_app.dashboard(auth=lambda request: User("ana", ["jobs.retry"])))
    shown = (await visitor.get(page)).text

    answer = await visitor.act(page, "jobs.cancel", id=str(job.id))

    assert answer.status_code == 403
    assert "jobs.cancel" in answer.text
    assert 'value="jobs.retry"' in shown
    assert 'value="jobs.cancel"' not in shown
    assert audit(rota_database) == []


async def test_read_only_is_stronger_than_any_right(rota_app: TestRota) -> None:
    job = await waiting(rota_app)
    page = f"jobs/{job.id}"
    open_, closed = (
        Visitor(rota_app.dashboard(auth=lambda request: User("ana", "all"), read_only=read_only))
        for read_only in (False, True)
    )
    token = await open_.token(page)
    closed.client.cookies = open_.client.cookies

    answer = await closed.act(page, "jobs.cancel", token=token, id=str(job.id))

    assert answer.status_code == 403
    assert "_token" not in (await closed.get(page)).text


async def test_an_action_of_another_page_is_none_of_this_one(rota_app: TestRota) -> None:
    job = await waiting(rota_app)
    visitor = Visitor(rota_app.dashboard())

    answer = await visitor.act(f"jobs/{job.id}", "queues.pause", name="default")

    assert answer.status_code == 400
    assert (await rota_app.queues.get("default")).paused_at is None


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"action=" + b"x" * 70_000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"a=1" for _ in range(200)), "application/x-www-form-urlencoded", 400),
        (b"a=%ff", "application/x-www-form-urlencoded", 400),
        (b'{"action": "jobs.cancel"}', "application/json", 415),
        (b"", "multipart/form-data; boundary=x", 415),
    ],
)
async def test_what_is_no_form_is_refused(body: bytes, kind: str, status: int, rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard())

    answer = await visitor.client.post(f"{PREFIX}/jobs", content=body, headers={"content-type": kind})

    assert answer.status_code == status


@pytest.mark.parametrize("text", WAYS_TO_BREAK_OUT)
async def test_what_people_store_is_shown_as_text_wherever_it_stands(text: str, rota_app: TestRota) -> None:
    @rota_app.task(name=f"task{text}", queue=f"queue{text}", retry=None)
    async def fail(argument: str) -> None:
        raise ValueError(f"error{text}")

    dead = await fail.using(tags=[f"tag{text}"], key=f"key{text}").enqueue(f"argument{text}")
    await rota_app.drain()
    cancelled = await fail.using(delay="1h").enqueue("x")
    await rota_app.jobs.cancel(cancelled.id, f"reason{text}", by=f"by{text}")
    await rota_app.queues.pause(f"queue{text}", f"pause{text}")
    visitor = Visitor(rota_app.dashboard())

    for path in ("", "jobs", f"jobs/{dead.id}", f"jobs/{cancelled.id}", "jobs?task=" + text):
        page = (await visitor.get(path)).text
        for dangerous in ("<script>alert", "<img src=x", "<svg onload", 'href="javascript:', "49{"):
            assert dangerous not in page, path


async def test_two_at_once_are_on_record_under_their_own_names(rota_app: TestRota, rota_database: str) -> None:
    jobs = [await waiting(rota_app) for _ in range(2)]
    dashboard = rota_app.dashboard(auth={"ana:a-long-password": "all", "bob:b-long-password": ["jobs.cancel"]})
    people = [Visitor(dashboard, auth=(name, f"{name[0]}-long-password")) for name in ("ana", "bob")]

    answers = await asyncio.gather(
        *(
            each.act(f"jobs/{job.id}", "jobs.cancel", id=str(job.id), reason="by hand")
            for each, job in zip(people, jobs, strict=True)
        )
    )

    assert [answer.status_code for answer in answers] == [303, 303]
    assert sorted(audit(rota_database)) == [("ana", "cancel"), ("bob", "cancel")]
    assert {(await rota_app.jobs.get(job.id)).reason for job in jobs} == {"by hand"}
