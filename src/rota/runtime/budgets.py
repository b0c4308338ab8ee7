"""How long a web process takes to end, and why each default is what it is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from rota.app import DEFAULT_GRACE
from rota.clock import Duration, seconds
from rota.errors import ConfigurationError

__all__ = ["DRAIN_WINDOW", "Budgets", "read_budgets"]

DRAIN_WINDOW = 5.0  # longer than a balancer takes to notice that asks every second and believes the third answer


@dataclass(slots=True)
class Budgets:
    """Both count from the signal on. All is gone `GONE_SECONDS` after the longer of them (`runtime/limit`), also several processes."""

    window: float = DRAIN_WINDOW  # requests are served, and readiness says 503
    grace: float = (
        DEFAULT_GRACE  # jobs and open requests may finish: below the 30 s that Kubernetes and systemd commonly give
    )

    @property
    def graceful_timeout(self) -> int:
        """What is left for open requests when the server hears of the signal, after the window."""
        return math.ceil(max(1.0, self.grace - self.window))


def read_budgets(
    window: Duration | None, grace: Duration | None, variables: Mapping[str, str] | None = None
) -> Budgets:
    """Arguments beat the environment: ROTA_DRAIN_WINDOW, ROTA_GRACE."""
    env = os.environ if variables is None else variables
    usual = Budgets()
    return Budgets(
        _read(window, "drain_window", env.get("ROTA_DRAIN_WINDOW"), usual.window),
        _read(grace, "grace", env.get("ROTA_GRACE"), usual.grace),
    )


def _read(said: Duration | None, name: str, variable: str | None, usual: float) -> float:
    if said is None and variable:
        try:
            said = float(variable)
        except ValueError:
            said = variable
    length = usual if said is None else seconds(said, name)
    if not length >= 0:
        raise ConfigurationError(f"{name} cannot be {said!r}: it is a time to wait, 0 or more.")
    return length
