"""Whether a failed attempt is tried again, and when. Pure: never touches a clock or a socket."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError

__all__ = ["Retry"]

Backoff = Literal["exponential", "linear", "constant"] | Callable[..., Duration]

_NAMED = get_args(get_args(Backoff)[0])


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failing job is tried again.

    `attempts` counts all of them, the first included. The pause before attempt n+1 is `base` times 2^(n-1) (exponential), n
    (linear) or 1 (constant), at most `cap`; with `jitter` it is drawn from the upper half of that, so that jobs which failed
    together do not come back together. A callable gets (n, error), or n alone if it takes one argument, and gives the pause.
    Errors that are not instances of `on` are not tried again.

    A body whose process is lost has not failed, and costs no attempt; after so many `losses` the job is buried all the same
    (None: three). With `attempts=1, losses=1` it is never begun again by itself: at most once.
    """

    attempts: int = 5
    backoff: Backoff = "exponential"
    base: Duration = 1.0
    cap: Duration = 300.0
    jitter: bool = True
    on: type[BaseException] | tuple[type[BaseException], ...] | list[type[BaseException]] = field(default=(Exception,))
    losses: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if not _is_count(self.attempts):
            problems.append(f"attempts is {self.attempts!r}; it counts the first attempt too, so it is 1 or more")
        if not callable(self.backoff) and self.backoff not in _NAMED:
            problems.append(
                f"backoff is {self.backoff!r}; it is one of {', '.join(_NAMED)}, or a function of (attempt, error)"
            )
        if seconds(self.base, "Retry(base=...)") < 0 or seconds(self.cap, "Retry(cap=...)") < 0:
            problems.append("base and cap cannot be negative")
        if isinstance(self.on, list):
            object.__setattr__(self, "on", tuple(self.on))
        classes = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
            problems.append(f"on is {self.on!r}; it is an exception class, or a tuple of them")
        if self.losses is not None and (not _is_count(self.losses) or self.losses > 1000):
            problems.append(
                f"losses is {self.losses!r}; it is how many lost processes bury the job, 1 or more, or None"
            )
        if problems:
            raise ConfigurationError(f"This Retry cannot work: {'; '.join(problems)}.")

    @property
    def only_once(self) -> bool:
        """Whether a job that was begun may never be begun again by itself."""
        return self.attempts == 1 and self.losses == 1

    def pause(self, failures: int, error: BaseException) -> float | None:
        """Seconds until the next attempt after this many failures, or None when there is none."""
        if failures >= self.attempts or not isinstance(error, cast(tuple[type[BaseException], ...], self.on)):
            return None
        if callable(self.backoff):
            given = (failures, error) if _takes_two(self.backoff) else (failures,)
            return max(0.0, seconds(self.backoff(*given), "what the backoff function returned"))
        factor = {"exponential": 2.0 ** min(failures - 1, 60), "linear": float(failures), "constant": 1.0}[self.backoff]
        pause = min(seconds(self.base) * factor, seconds(self.cap))
        return pause * random.uniform(0.5, 1.0) if self.jitter else pause


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(1, ValueError())
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True
