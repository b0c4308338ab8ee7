"""Whether those who start and stop this process give it the time that a clean stop takes. Asks nobody: see `budgets`."""

from __future__ import annotations

from rota.runtime.doctor.budgets import MARGIN, SPREAD
from rota.runtime.doctor.finding import Finding, note, ok, problem
from rota.runtime.doctor.patient import Patient

__all__ = ["drain_window", "termination_grace"]

_KUBERNETES = 30.0  # what terminationGracePeriodSeconds is where nobody says so


def drain_window(patient: Patient) -> Finding:
    """Is a process that drains seen to be unready before it stops listening?"""
    budgets = patient.budgets
    window, least = budgets.drain_window, budgets.least_window
    if least is None:
        return ok(
            f"a window of {window:g} s suits a readiness probe that fails within {max(0.0, window - SPREAD):g} s "
            "(period x failure threshold); --probe-period checks yours"
        )
    probed = f"a probe every {budgets.probe_period:g} s that may fail {budgets.failure_threshold} times"
    if window >= least:
        return ok(f"a window of {window:g} s is long enough for {probed} ({least:g} s are needed)")
    return problem(
        f"a window of {window:g} s is too short for {probed}: it takes {least:g} s until nobody sends requests any more",
        "The server stops listening while the balancer still sends it requests, and each of them fails, at every deployment.",
        f"{patient.program} serve --drain-window {least:g}",
        f"or probe more often: periodSeconds x failureThreshold of at most {max(0.0, window - SPREAD):g} s",
    )


def termination_grace(patient: Patient) -> Finding:
    """Is a process that stops given the time it takes?"""
    budgets = patient.budgets
    given, least = budgets.termination_grace, budgets.least_termination
    serving = f"{budgets.drain_window:g} s of draining and {budgets.graceful_timeout:g} s for open requests"
    sum_ = f"{budgets.pre_stop:g} s before the stop + the longer of {serving}, and {budgets.grace:g} s for jobs + {MARGIN:g} s"
    setting = f"terminationGracePeriodSeconds: {least:g}   # systemd: TimeoutStopSec={least:g}"
    if given is None:
        return note(
            f"a clean stop may take {least:g} s: {sum_}; --termination-grace checks what yours is given",
            f"Kubernetes kills after {_KUBERNETES:g} s unless told otherwise. A worker without a web server has no window: "
            "say --drain-window 0.",
            setting,
        )
    if given >= least:
        return ok(f"{given:g} s are enough for a clean stop, which may take {least:g} s")
    return problem(
        f"{given:g} s are too short for a clean stop, which may take {least:g} s: {sum_}",
        "The process is killed while it drains: requests fail, and its jobs are lost to it and run again elsewhere.",
        setting,
    )
