"""Every metric there is: its name, its labels, and what it says. Dashboards, alerts and the guide are checked against this.

Names have the prefix `rota_`, base units, and `_total` where they only grow. No label is an id, and the number of its values
is bounded: names beyond the first 200 of a kind count as "(others)".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric"]

Kind = Literal["counter", "gauge", "histogram", "info"]
#: whose numbers these are: of the process that is asked, to be added up; or of the database, the same whoever is asked
Scope = Literal["process", "database"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    scope: Scope = "process"

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which its numbers are found."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (f"{self.name}_info",) if self.kind == "info" else (self.name,)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", help, labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help, labels)


def _database(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help, labels, "database")


_BOUNDED = "Counted up to a bound, {bound} unless said otherwise: that much or more."

METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "rota_build",
            "info",
            "The release of Rota, the Python it runs on, and the app's own release.",
            ("version", "python", "release"),
        ),
        _counter(
            "rota_jobs_total",
            "Attempts that ended here: succeeded, failed (and tried again), dead, cancelled, snoozed, or lost with a process "
            "whose work was taken over by this one.",
            *("queue", "task", "outcome"),
        ),
        Metric("rota_job_duration_seconds", "histogram", "How long the bodies of attempts ran.", ("queue", "task")),
        Metric(
            "rota_job_wait_seconds",
            "histogram",
            "For how long jobs had been due when a worker took them, by the clock of the database.",
            ("queue", "task"),
        ),
        _counter("rota_jobs_stuck_total", "Bodies that went on although their attempt was ended, and kept their slot."),
        _counter(
            "rota_claims_lost_total",
            "Attempts that ended after their claim had, so that their outcome changed nothing.",
        ),
        _gauge("rota_leader", "1 where this process leads, 0 where it has led or waits.", "resource"),
        _counter("rota_leader_changes_total", "Terms that began in this process.", "resource"),
        _counter(
            "rota_singleton_failures_total", "Singletons that raised or returned, and were started again.", "resource"
        ),
        _counter("rota_schedule_fired_total", "Runs that this process gave out.", "schedule"),
        _counter("rota_schedule_skipped_total", "Slots left out, as a run was still under way.", "schedule"),
        _counter("rota_schedule_missed_total", "Slots that passed while nobody could give them out.", "schedule"),
        _counter(
            "rota_schedule_broken_total", "Schedules found that cannot go on until someone puts them right.", "schedule"
        ),
        _counter("rota_poller_claimed_total", "Rows that pollers of this process have taken.", "poller"),
        _counter("rota_poller_completed_total", "Rows that were polled well.", "poller"),
        _counter("rota_poller_errors_total", "Polls that failed, or lost their claim.", "poller"),
        Metric("rota_poller_duration_seconds", "histogram", "How long handlers of pollers ran.", ("poller",)),
        _gauge(
            "rota_control_up", "1 while this process has a lease and a session that keeps it; missing where none works."
        ),
        _gauge(
            "rota_listener_up", "1 while notifications arrive, 0 while it polls instead; missing until that is known."
        ),
        _counter("rota_members_ended_total", "Processes whose lease this one ended, and whose work was taken over."),
        _counter(
            "rota_identities_lost_total", "How often a peer ended the lease of this process, which then began anew."
        ),
        _gauge(
            "rota_loop_lag_seconds",
            "The longest that the event loop has not turned within the last minute, as its watchdog sees it.",
        ),
        _gauge("rota_pool_size", "Connections that a pool of this process has open.", "pool"),
        _gauge("rota_pool_available", "Of these, how many are free.", "pool"),
        _gauge("rota_pool_waiting", "Callers that wait for a connection at this moment.", "pool"),
        _counter("rota_pool_requests_total", "Connections that were asked for.", "pool"),
        _counter(
            "rota_pool_wait_seconds_total", "For how long callers have waited for a connection, all together.", "pool"
        ),
        _counter("rota_pool_errors_total", "Callers that got no connection.", "pool"),
        _database(
            "rota_database_up",
            "1 if the database answered within its time, 0 if not: then what it did not tell is missing.",
        ),
        _database(
            "rota_database_counted",
            "1 if all that is counted was, within its time, 0 if a count took too long or failed: then that one is missing. Missing "
            "while the database is away.",
        ),
        _database(
            "rota_queue_depth",
            "Jobs that are ready, scheduled for later, blocked (by a limit of their task, or until others have ended), or running; 0 "
            f"for a queue of the app that is empty. {_BOUNDED} For each priority, and for all that is blocked; a share of it beyond "
            "20 of them.",
            *("queue", "state"),
        ),
        _database(
            "rota_queue_oldest_age_seconds",
            "For how long the oldest job that nobody has taken has been due, also one that a limit holds back.",
            "queue",
        ),
        _database("rota_dead_letters", f"Dead letters that nobody has resolved. {_BOUNDED}"),
        _database("rota_members", "Processes that have a lease."),
        _database("rota_schedule_lag_seconds", "For how long the schedule that is the longest overdue has been so."),
        _database(
            "rota_poller_backlog_rows",
            f"Rows that are due and nobody has; 0 while it is paused. Of pollers that this process knows. {_BOUNDED}",
            "poller",
        ),
        _database("rota_poller_oldest_due_seconds", "For how long the oldest of them has been due.", "poller"),
        _database("rota_poller_parked_rows", f"Rows whose attempts are used up. {_BOUNDED}", "poller"),
        _database(
            "rota_projection_lag_events",
            "Events behind the checkpoint of a projection, which it has not taken in or passed over; also those that wait for an "
            f"older transaction to end. Of projections that this process knows. {_BOUNDED} A share of it beyond 20 of them.",
            *("projection", "version"),
        ),
        _database("rota_projection_lag_seconds", "How long the first of them has waited.", *("projection", "version")),
        _database(
            "rota_projection_state",
            "1 for the state a projection is in, of running, paused and stopped; 0 for the others. Missing for one that has retired.",
            *("projection", "version", "state"),
        ),
        _database(
            "rota_projection_parked_events",
            f"Events that a projection could not take in, and that nobody has replayed or dropped. {_BOUNDED}",
            *("projection", "version"),
        ),
        _database(
            "rota_db_oldest_xmin_age_seconds",
            "For how long the oldest transaction of this database has been open, which keeps vacuum from removing what is dead. "
            "A role outside of pg_monitor sees only its own.",
        ),
        _database("rota_db_notify_queue_ratio", "How full the queue of notifications is, from 0 to 1."),
    )
}
