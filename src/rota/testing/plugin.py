"""The pytest plugin. Every pytest run of every user loads it, so all it needs is imported inside the fixtures.

rota_app         an app on a database of this test's own: `await rota_app.drain()`, `rota_app.advance("1h")`
rota_database    the address of that database
rota_worker      starts real worker processes on it
rota_user_app    your app, which is pointed at that database during the test; by the ini option `rota_app`, or override it
rota_server      the server all that is on: embedded and thrown away, or the one ROTA_TEST_DATABASE_URL names
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rota.app import Rota
    from rota.testing.app import TestRota
    from rota.testing.databases import DatabaseServer
    from rota.testing.processes import WorkerProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("rota_app", "The app whose tasks the fixture rota_app runs, such as myproject.jobs:app", default="")


@pytest.fixture(scope="session")
def rota_run_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder that all processes of this test run share, whether or not pytest-xdist spreads it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture(scope="session")
def rota_server(rota_run_folder: Path) -> Iterator[DatabaseServer]:
    """The server of this test run: the one ROTA_TEST_DATABASE_URL names (its role must be allowed to create databases), else
    an embedded one that all pytest-xdist workers share and the last one throws away."""
    from rota.testing.databases import DatabaseServer
    from rota.testing.servers import shared_server

    with contextlib.ExitStack() as stack:
        given = os.environ.get("ROTA_TEST_DATABASE_URL")
        url = given or stack.enter_context(shared_server(rota_run_folder, "server"))
        yield stack.enter_context(contextlib.closing(DatabaseServer(url, volatile=given is None)))


@pytest.fixture(scope="session")
def rota_user_app(pytestconfig: pytest.Config) -> Rota | None:
    """The app under test, named by the ini option `rota_app`; override this fixture to give it in another way."""
    path = pytestconfig.getini("rota_app")
    if not path:
        return None
    from pkgutil import resolve_name

    from rota.app import Rota
    from rota.errors import AppNotFound

    try:
        app = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise AppNotFound(
            f"The ini option rota_app names {path!r}, and that cannot be had: {error}. Write module:attribute, and set pytest's "
            "option pythonpath if the module is not found."
        ) from error
    if not isinstance(app, Rota):
        raise AppNotFound(f"The ini option rota_app names {path!r}, which is a {type(app).__name__}, not a Rota.")
    return app


@pytest.fixture(autouse=True)
def _rota_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep tests without `rota_app` from the real database of the app under test."""
    # a run that has not imported Rota by now and names no app has none to guard
    if "rota.app" not in sys.modules and not request.config.getini("rota_app"):
        yield
        return
    from rota.testing.app import guarded

    app = request.getfixturevalue("rota_user_app")
    with guarded(app, request.config.getini("rota_app") or repr(app)) if app else contextlib.nullcontext():
        yield


@pytest.fixture
def rota_schema(rota_user_app: Rota | None) -> str:
    """The schema of Rota's tables in `rota_database`: that of the app under test."""
    return rota_user_app.settings.schema if rota_user_app else os.environ.get("ROTA_SCHEMA") or "rota"


@pytest.fixture
def rota_database(rota_server: DatabaseServer, rota_schema: str) -> Iterator[str]:
    """The address of a database of this test's own, with Rota's tables and a clock that can be moved."""
    with rota_server.database(rota_schema) as dsn:
        yield dsn


@pytest.fixture
def rota_app(rota_database: str, rota_schema: str, rota_user_app: Rota | None) -> Iterator[TestRota]:
    """An app on `rota_database`, for sync and async tests. With an app under test it runs that one's tasks, and that one
    uses the same database until the test ends."""
    from rota.testing.app import TestRota, pointed_at

    app = TestRota(rota_database, schema=rota_schema, of=rota_user_app)
    with pointed_at(rota_user_app, app) if rota_user_app else contextlib.nullcontext():
        yield app
    app.close_everywhere()


@pytest.fixture
def rota_worker(rota_database: str, rota_schema: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts worker processes on `rota_database`: `rota_worker("myproject.jobs:app", concurrency=4)`, see WorkerProcess.

    It returns when the worker claims jobs, unless told `wait=False`. All are gone when the test ends.
    """
    from rota.testing.processes import WorkerProcess

    started: list[WorkerProcess] = []

    def start(app: str | Path, *, wait: bool = True, **options: Any) -> WorkerProcess:
        worker = WorkerProcess(app, **{"dsn": rota_database, "schema": rota_schema, **options})
        started.append(worker)
        worker.start()
        return worker.wait_until_working() if wait else worker

    yield start
    for worker in started:
        # shown by pytest when the test failed
        sys.stderr.write(f"{worker.report()}\n")
        worker.reap()
