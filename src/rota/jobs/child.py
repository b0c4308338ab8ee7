"""`python -m rota.jobs.child LINE ORDERS`: what runs in a child. One body at a time, in its main thread, until the worker hangs up.

The worker alone decides when a child ends. SIGINT and SIGTERM that come from elsewhere (a terminal, systemd stopping the
whole group) are meant for the worker too, and it may let this body finish; what it wants is said on a line of its own, which a
thread listens to while the main thread reads errands and runs them. That line also tells that the worker is gone, however it
went, and then there is nobody to run anything for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import faulthandler
import inspect
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol, cast

from rota.errors import ConfigurationError, ResourceUnavailable
from rota.failure import describe
from rota.jobs.claim import ClaimedJob
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.errand import BEGUN, END, STOPPING, Errand, Standing, line_of, written, written_failure
from rota.jobs.execute import call_of, counted, known_secrets_of, outcome_of, secrets_of, success_of
from rota.jobs.logs.capture import capturing
from rota.jobs.logs.notes import Notes
from rota.jobs.logs.send import LogSender
from rota.jobs.middleware import Middleware
from rota.jobs.outcome import AlreadySettled, Succeeded
from rota.jobs.package import Package
from rota.jobs.places import load
from rota.jobs.running import Desk, Held, running
from rota.jobs.tracing import Tracing
from rota.postgres.pool import Database
from rota.service.filling import Opened, fill
from rota.service.inject import Key
from rota.service.loop import off_the_loop
from rota.service.points import reach

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
# A child that grows beyond the memory there is should go before the worker does: as if it had a tenth of it more.
_OOM_HANDICAP = 100
# What closing connections may take, once there is nothing more to do.
_LEAVE_SECONDS = 5.0


class _Ended(SystemExit):
    """Raised into a sync body that is to end."""


class _Missing(Exception):
    """The task cannot be found; says why, with the trace of what was raised first on the way."""

    def __init__(self, why: str, trace: str) -> None:
        super().__init__(why)
        self.trace = trace


class _App(Protocol):
    """What an errand needs of the app that a task is registered on."""

    @property
    def database(self) -> Database: ...

    @property
    def codec(self) -> Codec | None: ...

    @property
    def tracing(self) -> Tracing | None: ...

    @property
    def tasks(self) -> Package: ...

    @property
    def middlewares(self) -> Middleware: ...

    def use(self, *, dsn: str, schema: str) -> None: ...

    async def close(self) -> None: ...


class _Child:
    def __init__(self, worker: socket.socket, orders: socket.socket) -> None:
        self._worker = worker
        self._orders = orders
        self._main = threading.get_ident()
        self._standing: dict[int, Standing] = {}
        self._runner = asyncio.Runner()  # one loop for all bodies, so that what one opened serves the next
        self._tasks: dict[str, tuple[Task[..., Any], _App]] = {}
        self._databases: dict[_App, tuple[str, str]] = {}
        self._desks: dict[_App, Desk] = {}
        self._opened: dict[_App, tuple[Opened, AsyncExitStack]] = {}
        self._saying = threading.Lock()
        self._levels: dict[str, int] = {}
        self._sender = LogSender(lambda said: self._say(line_of(said)))
        self._notes = Notes(self._levels, self._secrets, self._sender.wake)
        self._capturing = contextlib.ExitStack()
        self._attempt: Held | None = None
        self._coroutine: asyncio.Task[Any] | None = None
        self._busy = False
        self._alone = False
        self._stopping = False
        self._ending = False

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._obey, name="rota-orders", daemon=True).start()
        try:
            for said in _lines_of(self._worker):
                answer = self._attend(json.loads(said))
                if answer is None:
                    continue
                _flush()
                if self._ending:
                    break
                self._busy = False
                if self._levels:
                    self._sender.send()
                self._say(line_of(answer))
        except _Ended:
            pass
        if self._ending:
            # what the body had to clean up it has; connections are closed by being gone, and threads are not waited for
            _flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self._close()

    def _obey(self) -> None:
        """Do what the worker wants at once, until it is gone."""
        for order in _lines_of(self._orders):
            if order == STOPPING:
                self._stopping = True
            elif order == END:
                self._ending = True
                signal.pthread_kill(self._main, signal.SIGTERM)
        self._alone = True
        if not self._busy:
            time.sleep(_LEAVE_SECONDS)
        os._exit(1)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if not self._ending:
            return
        if self._attempt is not None:
            self._attempt.tell("ended")
        if self._coroutine is None:
            raise _Ended(128 + signal.SIGTERM)
        # from a handler the loop is woken like from a thread
        self._coroutine.get_loop().call_soon_threadsafe(self._coroutine.cancel)

    def _say(self, message: bytes) -> None:
        try:
            with self._saying:
                self._worker.sendall(message)
        except OSError:
            os._exit(1)  # the worker is gone

    def _attend(self, message: dict[str, Any] | list[Any]) -> dict[str, Any] | list[Any] | None:
        if isinstance(message, list):
            self._be_busy()
            return contextvars.copy_context().run(self._answer, Errand.from_message(message, self._standing))
        if "load" in message:
            self._be_busy()
            return contextvars.copy_context().run(self._load_ahead, self._standing[message["load"]])
        if "task" in message:
            self._standing[message["number"]] = Standing.from_message(message)
        elif "stopping" in message:
            self._stopping = True
        else:
            sys.path[:], sys.argv[:] = message["path"], message["argv"]
        return None

    def _be_busy(self) -> None:
        self._busy = True
        # asked after that is said: whoever notices that the worker is gone sees one or the other
        if self._alone:
            os._exit(1)

    def _load_ahead(self, standing: Standing) -> dict[str, Any]:
        with contextlib.suppress(_Missing):  # who sends a job of it is told why
            self._found(standing)
        return {"ready": True}

    def _answer(self, errand: Errand) -> dict[str, Any] | list[Any]:
        standing = errand.standing
        try:
            task, app = self._found(standing)
        except _Missing as missing:
            return {"missing": str(missing), "trace": missing.trace}
        if self._databases.get(app) != (standing.dsn, standing.schema):
            app.use(dsn=standing.dsn, schema=standing.schema)
            self._databases[app] = (standing.dsn, standing.schema)
            # one body at a time, so one transaction: it reports through the app's own connections meanwhile
            transactions = app.database.apart("job", size=1)
            self._desks[app] = Desk(
                app.database, app.codec, lambda: self._stopping, transactions=transactions, notes=self._notes
            )
        if standing.logs is not None:
            self._keep_log(standing.task, standing.logs)
        if app.tracing is None:
            return self._run(task, app, errand)
        with app.tracing.continuing(errand.trace):
            return self._run(task, app, errand)

    def _keep_log(self, task: str, level: int) -> None:
        if not self._levels:
            # now, and not before: what the app's modules set up for logging is in place
            self._capturing.enter_context(capturing())
            self._sender.start(self._notes)
        self._levels[task] = level

    def _secrets(self, job: ClaimedJob) -> list[str] | None:
        task, app = self._tasks[job.task]
        return known_secrets_of(task, job, app.codec)

    def _found(self, standing: Standing) -> tuple[Task[..., Any], _App]:
        if standing.task not in self._tasks:
            self._tasks[standing.task] = _find(standing)
        return self._tasks[standing.task]

    def _run(self, task: Task[..., Any], app: _App, errand: Errand) -> dict[str, Any] | list[Any]:
        job, desk = errand.job, self._desks[app]
        attempt = self._attempt = Held(job, task.signature, desk)
        running.set(attempt)
        try:
            reach("run.before")
            args, kwargs = call_of(task, job, desk)
            try:
                if task.wants or app.middlewares.around_run:
                    self._wait_for(self._open([*task.wants.values(), *app.middlewares.wants()], app))
            except ResourceUnavailable as error:
                return {"unopened": str(error)}
            self._say(BEGUN + b"\n")
            value = self._call(task, app, args, kwargs)
            reach("run.after")
            outcome = success_of(task, attempt, value, desk)
            return [outcome.result, outcome.seconds] if isinstance(outcome, Succeeded) else written(outcome)
        except BaseException as error:
            if self._ending:
                raise _Ended from error
            if attempt.settled:
                raised = {"raised": written_failure(describe(error, secrets_of(task, job, desk.codec)))}
                return written(AlreadySettled(job, attempt.seconds)) | raised
            return written(outcome_of(task, job, counted(task.name, error), attempt.seconds, desk.codec))

    def _call(self, task: Task[..., Any], app: _App, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if app in self._opened:
            return self._wait_for(self._call_with_all(task, app, args, kwargs))
        if not task.is_async:
            return task.function(*args, **kwargs)
        return self._wait_for(task.function(*args, **kwargs))

    async def _call_with_all(
        self, task: Task[..., Any], app: _App, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call it with the resources that it wants, and the middleware of its app around it."""

        async def call() -> Any:
            async with AsyncExitStack() as stack:
                values = await fill(app.tasks.resources, task.wants, stack)
                if task.is_async:
                    return await task.function(*args, **kwargs, **values)
                coroutine, self._coroutine = self._coroutine, None  # it is the body that is to be interrupted
                try:
                    with off_the_loop():
                        return task.function(*args, **kwargs, **values)
                finally:
                    self._coroutine = coroutine

        opened, _ = self._opened[app]
        with opened.standing():
            return await app.middlewares.run(running.get().job, call)

    async def _open(self, wants: Iterable[Key], app: _App) -> None:
        """Open what is wanted and no body before this wanted: it is kept for the next, until this process ends."""
        if app not in self._opened:
            self._opened[app] = Opened(app.tasks.resources), AsyncExitStack()
        opened, stack = self._opened[app]
        await opened.open(wants, lambda _, life: stack.enter_async_context(life))

    def _wait_for(self, body: Coroutine[Any, Any, Any]) -> Any:
        value, error = self._runner.run(self._awaited(body), context=contextvars.copy_context())
        if error is not None:
            raise error
        return value

    async def _awaited(self, body: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
        """What the body returned or raised: caught in here, its trace has no frames of the loop's."""
        self._coroutine = asyncio.current_task()
        try:
            return await body, None
        except BaseException as error:
            return None, error
        finally:
            self._coroutine = None

    def _close(self) -> None:
        for _, stack in self._opened.values():
            with contextlib.suppress(Exception):
                self._runner.run(stack.aclose())
        for app, desk in self._desks.items():
            for used in (desk.transactions, app):
                with contextlib.suppress(Exception):
                    self._runner.run(used.close())
        self._runner.close()


def _find(standing: Standing) -> tuple[Task[..., Any], _App]:
    """The task, and the app it belongs to. Raises _Missing."""
    problems, traces = [], [""]
    for place in standing.places:
        try:
            module = load(place)
        except _Ended:
            raise
        except BaseException as error:
            failure = describe(error)
            problems.append(f"loading {place} raised {failure.type}: {failure.message}")
            traces.append(failure.trace)
            continue
        task = _task_in(module, standing)
        if task is None:
            problems.append(f"{place} holds no task {standing.task!r} once it is loaded")
            continue
        try:
            return task, cast(_App, task.home)
        except ConfigurationError as error:
            problems.append(str(error))
    raise _Missing("; ".join(problems), "".join(traces[:2]))


def _task_in(module: ModuleType, standing: Standing) -> Task[..., Any] | None:
    name = standing.task
    found: Any = module
    for part in standing.path.split("."):
        found = inspect.getattr_static(found, part, None)
    if isinstance(found, Task) and found.name == name:
        return found
    for value in list(vars(module).values()):
        # asked without running anyone's code: who knows what stands in a module
        registry = value if isinstance(value, Package) else inspect.getattr_static(value, "tasks", None)
        if isinstance(registry, Package) and name in registry:
            return registry[name]
    return None


def _lines_of(line: socket.socket) -> Iterator[bytes]:
    """What is said on it, until its other end is gone."""
    with contextlib.suppress(OSError):
        yield from line.makefile("rb")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _die_with_the_worker() -> None:
    """Also when it is killed; where the system does not offer that, the line tells a little later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            handicap = Path("/proc/self/oom_score_adj")
            handicap.write_text(str(min(1000, int(handicap.read_text()) + _OOM_HANDICAP)))


def main(line: int, orders: int) -> None:
    worker, boss = socket.socket(fileno=line), socket.socket(fileno=orders)
    for each in (worker, boss):
        each.set_inheritable(False)  # what a body starts must not hold the line when we are gone
    _die_with_the_worker()
    # not ignored, which programs that a body starts would inherit
    signal.signal(signal.SIGINT, lambda number, frame: None)
    with contextlib.suppress(RuntimeError):  # without a standard error there is nobody to tell
        faulthandler.enable()
    _Child(worker, boss).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
