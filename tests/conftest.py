"""The project's own tests use the kit it ships, on every PostgreSQL this machine has.

By default a test that asks for a database runs on the newest (`[pg18]`), and one that is marked `long` not at all; `--rest`
(`make matrix`) runs what that leaves out: all others, and each once more on the oldest version (`[pg15]`). `--long` runs all,
`--postgres 18` on that version only. `@pytest.mark.one_server` is for a test to which the version cannot matter. Tests that
restart or break PostgreSQL take `own_server`. `@pytest.mark.writes_nothing` is for a test that only reads or is refused: such
tests of a process share one database, and each is shown to have left it as it was. `@pytest.mark.by_default("one", "two")`
names the parameters, as they stand in the ids, with which a test runs by default: with all others it is long. What is marked
`slow` runs where a version is named, and with `--slow` (`make slow`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rota.embedded import Binaries, EmbeddedServer, find_binaries, read_binaries
from rota.embedded.binaries import candidates
from rota.errors import PostgresNotFound
from rota.jobs.logs import write
from rota.jobs.rounds import Rounds
from rota.testing import DatabaseServer
from rota.testing.servers import shared_server, throwaway_server
from rota.testing.waiting import until_sync
from tests.pgbouncer import transaction_pooler

pytest_plugins = ["pytester"]

GIVEN = "given"  # the server that ROTA_TEST_DATABASE_URL names


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres", type=int, metavar="MAJOR", help="Run database tests on this PostgreSQL version only."
    )
    parser.addoption("--long", action="store_true", help="Run every test, on every PostgreSQL version there is.")
    parser.addoption("--rest", action="store_true", help="Run what is left out by default.")
    parser.addoption("--slow", action="store_true", help="Run what is marked slow, and nothing else.")
    parser.addoption(
        "--pooled", action="store_true", help="Reach the databases of tests through PgBouncer in transaction mode."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_server: runs on one PostgreSQL version only, as it cannot matter which")
    config.addinivalue_line("markers", "long: is left out by default, as it takes long and others show most of it")
    config.addinivalue_line(
        "markers", "slow: is left to make slow, as it waits for long, or keeps several processes busy"
    )
    config.addinivalue_line(
        "markers", "writes_nothing: shares its database with others that write nothing, which is checked"
    )
    config.addinivalue_line("markers", "by_default(*ids): is long with all other parameters than these")
    config.addinivalue_line("markers", "direct(reason): is left out behind a transaction pooler, for this reason")
    gc.disable()  # until all tests are collected: next to nothing of what that makes can go
    if config.getoption("--pooled"):
        # a death is noticed by its lease there: a third of the usual one is still long enough for a busy machine
        os.environ.setdefault("ROTA_LEASE", "5s")
        # connections that tests open themselves: this PgBouncer knows nothing of prepared statements
        for kind in (psycopg.Connection, psycopg.AsyncConnection):
            kind.connect.__func__.__kwdefaults__["prepare_threshold"] = None  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in name for name in config.args):  # files as a whole
        _check_defaults(items)
    if not config.getoption("--long"):
        rest, slow, version = (config.getoption(name) for name in ("--rest", "--slow", "--postgres"))
        chosen = {item for item in items if _is_rest(item) == rest and (rest or version or _is_slow(item) == slow)}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    if not config.getoption("--pooled"):
        return
    pooled = [item for item in items if {"rota_database", "direct_database"} & set(getattr(item, "fixturenames", ()))]
    # what asks for no database meets no pooler either
    config.hook.pytest_deselected(items=[item for item in items if item not in pooled])
    items[:] = pooled
    for item in items:
        if direct := item.get_closest_marker("direct"):
            item.add_marker(pytest.mark.skip(reason=f"behind a pooler: {direct.args[0]}"))


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and modules, which stay to the end: no collection need look at them again
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "postgres_version" in metafunc.fixturenames:
        options = metafunc.config.option
        versions = server_versions(options.postgres)
        # what is left out anyway is not made first: every process of a run collects all tests
        if metafunc.definition.get_closest_marker("one_server") or not (options.long or options.rest):
            versions = versions[:1]
        ids = [f"pg{version}" for version in versions]
        metafunc.parametrize("postgres_version", versions, ids=ids, indirect=True, scope="session")


def _is_rest(item: pytest.Item) -> bool:
    """Whether it is left out by default: it takes long, or is another's second turn."""
    call = getattr(item, "callspec", None)
    version = None if call is None else call.params.get("postgres_version")
    chosen = item.get_closest_marker("by_default")
    return (
        item.get_closest_marker("long") is not None
        or version not in (None, server_versions(item.config.getoption("--postgres"))[0])
        or (chosen is not None and _parameters(item) not in chosen.args)
    )


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _parameters(item: pytest.Item) -> str:
    """The parameters as they stand in its id, without the server's version."""
    return "-".join(part for part in item.callspec.id.split("-") if not re.fullmatch(r"pg(\d+|given)", part))


def _check_defaults(items: list[pytest.Item]) -> None:
    """A name that is none would leave a test out for good."""
    named, there = {}, set()
    for item in items:
        if chosen := item.get_closest_marker("by_default"):
            test = item.nodeid.partition("[")[0]
            named[test] = chosen.args
            there.add((test, _parameters(item)))
    wrong = [f"{test}: {name}" for test, names in named.items() for name in names if (test, name) not in there]
    if wrong:
        raise pytest.UsageError(f"by_default names parameters that are not there: {'; '.join(wrong)}")


@pytest.fixture(scope="session")
def postgres_version(request: pytest.FixtureRequest) -> str:
    """The server version this test runs on."""
    return str(request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--postgres") is None and not os.environ.get("ROTA_TEST_DATABASE_URL") and len(installed()) < 2:
        found = " and ".join(installed()) or "none"
        terminalreporter.write_line(
            f"PostgreSQL versions on this machine: {found}. Database tests run on two where a second one is installed.",
            yellow=True,
        )


@functools.cache
def installed() -> dict[str, Binaries]:
    """PostgreSQL by major version, in the order Rota would choose; the first folder of a version counts."""
    found: dict[str, Binaries] = {}
    for directory, origin in candidates():
        with contextlib.suppress(PostgresNotFound):
            binaries = read_binaries(directory, origin)
            found.setdefault(str(binaries.major), binaries)
    return found


@functools.cache
def server_versions(wanted: int | None) -> list[str]:
    """The servers to test on: what Rota finds first on this machine, and the oldest other version."""
    if os.environ.get("ROTA_TEST_DATABASE_URL"):
        return [GIVEN]
    if wanted is not None:
        return [str(find_binaries(wanted).major)]
    default = str(find_binaries().major)
    return [default, *sorted(installed().keys() - {default}, key=int)[:1]]


@pytest.fixture(scope="session")
def servers(rota_run_folder: Path) -> Iterator[Callable[..., DatabaseServer]]:
    """The servers of each version, started when first asked for and kept to the end of the run."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def server(version: str, apart: str = "") -> DatabaseServer:
            if version == GIVEN:
                return stack.enter_context(contextlib.closing(DatabaseServer(os.environ["ROTA_TEST_DATABASE_URL"])))
            url = stack.enter_context(shared_server(rota_run_folder, version + apart, installed()[version]))
            with psycopg.connect(url, autocommit=True) as admin:
                # sessions that nobody has set up are far from UTC, and not by whole hours: no moment may depend on it
                admin.execute("alter system set timezone = 'Pacific/Chatham'")
                admin.execute("select pg_reload_conf()")
            return stack.enter_context(contextlib.closing(DatabaseServer(url, volatile=True)))

        yield server


@pytest.fixture(scope="session")
def rota_server(postgres_version: str, servers: Callable[..., DatabaseServer]) -> DatabaseServer:
    return servers(postgres_version)


@pytest.fixture(scope="session")
def event_server(postgres_version: str, servers: Callable[..., DatabaseServer]) -> DatabaseServer:
    """A server for those who read events, which overrides `rota_server` where they are.

    An event is read when no older transaction is open, in whichever database of the server: beside tests that hold locks for
    seconds, readers would wait for those.
    """
    return servers(postgres_version, "-events")


class UntouchedDatabases:
    """One database of each schema, for one test after another, and only as long as none has written to it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[DatabaseServer, str], tuple[str, psycopg.Connection]] = {}

    @contextlib.contextmanager
    def database(self, server: DatabaseServer, schema: str) -> Iterator[str]:
        if (server, schema) not in self._kept:
            dsn = server.create_database(schema)
            self._kept[server, schema] = dsn, psycopg.connect(dsn, autocommit=True)
        dsn, watcher = self._kept[server, schema]
        before = _written(watcher)
        yield dsn
        if _written(watcher) != before:
            self._drop(server, schema)
            pytest.fail("It is marked writes_nothing, and has written to its database: take the mark away.")

    def close(self) -> None:
        for server, schema in list(self._kept):
            self._drop(server, schema)

    def _drop(self, server: DatabaseServer, schema: str) -> None:
        dsn, watcher = self._kept.pop((server, schema))
        watcher.close()
        server.drop_database(dsn)


END_OTHERS = """
    select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""
# not what is written to the catalog: autovacuum does so as well
WRITTEN = """
    select sum(n_tup_ins + n_tup_upd + n_tup_del) + (select count(*) from pg_class) from pg_stat_user_tables
"""


def _written(watcher: psycopg.Connection) -> int:
    """How much was written so far. Sessions say so when they end at the latest, so they are ended."""
    until_sync(lambda: not watcher.execute(END_OTHERS).fetchall())
    return int(watcher.execute(WRITTEN).fetchall()[0][0])


@pytest.fixture(scope="session")
def poolers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The address of a database through a pooler of its server, for runs with --pooled."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def pooler(host: str, port: str, user: str) -> str:
            dsn = make_conninfo(host=host, port=port, user=user, dbname="postgres")
            return stack.enter_context(transaction_pooler(dsn, tmp_path_factory.mktemp("pgbouncer"), size=30))

        def pooled(dsn: str) -> str:
            parts = conninfo_to_dict(dsn)
            through = pooler(str(parts["host"]), str(parts["port"]), str(parts["user"]))
            return make_conninfo(through, dbname=parts["dbname"])

        yield pooled


@pytest.fixture(scope="session")
def untouched(servers: Callable[..., DatabaseServer]) -> Iterator[UntouchedDatabases]:
    """The databases of tests that write nothing, which go before their servers do."""
    with contextlib.closing(UntouchedDatabases()) as databases:
        yield databases


@pytest.fixture
def direct_database(request: pytest.FixtureRequest, rota_server: DatabaseServer, rota_schema: str) -> Iterator[str]:
    """The address of `rota_database` without a pooler, for sessions that a test watches or sets up as a whole."""
    # a pooler would go on with sessions that are ended between two tests
    if request.node.get_closest_marker("writes_nothing") and not request.config.getoption("--pooled"):
        with request.getfixturevalue("untouched").database(rota_server, rota_schema) as dsn:
            yield dsn
    else:
        with rota_server.database(rota_schema) as dsn:
            yield dsn


@pytest.fixture
def rota_database(direct_database: str, pytestconfig: pytest.Config, poolers: Callable[[str], str]) -> str:
    return poolers(direct_database) if pytestconfig.getoption("--pooled") else direct_database


@pytest.fixture
def history_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process leave the upkeep of the history out, for tests to which it cannot matter.

    Its first round of a session costs the server as much as all else that most tests do, and in a database that was made just now
    it finds nothing to do. Worker processes do all of their work.
    """

    async def never(_: Rounds) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Rounds, "keep_history", never)


@pytest.fixture
def patient_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in this process that stops has time for the last lines of its bodies, however busy the machine is."""
    monkeypatch.setattr(write, "_LAST_SECONDS", 60.0)


class OwnServer:
    """A server that a test may restart and break, with a database ready for workers."""

    def __init__(self, server: EmbeddedServer, binaries: Binaries) -> None:
        self.server = server
        self.binaries = binaries
        self.databases = DatabaseServer(server.start(), volatile=True)
        self.dsn = self.databases.create_database()
        self.databases.close()

    def restart(self, mode: str = "immediate") -> None:
        """Restart PostgreSQL at the same address and return when it answers; `immediate` is a crash with recovery."""
        self.server.restart(mode)  # type: ignore[arg-type]


@pytest.fixture
def own_server(postgres_version: str) -> Iterator[OwnServer]:
    """A private server for tests that restart or break PostgreSQL.

    A module that overrides `rota_database` with `own_server.dsn` has `rota_app` and `rota_worker` on it as well.
    """
    binaries = find_binaries() if postgres_version == GIVEN else installed()[postgres_version]
    server = throwaway_server(binaries)
    try:
        yield OwnServer(server, binaries)
    finally:
        server.close()
