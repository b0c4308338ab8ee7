"""Waiting for a moment instead of sleeping: for something to become true, or for a fact to be emitted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar, overload

from rota.facts import Fact, Facts

__all__ = ["AwaitedFact", "fact", "until", "until_sync"]

T = TypeVar("T")
F = TypeVar("F", bound=Fact)

_SHOWN = 20  # facts listed in a failure: enough to see what went on


@overload
async def until(predicate: Callable[[], Awaitable[T]], timeout: float = 10, what: str = "") -> T: ...


@overload
async def until(predicate: Callable[[], T], timeout: float = 10, what: str = "") -> T: ...


async def until(predicate: Callable[[], Any], timeout: float = 10, what: str = "") -> Any:
    """Call a function, async or not, until what it returns is true, and return that.

    It is called at least once, and once more at the end of the time. Raises AssertionError, which says what was awaited
    and what was there instead; what the function raises passes through.
    """
    value: Any = None
    for pause in _pauses(timeout):
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(pause)
    raise _never(predicate, what, timeout, value)


def until_sync(predicate: Callable[[], T], timeout: float = 10, what: str = "") -> T:
    """The same for sync code and sync functions."""
    value: T | None = None
    for pause in _pauses(timeout):
        if value := predicate():
            return value
        time.sleep(pause)
    raise _never(predicate, what, timeout, value)


def _pauses(timeout: float) -> Iterator[float]:
    """Short at first, as most things happen soon; a last look comes at the end of the time."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, 0.1)
    yield 0.0


def _never(predicate: Callable[[], Any], what: str, timeout: float, value: Any) -> AssertionError:
    awaited = what or getattr(predicate, "__qualname__", repr(predicate))
    return AssertionError(f"Waited {timeout:g} s for: {awaited}. It was still {value!r}.")


def fact(
    facts: Facts, kind: type[F], *, where: Callable[[F], bool] = lambda _: True, timeout: float = 10
) -> AwaitedFact[F]:
    """The next fact of this kind for which `where` holds: `await fact(app.facts, JobSucceeded)`.

    It listens from the call on, so ask before doing what causes it: `started = fact(…)`, act, `await started`. Facts may come
    from any thread; `.wait()` serves sync code. When none comes in time, AssertionError says what was emitted instead.
    """
    return AwaitedFact(facts, kind, where, timeout)


class AwaitedFact(Generic[F]):
    def __init__(self, facts: Facts, kind: type[F], where: Callable[[F], bool], timeout: float) -> None:
        self._kind = kind
        self._where = where
        self._timeout = timeout
        self._seen: list[Fact] = []
        self._found: concurrent.futures.Future[F] = concurrent.futures.Future()
        self._unsubscribe = facts.subscribe(self._look)

    def __await__(self) -> Generator[Any, None, F]:
        return self._arrive().__await__()

    def wait(self) -> F:
        """Wait in this thread."""
        try:
            return self._found.result(self._timeout)
        except TimeoutError:
            raise self._never() from None
        finally:
            self._unsubscribe()

    async def _arrive(self) -> F:
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(self._found)
        except TimeoutError:
            raise self._never() from None
        finally:
            self._unsubscribe()

    def _look(self, emitted: Fact) -> None:
        if self._found.done():
            return
        self._seen.append(emitted)
        if not isinstance(emitted, self._kind):
            return
        try:
            if self._where(emitted):
                self._found.set_result(emitted)
        except concurrent.futures.InvalidStateError:
            pass  # another thread was first
        except Exception as error:  # a mistake in `where` belongs to the test, not to the emitter
            self._found.set_exception(error)

    def _never(self) -> AssertionError:
        seen = "\n".join(f"  {emitted}" for emitted in self._seen[-_SHOWN:]) or "  nothing"
        return AssertionError(
            f"Waited {self._timeout:g} s for a {self._kind.__name__} that fits. Emitted were (the last {_SHOWN}):\n{seen}"
        )
