"""Traces: from the call that enqueues, through the row, to the attempts that run it, in this process and in others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.span import TraceState

from rota import Discard, Retry, Snooze, Unique
from rota.facts import JobStuck
from rota.integrations import otel, semconv
from rota.integrations.log_records import current_context
from rota.integrations.otel import _read, _written, instrument
from rota.testing import TestRota, WorkerProcess, fact, until

pytestmark = pytest.mark.usefixtures("history_aside")


class Traces:
    """What was exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traces() -> Traces:
    return Traces()


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def about(span: ReadableSpan, *names: str) -> list[Any]:
    return [(span.attributes or {}).get(name) for name in names]


async def test_an_attempt_is_a_child_of_the_call_that_enqueued_it(rota_app: TestRota, traces: Traces) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(name="greet", queue="mail")
    async def greet(name: str) -> None: ...

    with traces.tracer.start_as_current_span("request") as request:
        job = await greet.enqueue("a secret")
    await rota_app.drain()

    send, process, settle = (traces.one(f"{what} mail") for what in ("send", "process", "settle"))
    assert parent(send) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert (parent(process), parent(settle)) == (ids(send), ids(send))
    assert [span.kind for span in (send, process, settle)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    names = (semconv.SYSTEM, semconv.DESTINATION, semconv.JOB_TASK, semconv.OPERATION_NAME)
    assert about(send, *names, semconv.MESSAGE_ID) == ["rota", "mail", "greet", "send", str(job.id)]
    assert about(process, *names, semconv.MESSAGE_ID) == ["rota", "mail", "greet", "process", str(job.id)]
    assert about(process, semconv.JOB_ATTEMPT, semconv.JOB_OUTCOME) == [1, "succeeded"]
    assert about(settle, *names) == ["rota", "mail", "greet", "settle"]
    assert process.status.status_code is StatusCode.UNSET
    assert "secret" not in "".join(span.to_json() for span in (send, process, settle))


async def test_an_attempt_can_be_linked_instead(rota_app: TestRota, traces: Traces) -> None:
    instrument(rota_app, tracer_provider=traces.provider, link=True)

    @rota_app.task
    async def work() -> None: ...

    await work.enqueue()
    await rota_app.drain()

    send, process, settle = (traces.one(f"{what} default") for what in ("send", "process", "settle"))
    assert (parent(process), links(process)) == (None, [ids(send)])
    assert (parent(settle), links(settle)) == (None, [ids(send)])
    assert ids(process)[0] != ids(send)[0]


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_what_a_body_enqueues_and_logs_belongs_to_its_span(
    rota_app: TestRota, traces: Traces, colour: str
) -> None:
    instrument(rota_app, tracer_provider=traces.provider)
    seen: list[dict[str, Any]] = []

    @rota_app.task(queue="second")
    async def second() -> None: ...

    if colour == "async":

        @rota_app.task(queue="first")
        async def first() -> None:
            seen.append(current_context())
            await second.enqueue()
    else:

        @rota_app.task(queue="first")
        def first() -> None:
            seen.append(current_context())
            second.enqueue_sync()

    await first.enqueue()
    await rota_app.drain()

    process = traces.one("process first")
    assert parent(traces.one("send second")) == ids(process)
    assert parent(traces.one("process second")) == ids(traces.one("send second"))
    trace_id, span_id = ids(process)
    assert (seen[0]["trace_id"], seen[0]["span_id"]) == (f"{trace_id:032x}", f"{span_id:016x}")


async def test_a_failed_attempt_says_so_and_the_next_belongs_to_the_same_trace(
    rota_app: TestRota, traces: Traces
) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(retry=Retry(attempts=2, base=0.0), redact=["password"])
    async def login(password: str) -> None:
        raise ValueError(f"wrong: {password}")

    await login.enqueue("hunter2-hunter2")
    await rota_app.drain()
    rota_app.advance("1h")
    await rota_app.drain()

    first, second = traces.named("process default")
    assert parent(first) == parent(second) == ids(traces.one("send default"))
    for span, outcome in ((first, "retried"), (second, "buried")):
        assert span.status.status_code is StatusCode.ERROR
        assert about(span, semconv.ERROR_TYPE, semconv.JOB_OUTCOME) == ["ValueError", outcome]
        (event,) = span.events
        assert event.name == "exception"
        assert "in login" in str((event.attributes or {})[semconv.EXCEPTION_STACKTRACE])
        assert "hunter2" not in span.to_json()
    assert [about(span, semconv.JOB_ATTEMPT) for span in (first, second)] == [[1], [2]]


@pytest.mark.parametrize(("raised", "outcome"), [(Snooze("1h"), "snoozed"), (Discard("no"), "cancelled")])
async def test_what_a_body_chooses_is_no_error(
    rota_app: TestRota, traces: Traces, raised: Exception, outcome: str
) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task
    async def work() -> None:
        raise raised

    await work.enqueue()
    await rota_app.drain()

    process = traces.one("process default")
    assert process.status.status_code is StatusCode.UNSET
    assert about(process, semconv.JOB_OUTCOME, semconv.ERROR_TYPE) == [outcome, None]


async def test_many_jobs_of_one_call_have_one_span_and_are_settled_with_links(
    rota_app: TestRota, traces: Traces
) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(queue="a")
    async def one() -> None: ...

    @rota_app.task(queue="b")
    async def other() -> None: ...

    await rota_app.enqueue_many([one.bind() for _ in range(20)])
    await rota_app.enqueue_many([one.bind(), other.bind()])
    await rota_app.drain()

    alike, mixed = traces.one("send a"), traces.one("send")
    assert about(alike, semconv.BATCH_COUNT, semconv.DESTINATION) == [20, "a"]
    assert about(mixed, semconv.BATCH_COUNT, semconv.DESTINATION, semconv.JOB_TASK) == [2, None, None]
    assert sorted(map(str, map(parent, traces.named("process a")))) == sorted(
        [str(ids(alike))] * 20 + [str(ids(mixed))]
    )
    settled = [span for name in ("settle a", "settle b", "settle") for span in traces.named(name)]
    assert sum(about(span, semconv.BATCH_COUNT)[0] or 1 for span in settled) == 22
    assert all(parent(span) is None for span in settled if span.links)
    assert all(len(set(links(span))) == len(span.links) for span in settled)  # of one call, one link


async def test_the_context_travels_through_every_way_in(rota_app: TestRota, rota_database: str, traces: Traces) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task
    async def work(n: int) -> None: ...

    with traces.tracer.start_as_current_span("request"):
        expected = f"00-{trace.get_current_span().get_span_context().trace_id:032x}-"
        jobs = [
            await work.enqueue(1),
            await asyncio.to_thread(work.enqueue_sync, 2),
            await work.using(unique="3").enqueue(3),
            *await rota_app.enqueue_many([work.bind(4)]),
            *await asyncio.to_thread(rota_app.enqueue_many_sync, [work.bind(5)]),
        ]
        async with await psycopg.AsyncConnection.connect(rota_database) as mine:
            jobs.append(await work.on(mine).enqueue(6))
        with psycopg.connect(rota_database) as mine_sync:
            jobs.append(work.on(mine_sync).enqueue_sync(7))

    read = [await rota_app.jobs.get(job.id) for job in jobs]
    assert all((job.trace_context or "").startswith(expected) for job in (*jobs, *read))
    assert len({job.trace_context for job in read}) == len(jobs)


async def test_the_context_stays_with_the_job_wherever_it_goes(rota_app: TestRota, traces: Traces) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(retry=1)
    async def work(how: str) -> None:
        if how == "die":
            raise ValueError
        if how == "discard":
            raise Discard

    done, dead, discarded = [await work.enqueue(how) for how in ("ok", "die", "discard")]
    ended = await work.using(delay="1h").enqueue("ok")
    await rota_app.jobs.cancel(ended.id)
    await rota_app.drain()
    contexts = [(await rota_app.jobs.get(job.id)).trace_context for job in (done, dead, discarded, ended)]
    again = [await rota_app.jobs.retry(done.id), await rota_app.dead.retry(dead.id)]
    await rota_app.jobs.discard(again[1].id)

    assert contexts == [job.trace_context for job in (done, dead, discarded, ended)]
    assert None not in contexts
    assert [job.trace_context for job in again] == [done.trace_context, dead.trace_context]
    assert (await rota_app.jobs.get(again[1].id)).trace_context == dead.trace_context


async def test_a_job_that_replaces_another_brings_its_own_context(rota_app: TestRota, traces: Traces) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task
    async def work() -> None: ...

    first = await work.using(unique=Unique("k", conflict="replace")).enqueue()
    second = await work.using(unique=Unique("k", conflict="replace")).enqueue()

    assert first.id == second.id
    assert (await rota_app.jobs.get(first.id)).trace_context == second.trace_context != first.trace_context


async def test_the_context_of_an_attempt_is_written_only_where_it_travels(
    rota_app: TestRota, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a tenth of what tracing costs a job."""
    write = otel._written
    written: list[Any] = []
    monkeypatch.setattr(otel, "_written", lambda context: (written.append(context), write(context))[1])
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task
    async def work() -> None: ...

    await rota_app.enqueue_many([work.bind() for _ in range(5)])
    await rota_app.drain()

    assert len(traces.named("process default")) == 5
    assert len(written) == 1  # of the call


async def test_without_anyone_who_traces_nothing_is_stored(rota_app: TestRota, traces: Traces) -> None:
    stop = instrument(rota_app, tracer_provider=traces.provider)
    stop()

    @rota_app.task
    async def work() -> None: ...

    job = await work.enqueue()
    await rota_app.drain()

    assert (await rota_app.jobs.get(job.id)).trace_context is None
    assert traces.named("process default") == []


async def test_without_an_sdk_nothing_is_stored_and_all_works(rota_app: TestRota) -> None:
    instrument(rota_app, tracer_provider=trace.NoOpTracerProvider())

    @rota_app.task
    async def work() -> int:
        return 7

    job = await work.enqueue()
    await rota_app.drain()

    read = await rota_app.jobs.get(job.id)
    assert (read.result, read.trace_context) == (7, None)


async def test_until_an_sdk_is_set_up_nothing_is_done_and_then_all_is(
    rota_app: TestRota, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    instrument(rota_app)

    @rota_app.task
    async def work() -> int:
        return 7

    with monkeypatch.context() as strict:
        strict.setattr(otel, "_about", lambda *_: pytest.fail("it gathers what nobody wants to know"))
        job = await work.enqueue()
        await rota_app.drain()
    read = await rota_app.jobs.get(job.id)
    monkeypatch.setattr(
        trace, "_TRACER_PROVIDER", traces.provider
    )  # the one of the process, which can be set only once
    await work.enqueue()
    await rota_app.drain()

    assert (read.result, read.trace_context) == (7, None)
    assert parent(traces.one("process default")) == ids(traces.one("send default"))


@pytest.mark.by_default("00-0", "03-1")
@pytest.mark.parametrize(("flags", "settled"), [("00", 0), ("02", 0), ("01", 1), ("03", 1)])
async def test_what_is_not_sampled_has_no_span_for_its_settling(
    rota_app: TestRota, rota_database: str, flags: str, settled: int
) -> None:
    traces = Traces(ALWAYS_ON)  # whatever its parent says: it is not even asked
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(name="work")
    async def work() -> None: ...

    with psycopg.connect(rota_database, autocommit=True) as db:
        context = f"00-{7:032x}-{8:016x}-{flags}"
        db.execute("insert into rota.jobs (task, trace_context) values ('work', %s)", [context])
    await rota_app.drain()

    assert len(traces.named("settle default")) == settled


async def test_a_call_that_is_not_sampled_says_so_in_its_row(rota_app: TestRota) -> None:
    instrument(rota_app, tracer_provider=TracerProvider(sampler=ALWAYS_OFF))

    @rota_app.task
    async def work() -> None: ...

    job = await work.enqueue()

    assert job.trace_context is not None
    assert int(job.trace_context[-2:], 16) & 1 == 0  # the lowest bit: sampled


async def test_a_row_that_nobody_understands_begins_a_trace(
    rota_app: TestRota, rota_database: str, traces: Traces
) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(name="work")
    async def work() -> None: ...

    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("insert into rota.jobs (task, trace_context) values ('work', 'gibberish'), ('work', '')")
    with traces.tracer.start_as_current_span("how the worker was started"):
        await rota_app.drain()

    assert [parent(span) for span in traces.named("process default")] == [None, None]


def test_the_state_of_a_trace_travels_as_well() -> None:
    span = trace.SpanContext(7, 8, True, trace.TraceFlags(1), TraceState([("vendor", "x"), ("other", "y z")]))

    written = _written(trace.set_span_in_context(trace.NonRecordingSpan(span)))

    assert written == f"00-{7:032x}-{8:016x}-01 vendor=x,other=y z"
    assert trace.get_current_span(_read(written)).get_span_context() == span
    assert _written(_read(None)) is None


async def test_a_body_that_refuses_to_end_is_given_up_also_while_it_is_traced(
    rota_app: TestRota, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.jobs.execute._PATIENCE_SECONDS", 0.05)
    instrument(rota_app, tracer_provider=traces.provider)
    free = asyncio.Event()

    @rota_app.task(timeout=0.05, retry=1)
    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    await stubborn.enqueue()
    stuck = fact(rota_app.facts, JobStuck)
    working = asyncio.create_task(rota_app.work(drain=True))
    try:
        await stuck
        await until(lambda: rota_app.dead.list(), what="it is a dead letter")
    finally:
        free.set()
        await working

    assert len(traces.named("settle default")) == 1


async def test_an_enqueueing_that_fails_is_an_error_of_its_span(rota_app: TestRota, traces: Traces) -> None:
    instrument(rota_app, tracer_provider=traces.provider)

    @rota_app.task(name="work")
    async def work() -> None: ...

    rota_app.database.schema = "nowhere"
    rota_app._intake._schema = "nowhere"
    with pytest.raises(Exception, match="nowhere"):
        await work.enqueue()

    send = traces.one("send default")
    assert send.status.status_code is StatusCode.ERROR
    assert about(send, semconv.ERROR_TYPE) == ["SchemaMissing"]


APP = """
import json, os
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from rota import Rota
from rota.integrations.otel import instrument

class ToFile(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS"], "a") as file:
            for span in spans:
                file.write(json.dumps(json.loads(span.to_json()) | {"pid": os.getpid()}) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
app = Rota()
instrument(app, tracer_provider=provider)

@app.task(name="apart", executor="process", queue="apart")
def apart():
    with provider.get_tracer("test").start_as_current_span("inside"):
        pass
"""


def test_the_trace_goes_on_in_other_processes(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], traces: Traces, tmp_path: Path
) -> None:
    instrument(rota_app, tracer_provider=traces.provider)
    spans = tmp_path / "spans"

    rota_app.task(name="apart", queue="apart")(lambda: None).enqueue_sync()
    worker = rota_worker(APP, env={"SPANS": str(spans), "ROTA_LOG_LEVEL": "debug"})
    worker.wait_for_output("succeeded in")
    worker.terminate()
    worker.wait()

    told = {span["name"]: span for span in map(json.loads, spans.read_text().splitlines())}
    trace_id, span_id = (
        f"0x{number:0{width}x}" for number, width in zip(ids(traces.one("send apart")), (32, 16), strict=True)
    )
    process, inside = told["process apart"], told["inside"]
    assert (process["context"]["trace_id"], process["parent_id"]) == (trace_id, span_id)
    assert (inside["context"]["trace_id"], inside["parent_id"]) == (trace_id, process["context"]["span_id"])
    assert process["pid"] == worker.pid != inside["pid"]


@pytest.fixture(autouse=True)
def _nothing_left_attached() -> Iterator[None]:
    yield
    assert not trace.get_current_span().get_span_context().is_valid
