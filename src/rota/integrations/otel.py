"""Traces for OpenTelemetry: from the call that enqueues a job, through its row, to the body that runs it.

    from rota.integrations.otel import instrument

    instrument(app)

There is a span `send {queue}` around enqueueing, `process {queue}` around each attempt, and `settle {queue}` around writing down
what became of it. What a body enqueues is a child of its span. Only the API is needed here: which spans are kept, and where they
go, is up to the SDK that the application sets up; until it has, nothing is done but to look whether it has.

Arguments and results are in no span. Errors are told as they are stored, so what a task redacts is blotted out in them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from rota.app import Rota
from rota.errors import ConfigurationError
from rota.integrations import semconv
from rota.jobs.claim import ClaimedJob
from rota.jobs.job import Job, NewJob
from rota.jobs.outcome import Buried, Lost, Outcome, Retried, Unsuccessful
from rota.release import RELEASE

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NoOpTracer,
        ProxyTracerProvider,
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigurationError("Traces need the package opentelemetry-api: pip install 'rota[otel]'.") from error

__all__ = ["instrument"]

_W3C = TraceContextTextMapPropagator()
# The SDK keeps no more by default.
_MOST_LINKS = 128
# Jobs of one call, attempts of one job, and what settles it have a context in common.
_KNOWN_CONTEXTS = 1024
_ODD = frozenset("13579bdf")


def instrument(
    app: Rota, *, tracer_provider: TracerProvider | None = None, link: bool = False, settle: bool = True
) -> Callable[[], None]:
    """Trace what this app enqueues and runs from now on; returns how to stop. A worker that runs already is not traced.

    An attempt belongs to the trace of the call that enqueued its job; with `link` it begins a trace of its own, which is linked to
    that one: for jobs that wait for days, or that one call enqueues by the thousand. `settle=False` leaves out the spans of
    writing down outcomes. Both who enqueues and who works must be instrumented.
    """
    tracer = trace.get_tracer("rota", RELEASE, tracer_provider)
    app.tracing = _Tracing(tracer, of_process=tracer_provider is None, link=link, settle=settle)

    def stop() -> None:
        app.tracing = None

    return stop


class _Told:
    """A span, and how its context travels."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @cached_property
    def context(self) -> str | None:
        # only where it travels: most bodies run where they are traced
        return _written(trace.set_span_in_context(self._span, Context()))


class _Sending(_Told):
    def sent(self, jobs: Sequence[Job[Any]]) -> None:
        if len(jobs) == 1:
            self._span.set_attribute(semconv.MESSAGE_ID, str(jobs[0].id))


class _Processing(_Told):
    def ended(self, outcome: Outcome) -> None:
        told = outcome.kind if isinstance(outcome, Unsuccessful) else "succeeded"
        self._span.set_attribute(semconv.JOB_OUTCOME, told)
        if isinstance(outcome, Retried | Buried | Lost):
            failure = outcome.failure
            self._span.set_attribute(semconv.ERROR_TYPE, failure.type)
            self._span.set_status(Status(StatusCode.ERROR, failure.message))
            self._span.add_event(
                semconv.EXCEPTION,
                {
                    semconv.EXCEPTION_TYPE: failure.type,
                    semconv.EXCEPTION_MESSAGE: failure.message,
                    semconv.EXCEPTION_STACKTRACE: failure.trace,
                },
            )


class _Nobody:
    """Stands for a span while nobody traces."""

    context = None

    def sent(self, jobs: Sequence[Job[Any]]) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


_NOTHING = nullcontext(_Nobody())
_Kind = TypeVar("_Kind", bound=_Told)


class _Tracing:
    """See rota.jobs.tracing."""

    def __init__(self, tracer: Tracer, *, of_process: bool, link: bool, settle: bool) -> None:
        self._tracer = tracer
        self._of_process = of_process
        self._link = link
        self._settle = settle

    @property
    def _idle(self) -> bool:
        """Whether no SDK is set up, or one that is told to do nothing. The application may do it after us."""
        if self._of_process:
            return type(trace.get_tracer_provider()) is ProxyTracerProvider
        return type(self._tracer) is NoOpTracer

    def sending(self, new: Sequence[NewJob]) -> AbstractContextManager[_Sending | _Nobody]:
        if self._idle:
            return _NOTHING
        attributes = _about(semconv.PRODUCER_OPERATION, [job.queue for job in new], [job.task for job in new])
        return self._span(_Sending, semconv.PRODUCER_OPERATION, SpanKind.PRODUCER, attributes)

    def processing(self, job: ClaimedJob) -> AbstractContextManager[_Processing | _Nobody]:
        if self._idle:
            return _NOTHING
        attributes = _about(semconv.CONSUMER_OPERATION, [job.queue], [job.task]) | {
            semconv.MESSAGE_ID: str(job.id),
            semconv.JOB_ATTEMPT: job.attempt,
        }
        if job.schedule is not None:
            attributes[semconv.JOB_SCHEDULE] = job.schedule
        if job.waited is not None:
            attributes[semconv.JOB_WAITED] = job.waited
        # never of whatever the worker happened to be started in
        before = _read(job.trace_context)
        links = _links([job.trace_context]) if self._link else []
        parent = Context() if self._link else before
        return self._span(_Processing, semconv.CONSUMER_OPERATION, SpanKind.CONSUMER, attributes, parent, links)

    @contextlib.contextmanager
    def continuing(self, context: str | None) -> Iterator[None]:
        token = contexts.attach(_read(context))
        try:
            yield
        finally:
            contexts.detach(token)

    def settling(self, outcomes: Sequence[Outcome]) -> AbstractContextManager[Any]:
        if not self._settle or self._idle:
            return _NOTHING
        jobs = [outcome.job for outcome in outcomes]
        traced = list(dict.fromkeys(job.trace_context for job in jobs if _is_sampled(job.trace_context)))[:_MOST_LINKS]
        if not traced:
            return _NOTHING
        attributes = _about(semconv.SETTLE_OPERATION, [job.queue for job in jobs], [job.task for job in jobs])
        alone = len(jobs) == 1 and not self._link
        parent = _read(traced[0]) if alone else Context()
        links = [] if alone else _links(traced)
        return self._span(_Told, semconv.SETTLE_OPERATION, SpanKind.CLIENT, attributes, parent, links)

    @contextlib.contextmanager
    def _span(
        self,
        told: Callable[[Span], _Kind],
        operation: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[_Kind]:
        queue = attributes.get(semconv.DESTINATION)
        # in these steps, as the one call for all of them takes a tenth of what a span costs
        span = self._tracer.start_span(f"{operation} {queue}" if queue else operation, parent, kind, attributes, links)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield told(span)
        except BaseException as error:
            # an error may hold what is not for everyone: of one that nobody has blotted, only the type is told
            span.set_attribute(semconv.ERROR_TYPE, type(error).__qualname__)
            if not isinstance(error, asyncio.CancelledError):
                span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
            raise
        finally:
            contexts.detach(token)
            span.end()


def _about(operation: str, queues: Sequence[str], tasks: Sequence[str]) -> dict[str, Any]:
    """What is told of any operation. Where it is about several queues or tasks, none of them is named."""
    attributes: dict[str, Any] = {
        semconv.SYSTEM: semconv.SYSTEM_VALUE,
        semconv.OPERATION_NAME: operation,
        semconv.OPERATION_TYPE: operation,
    }
    if len(queues) > 1:
        attributes[semconv.BATCH_COUNT] = len(queues)
    for name, values in ((semconv.DESTINATION, set(queues)), (semconv.JOB_TASK, set(tasks))):
        if len(values) == 1:
            attributes[name] = values.pop()
    return attributes


def _written(context: Context) -> str | None:
    """The context as it stands in a row: traceparent and, after a space, tracestate; None where nobody traces."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    parent, state = carrier.get("traceparent"), carrier.get("tracestate")
    return f"{parent} {state}" if parent and state else parent


def _is_sampled(written: str | None) -> bool:
    """Whether whoever wrote it keeps the trace: the lowest bit of the flags, at the end of a traceparent."""
    return written is not None and written[54:55] in _ODD


@lru_cache(maxsize=_KNOWN_CONTEXTS)
def _read(written: str | None) -> Context:
    """The context that a row tells of; an empty one if it tells of none, or of what nobody understands."""
    if not written:
        return Context()
    parent, _, state = written.partition(" ")
    return _W3C.extract({"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}, Context())


def _links(written: Sequence[str | None]) -> list[Link]:
    spans = (trace.get_current_span(_read(each)).get_span_context() for each in written)
    return [Link(span) for span in spans if span.is_valid]
