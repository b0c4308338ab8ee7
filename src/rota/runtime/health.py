"""Whether this process makes progress, whether it is to be given work, and how each part of it is.

Three questions, since three different things follow from the answers. `live`: if it is not, a restart helps; so it never asks
the database, which no restart of ours brings back. `ready`: if it is not, requests go elsewhere for a while. `detail` is for
people and decides nothing.

All of them may be asked from any thread, as often as anybody likes, and none of them raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rota.app import Rota
from rota.clock import boottime, seconds
from rota.errors import ConfigurationError, DatabaseUnavailable, EmbeddedError, RotaError, SchemaMismatch
from rota.jobs.lanes import Look, find_lanes
from rota.leases.control import Control
from rota.postgres.schema import Applied, applied_migrations, check_schema, migration_files
from rota.runtime.line import Line, Question
from rota.service.ending import ENDING
from rota.service.watchdog import watchdogs
from rota.working import Working

__all__ = ["Health", "Report", "health_of"]

T = TypeVar("T")
Reason = Literal["shutting_down", "database", "schema", "starting"]

_LIVE_LIMIT = 30.0  # a body that blocks its loop for so long will not stop by itself; shorter ones are told in the log
_ANSWER_SECONDS = 1.0
# The control thread asks the database twice a second: whoever hears from it need not ask again.
_HEARD_SECONDS = 1.0
# Once the schema has fitted, it is changed by a deploy only.
_SCHEMA_SECONDS = 60.0
# What may look like a thread that stands still is, after SIGSTOP or sleep, one that has not had its turn yet.
_SURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """What to answer: an HTTP status, and a body to be sent as JSON."""

    status: int
    body: dict[str, Any]

    @property
    def well(self) -> bool:
        return self.status == 200


class Health:
    """The health of one app in this process. Use `health_of`, which makes one for each."""

    def __init__(self, app: Rota, *, live_limit: float | None = None) -> None:
        self._app = app
        #: whether a worker belongs to this process: then it is not ready before that has started
        self.expect_worker = False
        self.live_limit = _live_limit() if live_limit is None else live_limit
        self._line = Line(app)
        self._reach: Question[list[Applied]] = Question(self._line, applied_migrations)
        self._backlog: Question[Look] = Question(self._line, lambda: find_lanes(None))
        self._asked_of: tuple[object, int] | None = None
        self._fits_until = 0.0
        self._worked = False
        self._started = False
        self._silent: dict[int, float] = {}

    def live(self) -> Report:
        """Whether the process makes progress: event loops turn and the thread that keeps the lease comes round."""
        blocked = max((watchdog.blocked_for for watchdog in watchdogs(self._app.facts)), default=0.0)
        if blocked >= self.live_limit:
            return Report(503, {"live": False, "reason": "event_loop", "seconds": round(blocked, 1)})
        silent = max((self._surely_silent(control) for control in self._controls()), default=0.0)
        if silent >= self.live_limit:
            return Report(503, {"live": False, "reason": "lease_thread", "seconds": round(silent, 1)})
        return Report(200, {"live": True})

    async def ready(self) -> Report:
        """Whether to give this process work. The database has a second to answer; what it said is good for another."""
        self._line.loop = asyncio.get_running_loop()
        return await self._by(self._ready_by, self._ask_reach())

    def ready_sync(self) -> Report:
        return self._by_sync(self._ready_by, self._ask_reach())

    async def startup(self) -> Report:
        """Whether the start is over, or waits for a database, which no restart helps with. Once it is, it stays so."""
        return self._startup(None if self._started else await self.ready())

    def startup_sync(self) -> Report:
        return self._startup(None if self._started else self.ready_sync())

    async def detail(self) -> Report:
        """How each part of this process is. The status is that of a process which is both live and ready."""
        ready = await self.ready()
        asked = self._backlog.ask() if _reached(ready) else None
        return await self._by(functools.partial(self._detail_by, ready), asked)

    def detail_sync(self) -> Report:
        ready = self.ready_sync()
        asked = self._backlog.ask() if _reached(ready) else None
        return self._by_sync(functools.partial(self._detail_by, ready), asked)

    def close(self) -> None:
        """Let go of the connection that questions use. The next one opens it again."""
        self._line.close()

    # Both colours wait for one answer, for the rest of its second, and then judge without it.

    async def _by(self, judge: Any, asked: tuple[Future[Any], float] | None) -> Report:
        if asked is not None and not asked[0].done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_left(asked[1])):
                    # what it raises is read from the future itself; cancelling us does not cancel it for others
                    await asyncio.shield(asyncio.gather(asyncio.wrap_future(asked[0]), return_exceptions=True))
        report: Report = judge(asked[0] if asked else None)
        return report

    def _by_sync(self, judge: Any, asked: tuple[Future[Any], float] | None) -> Report:
        if asked is not None and not asked[0].done():
            with contextlib.suppress(Exception):
                asked[0].result(_left(asked[1]))
        report: Report = judge(asked[0] if asked else None)
        return report

    def _ask_reach(self) -> tuple[Future[Any], float] | None:
        """Ask the database, unless there is nothing to ask it."""
        place = self._app.database, os.getpid()
        if place != self._asked_of:
            self._asked_of, self._fits_until = place, 0.0
            self._reach.forget()
            self._backlog.forget()
        if self._ends:
            return None
        heard = any(control.renewed_ago < _HEARD_SECONDS for control in self._controls())
        return None if heard and boottime() < self._fits_until else self._reach.ask()

    def _ready_by(self, answer: Future[Any] | None) -> Report:
        reason = self._hindrance(answer)
        if reason is None:
            self._started = True
            return Report(200, {"ready": True})
        return Report(503, {"ready": False, "reason": reason})

    def _hindrance(self, answer: Future[Any] | None) -> Reason | None:
        if self._ends:
            return "shutting_down"
        if answer is not None:
            if not answer.done():
                return "database"
            try:
                check_schema(answer.result()[0], _known_migrations())
                self._fits_until = boottime() + _SCHEMA_SECONDS
            except SchemaMismatch:
                return "schema"
            except (DatabaseUnavailable, ConfigurationError, EmbeddedError):
                return "database"
            except RotaError:
                pass  # PostgreSQL is there, and has refused this one statement to a role that may enqueue all the same
            except Exception:
                return "database"
        return "starting" if self.expect_worker and not self._works else None

    @property
    def _works(self) -> bool:
        works = any(working.state in ("running", "quiet") for working in self._app.workings)
        self._worked = self._worked or works
        return works

    @property
    def _ends(self) -> bool:
        """Whether the process is to end, or its worker does or has."""
        if ENDING.begun:
            return True
        if not self.expect_worker or self._works:
            return False
        states = {working.state for working in self._app.workings}
        return "stopping" in states or (self._worked and not states)

    def _startup(self, ready: Report | None) -> Report:
        if ready is None or ready.body.get("reason") != "starting":
            self._started = True
            return Report(200, {"started": True})
        return Report(503, {"started": False, "reason": "starting"})

    def _controls(self) -> list[Control]:
        return [working.control for working in self._app.workings if working.control is not None]

    def _surely_silent(self, control: Control) -> float:
        """For how long its thread has not come round; twice seen, as a process that stood still may just have woken up."""
        silent, now = control.silent_for, boottime()
        if silent < self.live_limit:
            self._silent.pop(id(control), None)
            return 0.0
        first = self._silent.setdefault(id(control), now)
        return silent if now - first >= _SURE_SECONDS else 0.0

    def _detail_by(self, ready: Report, answer: Future[Any] | None) -> Report:
        live = self.live()
        well = live.well and ready.well
        return Report(
            200 if well else 503,
            {
                "live": live.body["live"],
                "ready": ready.body["ready"],
                **({} if well else {"reason": (ready if live.well else live).body["reason"]}),
                "database": self._shown_database(answer),
                "loop": self._shown_loop(),
                "workers": [_shown_worker(working) for working in self._app.workings],
                "leaderships": self._shown_terms(),
            },
        )

    def _shown_database(self, answer: Future[Any] | None) -> dict[str, Any]:
        look, took = None, None
        if answer is not None and answer.done() and answer.exception() is None:
            look, took = answer.result()
        use = None
        with contextlib.suppress(RuntimeError):  # a pool was opened at this very moment
            use = self._app.database.use
        return {
            "reached": took is not None,
            "round_trip": None if took is None else round(took, 4),
            # how late the oldest job is that could run now
            "queue_latency": None if look is None else round(max([0.0, *(-lane.due_in for lane in look.lanes)]), 3),
            "pool": None
            if use is None
            else {"limit": use.limit, "size": use.size, "used": use.used, "waiting": use.waiting},
        }

    def _shown_loop(self) -> dict[str, Any] | None:
        lags = [watchdog.lag for watchdog in watchdogs(self._app.facts)]
        if not lags:
            return None
        return {
            "lag": round(max(lag.last for lag in lags), 3),
            "longest_lag": round(max(lag.longest for lag in lags), 3),
        }

    def _shown_terms(self) -> list[dict[str, Any]]:
        return [{"name": term.name, "epoch": term.epoch, "valid": term.valid} for term in self._app.terms]


def _shown_worker(working: Working) -> dict[str, Any]:
    control: Control | None = working.control
    shown: dict[str, Any] = {"state": working.state, "finished": working.finished}
    if projections := working.projections:
        shown["projections"] = projections
    if control is None:
        return {**shown, "member": None, "listener": False, "lease": None}
    return {
        **shown,
        "member": str(control.member),
        "listener": control.hears,
        # how old its last renewal is, and for how long it may act without another
        "lease": {
            "age": round(control.renewed_ago, 3),
            "left": round(max(0.0, control.trusted_for(control.member)), 3),
            "may_act": control.may_act,
        },
    }


def _reached(ready: Report) -> bool:
    return ready.body.get("reason") not in ("database", "schema")


def _left(asked_at: float) -> float:
    return max(0.0, asked_at + _ANSWER_SECONDS - boottime())


@functools.cache
def _known_migrations() -> Any:
    return migration_files()


def _live_limit() -> float:
    given = os.environ.get("ROTA_LIVE_LIMIT")
    limit = _LIVE_LIMIT if not given else _number(given)
    if limit <= 0:
        raise ConfigurationError(
            f"ROTA_LIVE_LIMIT cannot be {given!r}: it is how long a blocked process counts as live."
        )
    return limit


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return seconds(given, "ROTA_LIVE_LIMIT")


_lock = threading.Lock()


def health_of(app: Rota) -> Health:
    """The one of this app, the same for all who ask."""
    with _lock:
        # kept by the app, so that it goes with it; which knows nothing of it, as imports go one way
        kept = vars(app)
        if "_health" not in kept:
            kept["_health"] = Health(app)
        health: Health = kept["_health"]
        return health
