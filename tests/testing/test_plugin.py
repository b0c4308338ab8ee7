"""The pytest plugin, as someone who has only installed Rota uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An inner run forgets the modules it was the first to load; loaded here, Rota's classes are the same in all of them.
from rota.testing import DatabaseServer

pytestmark = pytest.mark.one_server

JOBS = """
from rota import Rota
app = Rota("postgresql://nobody@production.invalid/real", schema="shop")

@app.task
async def send_mail(to: str) -> str:
    return f"sent to {to}"
"""

TESTS = """
import jobs

def test_sync(rota_app):
    job = jobs.send_mail.enqueue_sync("ada")
    assert [job.args for job in rota_app.enqueued(jobs.send_mail)] == [{"to": "ada"}]
    assert rota_app.drain_sync() == 1
    assert job.wait_sync() == "sent to ada"

async def test_async(rota_app):
    job = await jobs.send_mail.using(delay="1h").enqueue("bob")
    assert await rota_app.drain() == 0
    rota_app.advance("1h")
    assert await rota_app.drain() == 1
    assert await job.wait() == "sent to bob"
    assert (await jobs.app.jobs.get(job.id)).state == "succeeded"

def test_tasks_of_a_test_are_forgotten(rota_app):
    @rota_app.task(name="mine")
    def mine(): ...
    mine.enqueue_sync()
    assert rota_app.drain_sync() == 1

def test_restored():
    assert list(jobs.app.tasks) == ["send_mail"]
    assert jobs.app.settings.dsn.parameters["host"] == "production.invalid"

def test_with_inline_no_database_is_needed():
    with jobs.app.inline():
        assert jobs.send_mail.enqueue_sync("eve").result == "sent to eve"
"""


@pytest.fixture
def user(pytester: pytest.Pytester, rota_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of a user's, tested on a server that is there already."""
    monkeypatch.setenv("ROTA_TEST_DATABASE_URL", rota_server.url)
    pytester.makepyfile(jobs=JOBS)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    return pytester


def run(user: pytest.Pytester, *options: str) -> pytest.RunResult:
    return user.runpytest_inprocess(
        "-q", "-p", "no:cacheprovider", "-W", "error", "-p", "no:hypothesispytest", *options
    )


def test_the_users_app_uses_the_tests_database_until_the_test_ends(user: pytest.Pytester) -> None:
    user.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nrota_app = jobs:app\nasyncio_mode = auto")
    user.makepyfile(test_it=TESTS)

    run(user).assert_outcomes(passed=5)


def test_the_app_may_be_given_by_a_fixture_and_asyncio_be_strict(user: pytest.Pytester) -> None:
    user.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nasyncio_mode = strict")
    user.makeconftest(
        "import pytest, jobs\n@pytest.fixture(scope='session')\ndef rota_user_app():\n    return jobs.app\n"
    )
    user.makepyfile(test_it="import pytest\n" + TESTS.replace("async def test", "@pytest.mark.asyncio\nasync def test"))

    run(user).assert_outcomes(passed=5)


def test_an_async_fixture_may_use_the_app_before_and_after_the_test(user: pytest.Pytester) -> None:
    user.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nasyncio_mode = auto")
    user.makepyfile(
        """
        import pytest

        @pytest.fixture
        async def task(rota_app):
            @rota_app.task
            async def work(): ...
            await work.enqueue()
            yield work
            assert await rota_app.drain() == 1
            await rota_app.close()
            assert await rota_app.jobs.list(state="queued") == []

        async def test_it(task):
            await task.enqueue()
            await task.home.drain()
            await task.enqueue()
        """
    )

    run(user).assert_outcomes(passed=1)


def test_a_test_without_a_database_cannot_reach_the_real_one(user: pytest.Pytester) -> None:
    user.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nrota_app = jobs:app")
    user.makepyfile("import jobs\ndef test_it():\n    jobs.send_mail.enqueue_sync('ada')\n")

    result = run(user)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ConfigurationError: A test used the database of jobs:app without*rota_app*"])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere:app", "*No module named 'nowhere'*"),
        pytest.param("jobs:JOBS", "*no attribute*", marks=pytest.mark.long),
        pytest.param("sys:path", "*is a list, not a Rota*", marks=pytest.mark.long),
    ],
)
def test_an_app_that_cannot_be_had_is_named(user: pytest.Pytester, path: str, why: str) -> None:
    user.makeini(f"[pytest]\nasyncio_default_fixture_loop_scope = function\nrota_app = {path}")
    user.makepyfile("def test_it(): ...")

    result = run(user)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([why])


@pytest.mark.long
def test_workers_of_a_run_share_one_embedded_server_which_is_gone_afterwards(
    user: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROTA_TEST_DATABASE_URL")
    user.makepyfile(
        """
        import pytest
        from pathlib import Path

        @pytest.mark.parametrize("number", range(4))
        def test_it(rota_server, rota_app, number, request):
            worker = request.config.workerinput["workerid"]
            (Path(request.config.rootpath) / f"server-{worker}").write_text(rota_server.url)
            assert rota_app.enqueued() == []
        """
    )

    user.runpytest_subprocess("-n", "2", "--assert", "plain").assert_outcomes(passed=4)

    urls = {file.read_text() for file in user.path.glob("server-*")}
    assert len(list(user.path.glob("server-*"))) == 2
    assert len(urls) == 1
    with pytest.raises(Exception, match="No such file or directory"):
        DatabaseServer(urls.pop()).create_database()


def test_loading_the_plugin_costs_next_to_nothing() -> None:
    heavy = "[name for name in ('psycopg', 'rota.app', 'rota.testing.app') if name in sys.modules]"
    code = f"import pytest, sys, rota.testing.plugin; sys.exit(str({heavy}) if {heavy} else 0)"

    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr == ""
