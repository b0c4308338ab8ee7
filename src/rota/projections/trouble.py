"""What becomes of an event that cannot be taken in, because it cannot be decoded or its handler raises. Pure.

An event is never passed over in silence: the projection stops at it, tries it again, or parks it where people see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rota.errors import ConfigurationError
from rota.retry import Retry

__all__ = ["OnError", "Park", "Stop", "check_policy", "decide", "told"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Read nothing more until someone resumes the projection: no event is taken in before an earlier one."""


@dataclass(frozen=True, slots=True)
class Park:
    """Put the event on the projection's parked list and go on with the next; with `retry`, after its attempts are used up.

    The list keeps the order of the log. Events that come behind a parked one of the same stream are taken in before it.
    """

    retry: Retry | None = None


OnError = Stop | Park | Retry


def check_policy(policy: object) -> OnError:
    """Raises ConfigurationError for what is none."""
    if policy is Stop or policy is Park:
        return Stop() if policy is Stop else Park()
    if not isinstance(policy, Stop | Park | Retry) or (
        isinstance(policy, Park) and not isinstance(policy.retry, Retry | None)
    ):
        raise ConfigurationError(
            f"on_error cannot be {policy!r}: it is rota.Stop(), rota.Retry(...), which stops in the end, or rota.Park()."
        )
    return policy


def decide(policy: OnError, failures: int, error: BaseException) -> float | Literal["stop", "park"]:
    """What to do with an event that has failed so often: the pause before it is tried again, or the end of that."""
    retry = policy if isinstance(policy, Retry) else policy.retry if isinstance(policy, Park) else None
    pause = None if retry is None else retry.pause(failures, error)
    return pause if pause is not None else "park" if isinstance(policy, Park) else "stop"


def told(policy: OnError) -> str:
    """The policy for people."""
    if isinstance(policy, Stop):
        return "stop"
    retry = policy if isinstance(policy, Retry) else policy.retry
    end = "park" if isinstance(policy, Park) else "stop"
    return end if retry is None else f"{retry.attempts} attempts, then {end}"
