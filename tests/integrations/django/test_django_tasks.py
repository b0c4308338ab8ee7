"""Rota as the backend of Django's tasks framework, which Django has from version 6: see `make django`."""

from __future__ import annotations

from collections.abc import Callable

import django
import pytest
from tests.integrations.django.shops import ManagedWorker, Project

from rota.testing import TestRota

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.skipif(
        django.VERSION < (6,), reason=f"Django {django.__version__} has no tasks framework: `make django` runs this"
    ),
]

USE = """
from datetime import timedelta
from django.db import transaction
from django.tasks import TaskResultStatus, default_task_backend
from django.utils import timezone
from newer import tasks
from rota.integrations.django import app
from shop.models import Order

def told(result):
    return [result.status, result.attempts, [error.exception_class.__name__ for error in result.errors]]

def raised(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error)]
"""


class Shop(Project):
    def use(self, code: str) -> object:
        return self.run(f"{USE}\n{code}")


@pytest.fixture
def shop(project: Project, rota_database: str) -> Shop:
    return Shop(rota_database)


def test_a_task_of_django_is_run_by_a_worker_and_its_result_is_read_back(shop: Shop) -> None:
    id, ready = shop.use("""
order = Order.objects.create(name="an anvil")
result = tasks.ship.enqueue(order.id, suffix="!")
answer = [result.id, [*told(result), result.args, result.kwargs, result.started_at, result.backend]]
""")  # type: ignore[misc]
    assert ready == ["READY", 0, [], [1], {"suffix": "!"}, None, "default"]

    shop.drain()

    assert shop.use(f"""
result = tasks.ship.get_result({id!r})
assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
assert result.task.func is tasks.ship.func
answer = [*told(result), result.args, result.kwargs, result.return_value, Order.objects.get(id=1).shipped]
""") == ["SUCCESSFUL", 1, [], [1], {"suffix": "!"}, {"shipped": [1, "!"]}, True]


def test_a_task_enqueued_in_a_transaction_is_there_when_that_commits_and_never_if_it_does_not(
    shop: Shop, rota_app: TestRota
) -> None:
    seen = shop.use("""
answer = []
try:
    with transaction.atomic():
        undone = tasks.fail.enqueue()
        answer += [tasks.fail.get_result(undone.id).status, len(app.jobs.list_sync())]
        raise LookupError
except LookupError:
    answer += [raised(tasks.fail.get_result, undone.id)[0]]
with transaction.atomic():
    kept = tasks.fail.enqueue()
answer += [[job.id for job in app.jobs.list_sync()] == [int(kept.id)]]
""")

    assert seen == ["READY", 0, "TaskResultDoesNotExist", True]


def test_a_coroutine_is_enqueued_run_and_refreshed(shop: Shop) -> None:
    id = shop.use("""
import asyncio
Order.objects.create(name="an anvil")
async def enqueue():
    return (await tasks.ship_async.aenqueue(1)).id
answer = asyncio.run(enqueue())
""")

    shop.drain()

    assert shop.use(f"""
import asyncio
async def look():
    result = await tasks.ship_async.aget_result({id!r})
    await result.arefresh()
    return result
# annotated as a text, and called with a number: arguments are as they were given
answer = [*told(asyncio.run(look())), asyncio.run(look()).return_value, Order.objects.get(id=1).shipped]
""") == ["SUCCESSFUL", 1, [], 1, True]


def test_attempts_errors_and_workers_are_those_of_the_job(shop: Shop) -> None:
    first, never, slow, strange = shop.use(
        "answer = [each.enqueue().id for each in (tasks.fail_first, tasks.fail, tasks.fail_slowly, tasks.returns_no_json)]"
    )  # type: ignore[misc]

    shop.drain()

    assert shop.use(f"answer = told(r := tasks.fail_first.get_result({first!r})), r.return_value") == [
        ["SUCCESSFUL", 2, ["ValueError"]],
        [2, first, ["ValueError"]],
    ]
    assert shop.use(f"""
result = tasks.fail.get_result({never!r})
answer = [*told(result), len(result.worker_ids), "unknown" in result.worker_ids, raised(lambda: result.return_value)]
assert result.started_at < result.last_attempted_at <= result.finished_at
assert "tasks.py" in result.errors[0].traceback and "attempt.py" not in result.errors[0].traceback
""") == ["FAILED", 2, ["LookupError", "LookupError"], 2, False, ["ValueError", "Task failed"]]
    assert shop.use(f"answer = told(tasks.fail_slowly.get_result({slow!r}))") == ["READY", 1, ["LookupError"]]
    assert shop.use(f"answer = told(tasks.returns_no_json.get_result({strange!r}))")[:2] == ["FAILED", 2]  # type: ignore[index]


def test_queue_priority_and_time_are_kept(shop: Shop, rota_app: TestRota) -> None:
    ids = shop.use("""
results = [tasks.note.enqueue(1), tasks.note.using(priority=-100).enqueue(2), tasks.note.using(priority=100).enqueue(3)]
later = tasks.note.using(run_after=timezone.now() + timedelta(hours=1), queue_name="default").enqueue(4)
answer = [result.id for result in [*results, later]]
""")
    shop.manage("rota", "worker", "--drain", "--concurrency", "1", "--queues", "mail")
    names = "answer = list(Order.objects.filter(name__in=['1', '2', '3', '4']).order_by('id').values_list('name', flat=True))"
    assert shop.use(names) == ["3", "1", "2"]
    assert shop.use(f"""
task = default_task_backend.get_result({ids[3]!r}).task
answer = [task.queue_name, task.priority, task.run_after > timezone.now()]
""") == ["default", 7, True]  # type: ignore[index]

    rota_app.advance("2h")
    shop.drain()

    assert shop.use(names) == ["3", "1", "2", "4"]


def test_signals_are_sent_where_the_task_runs_and_a_receiver_that_fails_does_no_harm(shop: Shop) -> None:
    right, wrong = shop.use("answer = [tasks.fail_first.enqueue().id, tasks.fail.enqueue().id]")  # type: ignore[misc]

    shop.drain()

    heard = shop.use(
        "answer = sorted(Order.objects.filter(name__contains='RotaBackend').values_list('name', flat=True))"
    )
    assert shop.use(f"answer = told(tasks.fail_first.get_result({right!r}))[:2]") == ["SUCCESSFUL", 2]
    assert heard == sorted(
        [
            *2 * [f"started RotaBackend {right} RUNNING"],
            f"finished RotaBackend {right} SUCCESSFUL",
            *2 * [f"started RotaBackend {wrong} RUNNING"],
            f"finished RotaBackend {wrong} FAILED",
        ]
    )


def test_a_trace_leads_from_the_call_through_the_row_to_the_body_of_a_task_of_django(shop: Shop) -> None:
    pytest.importorskip("opentelemetry.sdk")

    seen = shop.use("""
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rota.integrations.otel import instrument

provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
instrument(app, tracer_provider=provider)
tracer = provider.get_tracer("shop")
with tracer.start_as_current_span("sync"), transaction.atomic():
    tasks.note.enqueue("a")
with tracer.start_as_current_span("async"):
    asyncio.run(tasks.ship_async.aenqueue("1"))
app.work_sync(drain=True)

spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
answer = sorted(
    [span.name, spans[span.parent.span_id].name] for span in spans.values() if span.parent and "settle" not in span.name
)
""")

    assert seen == [
        ["process default", "send default"],
        ["process mail", "send mail"],
        ["send default", "async"],
        ["send mail", "sync"],
    ]


def test_a_job_that_was_cancelled_has_failed_and_says_why(shop: Shop, rota_app: TestRota) -> None:
    id = shop.use("answer = tasks.fail.enqueue().id")

    rota_app.jobs.cancel_sync(int(id), "nobody wants it")  # type: ignore[call-overload]

    assert shop.use(f"answer = [*told(r := tasks.fail.get_result({id!r})), r.errors[0].traceback]") == [
        "FAILED",
        0,
        ["JobCancelled"],
        "nobody wants it",
    ]


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        ("tasks.ship.enqueue, object()", "TypeError", "Unsupported type"),
        ("tasks.ship.enqueue, 1, sufix='!'", "InvalidArguments", "unexpected keyword argument 'sufix'"),
        (
            "tasks.ship.enqueue",
            "InvalidArguments",
            "missing a required argument: 'id'. The call is ship(id, suffix='')",
        ),
        ("tasks.fail_first.enqueue, 1", "InvalidArguments", "too many positional arguments"),
        ("tasks.note.using, queue_name='other'", "InvalidTask", "Queue 'other' is not valid"),
        ("tasks.note.using, priority=101", "InvalidTask", "between -100 and 100"),
        ("default_task_backend.get_result, '99'", "TaskResultDoesNotExist", "There is no job 99"),
        ("default_task_backend.get_result, 'ab-1'", "TaskResultDoesNotExist", "There is no job ab-1"),
        ("tasks.ship.get_result, tasks.fail.enqueue().id", "TaskResultMismatch", "newer.tasks.fail"),
    ],
)
def test_what_cannot_be_is_refused(shop: Shop, call: str, error: str, told: str) -> None:
    kind, message = shop.use(f"answer = raised({call})")  # type: ignore[misc]

    assert (kind, told in message) == (error, True), message


def test_a_job_of_no_task_of_django_has_no_result(shop: Shop) -> None:
    kind, message = shop.use("""
from shop.tasks import ship
answer = raised(default_task_backend.get_result, str(ship.enqueue_sync(1).id))
""")  # type: ignore[misc]

    assert kind == "TaskResultDoesNotExist"
    assert "'ship', which" in message


def test_times_are_naive_in_a_project_without_time_zones(project: Project, rota_database: str) -> None:
    shop = Shop(rota_database, USE_TZ=False)
    id = shop.use("""
from datetime import datetime
later = tasks.ship.using(run_after=datetime.now() + timedelta(hours=1)).enqueue(1)
soon = tasks.ship.using(run_after=datetime.now() - timedelta(seconds=1)).enqueue(1)
answer = [soon.id, later.id]
""")

    shop.drain()

    assert shop.use(f"""
from datetime import datetime
soon, later = (default_task_backend.get_result(id) for id in {id!r})
now = datetime.now()
answer = [soon.status, now - timedelta(minutes=5) < soon.enqueued_at <= soon.finished_at < now, later.status]
assert later.task.run_after > now
""") == ["SUCCESSFUL", True, "READY"]


def test_a_worker_that_stays_takes_jobs_at_once(
    shop: Shop, worker: Callable[..., ManagedWorker], rota_app: TestRota
) -> None:
    worker()

    id = shop.use("answer = tasks.fail_first.enqueue().id")

    assert rota_app.jobs.get_sync(int(id)).wait_sync("20s")[0] == 2  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"INSTALLED_APPS": ["shop", "newer"]}, "rota.E006"),
        (
            {
                "TASKS": {
                    "default": {"BACKEND": "rota.integrations.django.backend.RotaBackend", "OPTIONS": {"retries": 1}}
                }
            },
            "does not know 'retries': it may hold retry, timeout, retention",
        ),
    ],
)
def test_settings_of_the_backend_that_cannot_work_are_told(
    rota_database: str, settings: dict[str, object], told: str
) -> None:
    assert told in Project(rota_database, **settings).manage("check", fails=1)
