"""Who is let in, and what they may do then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse
from tests.dashboard.visitor import Visitor

from rota import ConfigurationError
from rota.dashboard import RIGHTS, User, attempts
from rota.dashboard.actions import ACTIONS
from rota.testing import TestRota

SECRET = "a-long-password"

pytestmark = [pytest.mark.one_server, pytest.mark.writes_nothing]


@pytest.mark.parametrize(
    ("address", "host", "headers", "status"),
    [
        ("127.0.0.1", "localhost:8000", {}, 200),
        ("127.0.0.1", "127.0.0.1", {}, 200),
        ("::1", "[::1]:8000", {}, 200),
        ("192.168.1.7", "localhost:8000", {}, 403),
        ("127.0.0.1", "rebound.example:8000", {}, 403),
        ("127.0.0.1", "localhost.example", {}, 403),
        ("127.0.0.1", "localhost", {"x-forwarded-for": "203.0.113.9"}, 403),
        ("127.0.0.1", "localhost", {"forwarded": "for=203.0.113.9"}, 403),
        ("127.0.0.1", "localhost", {"x-real-ip": "203.0.113.9"}, 403),
    ],
)
async def test_without_credentials_only_this_machine_is_let_in_and_only_by_its_own_name(
    address: str, host: str, headers: dict[str, str], status: int, rota_app: TestRota
) -> None:
    visitor = Visitor(rota_app.dashboard(), address=address, host=host, headers=headers)

    answer = await visitor.get("jobs")

    assert answer.status_code == status


@pytest.mark.parametrize(
    ("auth", "status"),
    [
        (("ana", SECRET), 200),
        (("ana", f"{SECRET}!"), 401),
        (("bob", SECRET), 401),
        (("", SECRET), 401),
        (("anyone", "a-long-token"), 200),
        (None, 401),
    ],
)
async def test_a_password_or_token_is_asked_for_wherever_one_comes_from(
    auth: tuple[str, str] | None, status: int, rota_app: TestRota
) -> None:
    visitor = Visitor(
        rota_app.dashboard(auth=[f"ana:{SECRET}", "a-long-token"]), address="192.0.2.1", host="x.example", auth=auth
    )

    answer = await visitor.get("jobs")

    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer a-long-token", 200),
        ("bearer a-long-token", 200),
        ("Bearer a-long-toke", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("Basic !!!", 401),
        ("Basic /////w==", 401),
        ("Digest a-long-token", 401),
    ],
)
async def test_a_token_is_given_as_a_bearer(header: str, status: int, rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard(auth="a-long-token"), headers={"authorization": header})

    answer = await visitor.get("jobs")

    assert answer.status_code == status


async def test_files_need_the_same_credentials_as_pages(rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard(auth="a-long-token"))

    assert (await visitor.get("static/x/rota.css")).status_code == 401
    assert (await visitor.get("no-such-page")).status_code == 401


async def knows_ana(request: Request) -> User | None:
    return User("ana", "all") if request.headers.get("x-user") == "ana" else None


def sends_to_log_in(request: Request) -> RedirectResponse:
    return RedirectResponse("/log-in")


def returns_nonsense(request: Request) -> Any:
    return "ana"


@pytest.mark.parametrize(
    ("auth", "headers", "status"),
    [
        (knows_ana, {"x-user": "ana"}, 200),
        (knows_ana, {}, 403),
        (sends_to_log_in, {}, 307),
        (returns_nonsense, {}, 500),
    ],
)
async def test_the_host_says_who_it_is(
    auth: Callable[[Request], Any], headers: dict[str, str], status: int, rota_app: TestRota
) -> None:
    visitor = Visitor(rota_app.dashboard(auth=auth), headers=headers, address="192.0.2.1", host="x.example")

    answer = await visitor.get("jobs")

    assert answer.status_code == status
    assert "<table" not in answer.text


@pytest.mark.parametrize(
    "auth", ["short", "ana:short", ":a-long-password", "", [], {}, 7, {"a-long-token": "everything"}]
)
def test_what_protects_nothing_is_refused_before_anything_starts(auth: Any, rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError):
        rota_app.dashboard(auth=auth)


def test_a_right_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="jobs.explode"):
        User("ana", ["jobs.retry", "jobs.explode"])


def test_a_user_may_what_their_rights_say_and_by_default_only_look() -> None:
    some = User("ana", ["jobs.retry"])

    assert (some.may("jobs.retry"), some.may("jobs.cancel")) == (True, False)
    assert not User("ana").may("jobs.retry")
    assert User("ana", "all").may("jobs.cancel")


def test_every_action_needs_a_right_that_there_is_and_no_right_is_of_no_use() -> None:
    assert {action.right for action in ACTIONS.values()} == set(RIGHTS)


async def test_who_guesses_is_made_to_wait_whatever_they_claim_and_others_are_not(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(attempts, "boottime", lambda: now)
    dashboard = rota_app.dashboard(auth={f"ana:{SECRET}": "all", f"bob:{SECRET}": "all"})

    async def status(name: str, password: str, address: str = "203.0.113.9", **headers: str) -> int:
        visitor = Visitor(dashboard, address=address, host="box.example", auth=(name, password), headers=headers)
        return (await visitor.get("static/none/none")).status_code

    at_home = await status("ana", SECRET)
    wrong = [await status("ana", f"guess {n}") for n in range(5)]
    guessed = await status("bob", SECRET)
    claimed = [await status("bob", SECRET, **{"X-Forwarded-For": f"198.51.100.{n}"}) for n in range(2)]
    elsewhere = await status("bob", SECRET, address="198.51.100.7")
    known = await status("ana", SECRET)
    unasked = await Visitor(dashboard, address="203.0.113.9", host="box.example").get("jobs")
    told = await Visitor(dashboard, address="203.0.113.9", host="box.example", auth=("bob", SECRET)).get("api/v1/jobs")
    now += 10
    later = [await status("bob", "wrong"), await status("bob", SECRET)]
    now += 10
    at_last = await status("bob", SECRET)

    assert (at_home, wrong, guessed, claimed) == (404, [401] * 5, 429, [429, 429])
    assert (elsewhere, known, unasked.status_code) == (404, 404, 401)
    assert (told.status_code, told.headers["retry-after"]) == (429, "10")
    assert told.headers["content-type"] == "application/problem+json"
    assert (later, at_last) == ([401, 429], 404)


def test_tries_are_counted_in_constant_memory_and_by_the_whole_network_of_a_long_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "_REMEMBERED", 3)
    tries = attempts.Attempts()

    for n in range(5):
        tries.failed(f"2001:db8::{n}")
    for n in range(9):
        tries.succeeded("192.0.2.1", f"user {n}")

    assert tries.wait("2001:db8::ffff") > 0
    assert tries.wait("2001:db8:0:1::1") == 0
    for n in range(3):
        tries.failed(f"192.0.2.{n}")
    assert tries.wait("2001:db8::ffff") == 0
    assert [tries.was_let_in("::ffff:192.0.2.1", f"user {n}") for n in (5, 6, 8)] == [False, True, True]
