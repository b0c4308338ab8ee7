"""Metrics for Prometheus: what this process did, from its facts, and what the database says, read when it is scraped.

    from rota.integrations.prometheus import exposition

    content_type, body = exposition(app)

What the database says is the same whoever is asked: take its maximum over processes, and the sum of all else.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from rota.app import Rota
from rota.errors import ConfigurationError
from rota.integrations.counting import MOST_NAMES, OUTCOMES, Counting
from rota.integrations.database_reading import DatabaseReader, Reading, said_of_schedules
from rota.integrations.metric_names import METRICS, Metric
from rota.release import RELEASE
from rota.service.watchdog import watchdogs

try:
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric as Family
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigurationError("Metrics need the package prometheus-client: pip install 'rota[prometheus]'.") from error

__all__ = ["RotaCollector", "collector", "exposition"]

#: how long what the database said is shown again: several scrapers must not ask it several times
CACHE_SECONDS = 5.0
#: for how long a scrape waits for the database. Prometheus gives up after 10 s, and a process that is well should say so.
PATIENCE_SECONDS = 2.0
#: up to where jobs are counted: with a million of them, a true count would read a million rows
COUNT_UP_TO = 10_000


class RotaCollector:
    """What `prometheus_client` asks at each scrape. Counts from when it is made: make it before the app works."""

    def __init__(
        self,
        app: Rota,
        *,
        database: bool = True,
        cache: float = CACHE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        count_up_to: int = COUNT_UP_TO,
    ) -> None:
        """`database=False` leaves out what the database says, where another process tells it."""
        self._app = app
        self._counting = Counting(app.facts)
        self._count_up_to = count_up_to
        self._reader = DatabaseReader(app, cache=cache, patience=patience, most=count_up_to) if database else None

    def describe(self) -> Iterable[Family]:
        """Names only, so that registering it asks the database nothing."""
        return [self._family(metric) for metric in METRICS.values()]

    def collect(self) -> Iterator[Family]:
        families = _Families(self._family)
        told = self._reader.told() if self._reader is not None and self._reader.has_address else None
        families.add("rota_build", (RELEASE, platform.python_version(), self._app.settings.release or ""), 1)
        self._collect_jobs(families)
        self._collect_names(families, told)
        self._collect_pollers(families)
        self._collect_pools(families)
        if told is not None:
            self._collect_database(families, told)
        return iter(families)

    def _family(self, metric: Metric) -> Family:
        kind = metric.kind
        name = metric.name.removesuffix("_total") if kind == "counter" else metric.name
        return Family(name, metric.help.replace("{bound}", f"{self._count_up_to}"), kind)

    def _collect_jobs(self, families: _Families) -> None:
        counted = self._counting.jobs()
        # from zero on: what begins at one, Prometheus takes for nothing that has happened
        known = [(task.options.queue, name) for name, task in self._app.tasks.items()][:MOST_NAMES]
        for names in dict.fromkeys((*known, *counted)):
            outcomes = counted[names].outcomes if names in counted else {}
            for outcome in OUTCOMES:
                families.add("rota_jobs_total", (*names, outcome), outcomes.get(outcome, 0))
        for names, counts in counted.items():
            for metric, told in (
                ("rota_job_duration_seconds", counts.durations),
                ("rota_job_wait_seconds", counts.waits),
            ):
                families.add_histogram(metric, names, told.bounds, told.counts, told.total)
        families.add("rota_jobs_stuck_total", (), self._counting.events("jobs_stuck"))
        families.add("rota_claims_lost_total", (), self._counting.events("claims_lost"))

    def _collect_names(self, families: _Families, database: Reading | None) -> None:
        for name, value in self._counting.leading().items():
            families.add("rota_leader", (name,), value)
        schedules = said_of_schedules(self._app, "name")
        # one that was put at run time may break, or miss a slot, before this process has given out a run of it
        schedules += database.schedules if database else ()
        for known, kinds in (
            ([*self._app.singletons], ("leader_changes", "singleton_failures")),
            (schedules, ("schedule_fired", "schedule_skipped", "schedule_missed", "schedule_broken")),
        ):
            told = {what: self._counting.named(what) for what in kinds}
            # from zero on, as jobs
            for name in dict.fromkeys((*known[:MOST_NAMES], *(name for times in told.values() for name in times))):
                for what, times in told.items():
                    families.add(f"rota_{what}_total", (name,), times.get(name, 0))
        for what in ("members_ended", "identities_lost"):
            families.add(f"rota_{what}_total", (), self._counting.events(what))
        for what in ("control", "listener"):
            families.add(f"rota_{what}_up", (), self._counting.state(what))
        # what was late between two scrapes would be seen by none of them
        lags = [watchdog.lag.longest for watchdog in watchdogs(self._app.facts)]
        families.add("rota_loop_lag_seconds", (), max(lags, default=None))

    def _collect_pollers(self, families: _Families) -> None:
        for name, told in self._app.pollers.tally().items():
            families.add("rota_poller_claimed_total", (name,), told.claimed)
            families.add("rota_poller_completed_total", (name,), told.completed)
            families.add("rota_poller_errors_total", (name,), told.errors)
            durations = told.durations
            families.add_histogram(
                "rota_poller_duration_seconds", (name,), durations.bounds, durations.counts, durations.seconds
            )

    def _collect_pools(self, families: _Families) -> None:
        for name, told in self._app.pool_statistics().items():
            families.add("rota_pool_size", (name,), told.get("pool_size", 0))
            families.add("rota_pool_available", (name,), told.get("pool_available", 0))
            families.add("rota_pool_waiting", (name,), told.get("requests_waiting", 0))
            families.add("rota_pool_requests_total", (name,), told.get("requests_num", 0))
            families.add("rota_pool_wait_seconds_total", (name,), told.get("requests_wait_ms", 0) / 1000)
            families.add("rota_pool_errors_total", (name,), told.get("requests_errors", 0))

    def _collect_database(self, families: _Families, told: Reading) -> None:
        families.add("rota_database_up", (), int(told.up))
        families.add("rota_database_counted", (), int(told.counted) if told.up else None)
        for queue, depth in (told.depths or {}).items():
            families.add("rota_queue_depth", (queue, "ready"), depth.ready)
            families.add("rota_queue_depth", (queue, "scheduled"), depth.scheduled)
        for queue, seconds in (told.oldest or {}).items():
            families.add("rota_queue_oldest_age_seconds", (queue,), seconds)
        for queue, jobs in (told.running or {}).items():
            families.add("rota_queue_depth", (queue, "running"), jobs)
        for queue, jobs in (told.blocked or {}).items():
            families.add("rota_queue_depth", (queue, "blocked"), jobs)
        families.add("rota_dead_letters", (), told.letters)
        families.add("rota_members", (), told.members)
        families.add("rota_schedule_lag_seconds", (), told.schedule_lag)
        families.add("rota_db_oldest_xmin_age_seconds", (), told.oldest_xmin)
        families.add("rota_db_notify_queue_ratio", (), told.notify_queue)
        for name, backlog in told.backlogs.items():
            families.add("rota_poller_backlog_rows", (name,), backlog.rows)
            families.add("rota_poller_oldest_due_seconds", (name,), backlog.oldest_seconds or 0.0)
        for name, rows in told.parked.items():
            families.add("rota_poller_parked_rows", (name,), rows)
        for each in told.projections:
            for state in ("running", "paused", "stopped"):
                labels = (each.name, str(each.version), state)
                families.add("rota_projection_state", labels, int(each.state == state))
            families.add("rota_projection_parked_events", (each.name, str(each.version)), each.parked)
        for behind in told.behind:
            names = (behind.name, str(behind.version))
            families.add("rota_projection_lag_events", names, behind.events)
            families.add("rota_projection_lag_seconds", names, behind.seconds if behind.events else 0.0)


class _Families:
    """The metrics of one scrape, each with the numbers that were added to it."""

    def __init__(self, make: Callable[[Metric], Family]) -> None:
        self._make = make
        self._families: dict[str, Family] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())

    def add(self, name: str, values: tuple[str, ...], value: float | None) -> None:
        if value is not None:
            metric = METRICS[name]
            self._family(metric).add_sample(metric.samples[0], _labels(metric, values), value)

    def add_histogram(
        self, name: str, values: tuple[str, ...], bounds: tuple[float, ...], counts: Iterable[int], total: float
    ) -> None:
        metric = METRICS[name]
        family, labels = self._family(metric), _labels(metric, values)
        count = 0
        for bound, count in zip((*map(str, bounds), "+Inf"), accumulate(counts), strict=True):
            family.add_sample(f"{name}_bucket", labels | {"le": bound}, count)
        family.add_sample(f"{name}_count", labels, count)
        family.add_sample(f"{name}_sum", labels, total)

    def _family(self, metric: Metric) -> Family:
        if metric.name not in self._families:
            self._families[metric.name] = self._make(metric)
        return self._families[metric.name]


def _labels(metric: Metric, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, values, strict=True))


_ATTRIBUTE = "_prometheus"  # of the app: it lives as long as that does
_lock = threading.Lock()


def collector(
    app: Rota,
    *,
    database: bool = True,
    cache: float = CACHE_SECONDS,
    patience: float = PATIENCE_SECONDS,
    count_up_to: int = COUNT_UP_TO,
) -> RotaCollector:
    """The collector of this app, for a registry of yours: `REGISTRY.register(collector(app))`. The first call decides how.

    It counts from the first call on. `database=False` leaves out what the database says.
    """
    return _made(app, database=database, cache=cache, patience=patience, count_up_to=count_up_to)[0]


def _made(app: Rota, **options: Any) -> tuple[RotaCollector, CollectorRegistry]:
    with _lock:
        made: tuple[RotaCollector, CollectorRegistry] | None = getattr(app, _ATTRIBUTE, None)
        if made is None:
            registry = CollectorRegistry()
            made = RotaCollector(app, **options), registry
            registry.register(made[0])
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
            GCCollector(registry=registry)
            setattr(app, _ATTRIBUTE, made)
        return made


def exposition(app: Rota, accept: str = "") -> tuple[str, bytes]:
    """The content type and the text for `GET /metrics`: those of this app and of its process. `accept` is what the scraper takes.

    Waits up to two seconds for the database, so in an event loop: `await asyncio.to_thread(exposition, app)`.
    """
    encode, content_type = choose_encoder(accept)
    return content_type, encode(_made(app)[1])
