"""Whether those who start and stop this process give it the time that a clean stop takes.

Two budgets. A balancer must have seen that the process is not ready before its socket closes: the drain window is at least the
time after which its probes have failed, and two seconds for the news to spread. And whoever kills must wait until all is done:
the hook before the stop; then the jobs' grace, which counts from the signal, or, if it is longer, the window and after it the
server's graceful timeout; and five seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from rota.app import DEFAULT_GRACE
from rota.runtime.budgets import DRAIN_WINDOW

__all__ = ["MARGIN", "SPREAD", "Budgets"]

SPREAD = 2.0  # seconds until all balancers act on what a probe saw
MARGIN = 5.0  # seconds to close what is left


@dataclass(frozen=True, slots=True)
class Budgets:
    """Seconds. None for what nobody told us."""

    drain_window: float = DRAIN_WINDOW
    grace: float = DEFAULT_GRACE
    graceful_timeout: float = 0.0
    pre_stop: float = 0.0
    probe_period: float | None = None
    failure_threshold: int = 3  # as Kubernetes has it unless told
    termination_grace: float | None = None

    @property
    def least_window(self) -> float | None:
        return None if self.probe_period is None else self.probe_period * self.failure_threshold + SPREAD

    @property
    def least_termination(self) -> float:
        return self.pre_stop + max(self.drain_window + self.graceful_timeout, self.grace) + MARGIN
