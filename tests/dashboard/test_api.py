"""The API reads what pages show and does what they do, as its description says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.dashboard.visitor import PREFIX, Visitor

from rota.dashboard.actions import ACTIONS
from rota.dashboard.api import openapi
from rota.dashboard.api.endpoints import ENDPOINTS
from rota.testing import TestRota

pytestmark = pytest.mark.one_server

API = f"{PREFIX}/api/v1"


async def act(visitor: Visitor, action: str, body: Any, **headers: str) -> Any:
    return await visitor.client.post(f"{API}/actions/{action}", json=body, headers=headers)


def test_the_description_that_is_shipped_is_that_of_the_code() -> None:
    shipped = (openapi.__file__ or "").replace("openapi.py", "openapi.json")

    with open(shipped, encoding="utf-8") as file:
        assert file.read() == openapi.text(), "run `make docs`"


def test_every_endpoint_and_action_is_described() -> None:
    described = openapi.document()["paths"]

    previews = {f"/previews/{name}" for name, action in ACTIONS.items() if action.preview}
    assert set(described) == {each.path for each in ENDPOINTS} | {f"/actions/{name}" for name in ACTIONS} | previews


async def test_jobs_are_read_page_by_page_with_ids_that_lose_no_digit(rota_app: TestRota) -> None:
    @rota_app.task
    async def count(number: int) -> None: ...

    await rota_app.enqueue_many([count.bind(2**60 + place) for place in range(5)])
    visitor, seen, after = Visitor(rota_app.dashboard()), [], ""
    while after is not None:
        page = (await visitor.client.get(f"{API}/jobs?limit=2{after and f'&after={after}'}")).json()
        seen += page["items"]
        after = page["next"]

    assert [job["id"] for job in seen] == ["5", "4", "3", "2", "1"]
    assert [job["args"]["number"] for job in seen] == [2**60 + place for place in (4, 3, 2, 1, 0)]
    one = (await visitor.client.get(f"{API}/jobs/3")).json()
    assert one == seen[2]
    explained = (await visitor.client.get(f"{API}/jobs/3/explain")).json()
    assert explained["reasons"][0].startswith("No worker is running")


async def test_an_action_is_done_by_who_is_known_and_told_in_full(rota_app: TestRota) -> None:
    @rota_app.task
    async def send(to: str) -> None: ...

    job = await send.enqueue("ana")
    visitor = Visitor(
        rota_app.dashboard(auth={"a-long-token": ["jobs.cancel", "queues.pause"]}),
        headers={"authorization": "Bearer a-long-token"},
    )

    cancelled = await act(visitor, "jobs.cancel", {"id": str(job.id), "reason": "by a program"})
    paused = await act(visitor, "queues.pause", {"name": None, "reason": "all"})
    refused = await act(visitor, "jobs.retry", {"id": str(job.id)})

    assert cancelled.json()["said"] == f"Job {job.id} is cancelled."
    assert cancelled.json()["result"]["reason"] == "by a program"
    assert paused.json()["result"]["paused_by"] == "token"
    assert (refused.status_code, refused.headers["content-type"]) == (403, "application/problem+json")
    assert "jobs.retry" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({}, 200),
    ],
)
async def test_no_page_from_elsewhere_can_have_something_done(
    headers: dict[str, str], status: int, rota_app: TestRota
) -> None:
    visitor = Visitor(rota_app.dashboard())
    sent = {"content-type": "application/json", **headers}

    answer = await visitor.client.post(f"{API}/actions/queues.pause", content=b'{"name": "mail"}', headers=sent)

    assert answer.status_code == status
    assert ((await rota_app.queues.get("mail")).paused_at is not None) == (status == 200)


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("jobs/7", 404),
        ("jobs/99999999999999999999", 404),
        ("jobs/x", 404),
        ("jobs?limit=0", 422),
        ("jobs?limit=201", 422),
        ("jobs?limit=٣", 422),
        ("jobs?state=bored", 422),
        ("jobs?nothing=1", 422),
        ("jobs?queue=", 422),
        ("schedule", 422),
        ("schedule?name=none", 404),
        ("projection?name=none", 409),
        ("nothing", 404),
    ],
)
async def test_what_does_not_fit_is_a_problem_in_words(path: str, status: int, rota_app: TestRota) -> None:
    answer = await Visitor(rota_app.dashboard()).client.get(f"{API}/{path}")

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["detail"]


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 5000, 400),
        (b'{"id": NaN}', 400),
        (b'{"id": "' + b"1" * 70_000 + b'"}', 413),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"id": 7}', 422),
        (b'{"id": "-7"}', 422),
        (b'{"id": "7", "more": 1}', 422),
        (b'{"id": "7", "reason": 7}', 422),
        (b'{"id": "7", "reason": "\\ud800"}', 422),
        (b'{"id": "7", "reason": "\\u0000"}', 422),
        (b'{"id": "7"}', 404),
    ],
)
async def test_a_body_that_does_not_fit_changes_nothing(body: bytes, status: int, rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard())

    answer = await visitor.client.post(
        f"{API}/actions/jobs.cancel", content=body, headers={"content-type": "application/json"}
    )

    assert answer.status_code == status
    assert answer.json()["detail"]


@pytest.mark.writes_nothing
async def test_a_stranger_is_told_nothing_but_to_say_who_they_are(rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard(auth="a-long-token"))

    answers = [await visitor.client.get(f"{API}/{path}") for path in ("jobs", "openapi.json", "nothing")]

    assert [answer.status_code for answer in answers] == [401] * 3
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}


async def test_redacted_arguments_are_in_no_answer(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def pay(card: str) -> None:
        raise ValueError(f"the card {card} is not valid")

    job = await pay.enqueue("4111-1111-1111-1111")
    await rota_app.drain()
    visitor = Visitor(rota_app.dashboard(redact=["card"]))

    paths = ("jobs", f"jobs/{job.id}", f"jobs/{job.id}/explain", "dead", f"dead/{job.id}")
    told = "".join([(await visitor.client.get(f"{API}/{path}")).text for path in paths])
    retried = await act(visitor, "jobs.retry", {"id": str(job.id)})

    assert "4111" not in told + retried.text
    assert json.dumps("•••") in told
