"""`app.attach` and its pieces, on applications of several kinds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.web.asgi import Lifespan, served

import rota
from rota import ConfigurationError, Rota
from rota.dashboard import User
from rota.facts import DatabaseAwaited, Ended, EndingBegan, Fact, StageStarted, StageStopped, WorkerStarted
from rota.integrations.asgi.attach import Attached
from rota.integrations.asgi.lifespan import WorkerOptions
from rota.runtime.budgets import read_budgets
from rota.service.ending import ENDING
from rota.testing import TestRota, fact, until


@pytest.fixture
def away() -> Rota:
    """An app whose database is not there."""
    return Rota("host=127.0.0.1 port=1 dbname=nowhere connect_timeout=1")


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"state": request.state._state})


@asynccontextmanager
async def with_state(api: Any) -> AsyncIterator[dict[str, str]]:
    yield {"given": "by the lifespan"}


def fastapi_before(app: Rota) -> FastAPI:
    api = FastAPI(lifespan=with_state)
    app.attach(api)
    api.add_route("/{path:path}", answer)
    return api


def fastapi_after(app: Rota) -> FastAPI:
    api = FastAPI(lifespan=with_state)
    api.add_route("/{path:path}", answer)
    app.attach(api)
    return api


def starlette(app: Rota) -> Starlette:
    api = Starlette(routes=[Route("/{path:path}", answer)], lifespan=with_state)
    app.attach(api)
    return api


def any_other(app: Rota) -> Attached:
    inner = Starlette(routes=[Route("/{path:path}", answer)], lifespan=with_state)
    return Attached(inner, app, worker=WorkerOptions(), budgets=read_budgets(None, None))


@pytest.mark.by_default("fastapi_after", "any_other")
@pytest.mark.one_server
@pytest.mark.parametrize("make", [fastapi_before, fastapi_after, starlette, any_other])
async def test_one_call_gives_an_application_a_worker_and_probes_and_leaves_it_its_own_lifespan_and_routes(
    make: Callable[[Rota], Any], rota_app: TestRota
) -> None:
    @rota_app.task
    async def double(number: int) -> int:
        return number * 2

    async with served(make(rota_app)) as client:
        job = await double.enqueue(21)
        assert await job.wait(timeout=20) == 42

        async def ready() -> bool:
            return (await client.get("/health/ready")).json() == {"ready": True}

        await until(ready)
        for path in ("/health/live", "/livez", "/readyz", "/health"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/health/other")).json() == {"state": {}}  # a route of its own
    assert [member.end_reason for member in await rota_app.members(ended=True)] == ["left"]
    await rota_app.close()


async def test_the_state_of_the_users_lifespan_reaches_the_server(away: Rota) -> None:
    lifespan = Lifespan(fastapi_after(away))

    assert await lifespan.say("startup") == "startup.complete"
    assert lifespan.state == {"given": "by the lifespan"}

    assert await lifespan.say("shutdown") == "shutdown.complete"


@pytest.mark.one_server
async def test_the_worker_runs_inside_the_users_lifespan_and_the_pool_closes_after_it(rota_app: TestRota) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def mine(api: Any) -> AsyncIterator[None]:
        steps.append("mine up")
        yield
        await rota_app.enqueue(nothing.bind())  # the pool is still there
        steps.append("mine down")

    @rota_app.task
    async def nothing() -> None: ...

    def note(told: Fact) -> None:
        match told:
            case WorkerStarted():
                steps.append("worker up")
            case StageStopped("worker" | "pool" as name):
                steps.append(f"{name} down")

    rota_app.facts.subscribe(note)
    api = FastAPI(lifespan=mine)
    rota_app.attach(api)
    working = fact(rota_app.facts, WorkerStarted, timeout=20)
    async with served(api):
        await working

    assert steps == ["mine up", "worker up", "worker down", "mine down", "pool down"]


async def test_attaching_twice_is_refused(away: Rota) -> None:
    api = FastAPI()
    away.attach(api)

    with pytest.raises(ConfigurationError, match="attached to this application already"):
        away.attach(api)


async def test_attaching_to_an_application_that_has_started_is_refused(away: Rota) -> None:
    api = FastAPI()
    async with served(api):
        with pytest.raises(ConfigurationError, match="has started already"):
            away.attach(api)


async def test_what_is_no_application_of_starlettes_kind_is_refused_with_what_to_do(away: Rota) -> None:
    async def plain(scope: Scope, receive: Receive, send: Send) -> None: ...

    with pytest.raises(ConfigurationError, match="rota serve"):
        away.attach(plain)


@pytest.mark.parametrize("window", [-1, "soon", float("nan")])
async def test_a_window_that_is_none_is_refused_where_it_is_said(away: Rota, window: Any) -> None:
    with pytest.raises(ConfigurationError, match="drain_window"):
        away.attach(FastAPI(), drain_window=window)


async def test_a_database_that_is_away_keeps_nobody_from_being_served(away: Rota) -> None:
    awaited = fact(away.facts, DatabaseAwaited)
    async with served(fastapi_after(away)) as client:
        assert (await client.get("/")).status_code == 200
        await awaited

        shown = await client.get("/health/ready")

        assert (shown.status_code, shown.json()) == (503, {"ready": False, "reason": "database"})
        assert int(shown.headers["retry-after"]) >= 1
        assert (await client.get("/health/live")).status_code == 200


async def test_a_worker_that_cannot_start_for_good_is_said_by_readiness_and_by_the_log(
    away: Rota, caplog: pytest.LogCaptureFixture
) -> None:
    @away.task(retention="unheard-of")
    async def nothing() -> None: ...

    async with served(fastapi_after(away)) as client:

        async def reason() -> bool:
            return bool((await client.get("/health/ready")).json().get("reason") == "worker")

        await until(reason)
        assert (await client.get("/")).status_code == 200

    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "unheard-of" in record.message


@pytest.mark.one_server
async def test_tables_that_are_missing_are_said_and_the_worker_starts_once_they_are_there(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.integrations.asgi.lifespan._SHORTEST_PAUSE", 0.1)
    app = Rota(str(rota_app.settings.dsn.conninfo), schema="elsewhere") if rota_app.settings.dsn else rota_app
    async with served(fastapi_after(app)) as client:

        async def reason(wanted: str | None) -> bool:
            return bool((await client.get("/health/ready")).json().get("reason") == wanted)

        await until(lambda: reason("schema"))
        await app.migrate()

        await until(lambda: reason(None), 20)


async def test_an_application_that_knows_nothing_of_lifespans_has_one_all_the_same(away: Rota) -> None:
    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await JSONResponse("here")(scope, receive, send)

    async with served(Attached(plain, away, worker=None, budgets=read_budgets(None, None))) as client:
        assert (await client.get("/")).json() == "here"


async def test_a_start_up_that_fails_is_the_servers_to_know(away: Rota) -> None:
    @asynccontextmanager
    async def broken(api: Any) -> AsyncIterator[None]:
        raise ZeroDivisionError
        yield

    api = FastAPI(lifespan=broken)
    away.attach(api)
    lifespan = Lifespan(api)

    assert await lifespan.say("startup") == "startup.failed"
    with pytest.raises(ZeroDivisionError):
        await lifespan.task


async def raises_at_its_shutdown(scope: Scope, receive: Receive, send: Send) -> None:
    """Without telling the server, as a framework would."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    raise ZeroDivisionError


@asynccontextmanager
async def broken_at_its_end(api: Any) -> AsyncIterator[None]:
    yield
    raise ZeroDivisionError


@pytest.mark.parametrize("inner", [raises_at_its_shutdown, Starlette(lifespan=broken_at_its_end)])
async def test_a_shutdown_that_fails_is_the_servers_to_know_and_no_end_in_order(away: Rota, inner: Any) -> None:
    ends: list[Fact] = []
    away.facts.subscribe(ends.append, Ended)
    lifespan = Lifespan(Attached(inner, away, worker=None, budgets=read_budgets(None, None)))
    assert await lifespan.say("startup") == "startup.complete"

    assert await lifespan.say("shutdown") == "shutdown.failed"

    with contextlib.suppress(ZeroDivisionError):
        await lifespan.task
    assert ends == []


async def test_the_lifespan_apart_knows_no_end_in_order_when_what_is_inside_of_it_fails(away: Rota) -> None:
    ends: list[Fact] = []
    away.facts.subscribe(ends.append, Ended)

    with pytest.raises(ZeroDivisionError):
        async with away.lifespan(worker=False)(None):
            raise ZeroDivisionError

    assert ends == []


@pytest.mark.one_server
@pytest.mark.parametrize("worker", [True, False])
async def test_an_application_that_is_not_told_of_its_start_says_so_once_and_is_not_ready_without_its_worker(
    rota_app: TestRota, caplog: pytest.LogCaptureFixture, worker: bool
) -> None:
    inner = FastAPI()
    inner.add_route("/", answer)
    rota_app.attach(inner, worker=worker)
    outer = Starlette(routes=[Mount("/inner", app=inner)])

    async with served(outer) as client:
        assert (await client.get("/inner/")).status_code == 200
        ready = await client.get("/inner/health/ready")
        started = await client.get("/inner/startupz")

    assert (ready.status_code, started.status_code) == ((503, 503) if worker else (200, 200))
    assert not worker or (ready.json()["reason"], started.json()["reason"]) == ("starting", "starting")
    said = [record.getMessage() for record in caplog.records if "has not begun" in record.getMessage()]
    assert len(said) == 1
    assert "Attach to the outermost application" in said[0]
    assert ("no worker runs" in said[0]) is worker


async def test_from_the_first_word_of_an_end_responses_close_their_connection_and_are_served(away: Rota) -> None:
    async with served(fastapi_after(away)) as client:
        assert "connection" not in (await client.get("/")).headers

        ENDING.begin("test")

        shown = await client.get("/")
        assert (shown.status_code, shown.headers["connection"]) == (200, "close")
        assert (await client.get("/livez")).headers["connection"] == "close"


async def test_an_error_page_closes_its_connection_too(away: Rota) -> None:
    api = FastAPI()

    @api.get("/")
    async def broken() -> None:
        raise ZeroDivisionError

    away.attach(api)
    async with served(api):
        ENDING.begin("test")
        transport = httpx.ASGITransport(api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            shown = await client.get("/")

    assert (shown.status_code, shown.headers["connection"]) == (500, "close")


async def test_the_pieces_apart_do_the_same(away: Rota) -> None:
    def refuse() -> None:
        raise HTTPException(401)

    api = FastAPI(lifespan=away.lifespan(worker=False))
    api.include_router(away.health_router())
    api.add_middleware(rota.DrainMiddleware, app=away)
    api.add_api_route("/", lambda: "here", dependencies=[Depends(refuse)])
    async with served(api) as client:
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/readyz")).json() == {"ready": False, "reason": "database"}
        assert "/readyz" not in api.openapi()["paths"]
        ENDING.begin("test")

        assert (await client.get("/health/ready")).json() == {"ready": False, "reason": "shutting_down"}
        assert (await client.get("/")).headers["connection"] == "close"


async def test_the_probes_are_routes_of_starlette_too(away: Rota) -> None:
    async with served(Starlette(routes=away.health_router().routes)) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.head("/health/live")).content == b""
        refused = await client.post("/health/live")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await client.get("/startupz")).json() == {"started": True}


async def test_every_probe_answers_to_get_and_head_and_says_what_it_allows(away: Rota) -> None:
    api = FastAPI()
    away.attach(api, worker=False, drain_token="secret")
    async with served(api) as client:
        for path in ("/health/live", "/livez", "/health/ready", "/readyz", "/startupz", "/health"):
            shown, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (shown.status_code, b"")
            assert head.headers["content-length"] == shown.headers["content-length"]
            assert (await client.options(path)).headers["allow"] == "GET, HEAD"
        refused = await client.get("/health/drain")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


async def test_a_start_is_over_when_the_worker_waits_for_its_database_and_stays_so(away: Rota) -> None:
    api = FastAPI()
    away.attach(api)
    awaited = fact(away.facts, DatabaseAwaited)
    async with served(api) as client:
        await awaited
        assert (await client.get("/startupz")).json() == {"started": True}

        ENDING.begin("test")

        assert (await client.get("/startupz")).json() == {"started": True}


async def test_the_lifespan_nests_in_one_of_the_users(away: Rota) -> None:
    @asynccontextmanager
    async def mine(api: Any) -> AsyncIterator[None]:
        async with away.lifespan(worker=False)(api):
            yield

    ended = fact(away.facts, Ended)
    async with served(FastAPI(lifespan=mine)):
        pass
    await ended


async def test_the_drain_endpoint_wants_its_token_and_is_not_there_without_one(
    away: Rota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DRAIN_TOKEN", "open sesame")
    api = FastAPI()
    away.attach(api, worker=False)
    async with served(api) as client:
        for headers in ({}, {"authorization": "Bearer open"}, {"authorization": "open sesame"}):
            assert (await client.post("/health/drain", headers=headers)).status_code == 401
        assert not ENDING.begun

        said = await client.post("/health/drain", headers={"authorization": "Bearer open sesame"})

        assert (said.status_code, ENDING.begun, ENDING.exits) == (202, True, False)
        again = await client.post("/health/drain", headers={"authorization": "Bearer open sesame"})
        assert again.json() == {"draining": True, "began": False}

    monkeypatch.delenv("ROTA_DRAIN_TOKEN")
    ENDING.reset()
    other = FastAPI()
    away.attach(other, worker=False)
    async with served(other) as client:
        answer = await client.post("/health/drain", headers={"authorization": "Bearer "})
        assert (answer.status_code, ENDING.begun) == (404, False)


@pytest.mark.one_server
async def test_the_worker_drains_from_the_first_word_on_and_not_only_at_the_shutdown(rota_app: TestRota) -> None:
    release = asyncio.Event()

    @rota_app.task
    async def held() -> str:
        await release.wait()
        return "finished"

    working = fact(rota_app.facts, WorkerStarted, timeout=20)
    api = FastAPI()
    rota_app.attach(api)
    with rota_app.facts.recorded(EndingBegan, StageStarted, StageStopped, Ended) as told:
        async with served(api):
            await working
            job = await held.enqueue()
            await until(lambda: rota_app.jobs.get(job.id), 10)

            async def running() -> bool:
                return (await job.refresh()).state == "running"

            await until(running)
            stopped = fact(rota_app.facts, StageStopped, where=lambda stage: stage.name == "member")
            ENDING.begin("test")
            release.set()
            await stopped  # while the server serves

    assert await job.wait() == "finished"
    assert [each for each in told if isinstance(each, EndingBegan)] == [EndingBegan("test")]
    assert isinstance(told[-1], Ended)


@pytest.mark.one_server
async def test_a_worker_that_misses_its_cancellation_while_it_starts_is_stopped_once_it_has_started(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, check = asyncio.Event(), rota_app.check

    async def swallowing() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            starting.set()
            await asyncio.Event().wait()
        await check()

    monkeypatch.setattr(rota_app, "check", swallowing)
    api = FastAPI()
    rota_app.attach(api)
    began = time.monotonic()
    async with served(api):
        await starting.wait()
        ENDING.begin("test")

    assert time.monotonic() - began < 10
    assert [member.end_reason for member in await rota_app.members(ended=True)] == ["left"]
    await rota_app.close()


async def streaming(request: Request) -> StreamingResponse:
    async def forever() -> AsyncIterator[str]:
        yield "data: first\n\n"
        await asyncio.Event().wait()

    return StreamingResponse(forever(), media_type=request.query_params["type"])


def with_stream(app: Rota) -> ASGIApp:
    api = Starlette(routes=[Route("/", streaming)])
    app.attach(api, worker=False, drain_window=0.05, grace=0.1)
    return api


async def test_a_stream_of_events_ends_with_a_last_chunk_when_the_window_is_over(away: Rota) -> None:
    async with served(with_stream(away)) as client:
        reading = asyncio.create_task(client.get("/?type=text/event-stream"))
        await asyncio.sleep(0)
        ENDING.begin("test")

        shown = await asyncio.wait_for(reading, 10)

        assert (shown.status_code, shown.text) == (200, "data: first\n\n")


async def test_another_endless_answer_is_cut_off_and_does_not_look_whole(away: Rota) -> None:
    async with served(with_stream(away)) as client:
        reading = asyncio.create_task(client.get("/?type=text/plain"))
        await asyncio.sleep(0)
        ENDING.begin("test")

        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reading, 10)


async def test_a_request_that_is_not_answered_within_the_grace_is_told_to_come_back(away: Rota) -> None:
    async def never(request: Request) -> JSONResponse:
        await asyncio.Event().wait()
        return JSONResponse(None)

    api = Starlette(routes=[Route("/", never)])
    away.attach(api, worker=False, drain_window=0.05, grace=0.1)
    async with served(api) as client:
        reading = asyncio.create_task(client.get("/"))
        await asyncio.sleep(0)
        ENDING.begin("test")

        shown = await asyncio.wait_for(reading, 10)

    assert (shown.status_code, shown.headers["connection"]) == (503, "close")


async def test_who_streams_can_ask_and_wait_for_the_end() -> None:
    waiting = asyncio.ensure_future(rota.draining())
    await asyncio.sleep(0)
    assert not rota.draining()
    assert not waiting.done()

    ENDING.begin("test")

    await asyncio.wait_for(waiting, 20)
    assert rota.draining()
    await rota.draining()


async def test_the_limit_that_uvicorn_is_to_have_fits_into_the_grace(
    away: Rota, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = SimpleNamespace(timeout_graceful_shutdown=None, reload=False)
    monkeypatch.setattr("rota.integrations.asgi.lifespan.server_config", lambda: config)

    async with away.lifespan(worker=False, drain_window="5s", grace="25s")(None):
        pass

    # it begins after the window
    assert "--timeout-graceful-shutdown 20 " in caplog.text


@pytest.mark.one_server
@pytest.mark.parametrize("make", [FastAPI, Starlette])
async def test_the_dashboard_is_found_whatever_else_takes_every_path(
    make: Callable[[], Any], rota_app: TestRota
) -> None:
    api = make()
    api.router.routes.append(Route("/{path:path}", answer))
    rota_app.attach(api, worker=False, dashboard="/tools/rota/", auth=lambda request: User("ana"))

    async with served(api) as client:
        page = await client.get("/tools/rota/jobs")
        without_slash = await client.get("/tools/rota")
        other = await client.get("/tools")

    assert "<title>Jobs" in page.text
    assert other.json() == {"state": {}}
    assert (without_slash.status_code, without_slash.headers["location"]) == (308, "rota/")


@pytest.mark.parametrize("path", ["", "/", "rota", 7])
def test_a_dashboard_that_cannot_be_found_is_refused_before_anything_is_attached(path: Any, away: Rota) -> None:
    api = Starlette()

    with pytest.raises(ConfigurationError, match="dashboard cannot be"):
        away.attach(api, dashboard=path)

    assert api.router.routes == []
