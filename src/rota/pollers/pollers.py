"""`app.poller` and `app.pollers`: the registry, and what can be done with pollers by name, in both colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ParamSpec, Protocol, TypeVar

from rota.clock import Duration
from rota.errors import ConfigurationError
from rota.pollers.adaptive import Adaptive
from rota.pollers.check import PollerCheck
from rota.pollers.definition import CountedFrom, PollerDefinition, Unit, define
from rota.pollers.inspect import HeldRow, ParkedRow, PollerView, list_pollers
from rota.pollers.operate import (
    ForgottenPoller,
    find_held,
    find_parked,
    forget_poller,
    pause_poller,
    release_rows,
    resume_poller,
)
from rota.pollers.poller import Home, Poller
from rota.pollers.shape import key_value
from rota.pollers.tally import PollerTally, Tally
from rota.postgres.audit import actor
from rota.postgres.notify import poll_channel
from rota.postgres.query import Steps
from rota.retry import Retry

__all__ = ["Pollers", "choose_pollers"]

P = ParamSpec("P")
R = TypeVar("R")

# Ten attempts over an hour and a half: an outage of an hour parks nothing.
_RETRY = Retry(attempts=10, base=10.0, cap=3600.0)


class Decorator(Protocol):
    """What `@app.poller(...)` returns: keeps the function's signature and result type."""

    def __call__(self, function: Callable[P, R], /) -> Poller[P, R]: ...


class Pollers(Mapping[str, Poller[..., Any]]):
    """The pollers of an app, and what can be done with them."""

    def __init__(self, home: Home, known: Mapping[str, Poller[..., Any]] | None = None) -> None:
        self._home = home
        # an app that stands in for another has its facts
        self._tally: Tally = known._tally if isinstance(known, Pollers) else Tally(home.facts)
        self._pollers: dict[str, Poller[..., Any]] = {
            name: Poller(poller.definition, home) for name, poller in (known or {}).items()
        }

    def poller(
        self,
        *,
        table: str | tuple[str, str],
        key: str | Sequence[str] = "id",
        last: str | None = None,
        interval: Duration | None = None,
        unit: Unit | None = None,
        due: str | None = None,
        where: str | None = None,
        done: str | None = None,
        order_by: str | None = None,
        counted_from: CountedFrom = "end",
        batch: int = 100,
        concurrency: int = 10,
        limit: int | None = None,
        retry: Retry | int | None = _RETRY,
        timeout: Duration | None = None,
        adaptive: Adaptive | None = None,
        idle: Duration = 10.0,
        name: str | None = None,
    ) -> Decorator:
        """Have a function called with each row of a table of yours that is due, by one worker of all.

        When a row is due: `interval` after the time in its column `last`, which is stamped; at the time in its column `due`,
        which then moves on by `interval`, or is emptied without one; or, with neither, for as long as it fits `where`, until
        `done`, which is what to write then, or the handler has changed it. `interval` is a duration, a column of the type
        interval, or a column of numbers, of which `unit` says what they count. `counted_from="start"` keeps the pace whatever a
        poll takes. `where`, `done`, `order_by` and `due` are SQL of yours, and go into statements as they are.

        `batch` is how many rows a look may take, `concurrency` how many handlers run in one process, `limit` in all. `retry` says
        when a row that failed is tried again, and after how many attempts it is parked. `adaptive` lets each row's interval move
        with what its handler returns. `idle` is the longest pause between looks while nothing is due.
        """

        def register(function: Callable[..., Any]) -> Any:
            definition = define(
                function,
                name=name,
                table=table,
                key=key,
                last=last,
                due=due,
                interval=interval,
                unit=unit,
                where=where,
                done=done,
                order_by=order_by,
                counted_from=counted_from,
                batch=batch,
                concurrency=concurrency,
                limit=limit,
                retry=retry,
                timeout=timeout,
                adaptive=adaptive,
                idle=idle,
            )
            if definition.name in self._pollers:
                raise ConfigurationError(
                    f"There is a poller {definition.name!r} already. Give one of them another name with @app.poller(name=...)."
                )
            definition = replace(definition, handler=self._home.around(function))
            self._pollers[definition.name] = poller = Poller[Any, Any](definition, self._home)
            return poller

        return register

    @property
    def definitions(self) -> Sequence[PollerDefinition]:
        return [poller.definition for poller in self._pollers.values()]

    async def check(self, name: str) -> PollerCheck:
        """How PostgreSQL finds the due rows of this poller of the app, which index is missing, and what else to know."""
        return await self[name].check()

    def check_sync(self, name: str) -> PollerCheck:
        return self[name].check_sync()

    def tally(self) -> dict[str, PollerTally]:
        """What this process has polled since it began, by poller; those of the whole cluster add up."""
        return self._tally.told(self._pollers)

    async def list(self) -> Sequence[PollerView]:
        """All pollers that a process has declared, with what they hold; also those of other apps on this database."""
        return await self._home.database.run(list_pollers())

    def list_sync(self) -> Sequence[PollerView]:
        return self._home.database.run_sync(list_pollers())

    async def pause(self, name: str, *, by: str | None = None, dry_run: bool = False) -> PollerView:
        """Have nobody take rows for this poller; what is being polled goes on to its end. Raises NotPossible."""
        return await self._home.database.run_steps(pause_poller(name, actor(by)), dry_run=dry_run)

    def pause_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> PollerView:
        return self._home.database.run_steps_sync(pause_poller(name, actor(by)), dry_run=dry_run)

    async def resume(self, name: str, *, by: str | None = None, dry_run: bool = False) -> PollerView:
        """Go on at once."""
        steps = resume_poller(name, actor(by), self._channel)
        return await self._home.database.run_steps(steps, dry_run=dry_run)

    def resume_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> PollerView:
        steps = resume_poller(name, actor(by), self._channel)
        return self._home.database.run_steps_sync(steps, dry_run=dry_run)

    async def parked(self, name: str, *, limit: int = 100, after: Sequence[Any] | None = None) -> Sequence[ParkedRow]:
        """Rows whose attempts are used up, by key; `after` is the key of the last of the page before. Raises NotPossible."""
        return await self._home.database.run_steps(find_parked(name, limit=limit, after=after))

    def parked_sync(self, name: str, *, limit: int = 100, after: Sequence[Any] | None = None) -> Sequence[ParkedRow]:
        return self._home.database.run_steps_sync(find_parked(name, limit=limit, after=after))

    async def held(self, name: str, *, limit: int = 100) -> Sequence[HeldRow]:
        """Rows that are polled at this moment, those first that have been for longest, and by whom. Raises NotPossible."""
        return await self._home.database.run_steps(find_held(name, limit=limit))

    def held_sync(self, name: str, *, limit: int = 100) -> Sequence[HeldRow]:
        return self._home.database.run_steps_sync(find_held(name, limit=limit))

    async def release(
        self,
        name: str,
        keys: Sequence[Any] | None = None,
        *,
        held: bool = False,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Let the rows of these keys, or all that are parked, be polled again with all their attempts; returns how many.

        A row that someone polls at this moment is left alone unless `held` says otherwise: then that poll is void.
        """
        return await self._home.database.run_steps(self._releasing(name, keys, held, by), dry_run=dry_run)

    def release_sync(
        self,
        name: str,
        keys: Sequence[Any] | None = None,
        *,
        held: bool = False,
        by: str | None = None,
        dry_run: bool = False,
    ) -> int:
        return self._home.database.run_steps_sync(self._releasing(name, keys, held, by), dry_run=dry_run)

    async def forget(self, name: str, *, by: str | None = None, dry_run: bool = False) -> ForgottenPoller:
        """Forget a poller that is no longer in any code, and what is remembered of its rows: failures, parked rows, paces.

        The table that it polled is not touched. Raises NotPossible while a live process polls for it.
        """
        return await self._home.database.run_steps(forget_poller(name, actor(by)), dry_run=dry_run)

    def forget_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> ForgottenPoller:
        return self._home.database.run_steps_sync(forget_poller(name, actor(by)), dry_run=dry_run)

    def _releasing(self, name: str, keys: Sequence[Any] | None, held: bool, by: str | None) -> Steps[int]:
        given = None if keys is None else [variant for key in keys for variant in _as_claimed(key)]
        return release_rows(name, given, held=held, by=actor(by), channel=self._channel)

    @property
    def _channel(self) -> str:
        return poll_channel(self._home.database.schema)

    def __getitem__(self, name: str) -> Poller[..., Any]:
        try:
            return self._pollers[name]
        except KeyError:
            known = ", ".join(sorted(self._pollers)) or "none"
            raise KeyError(f"this app has no poller {name!r}; it has {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._pollers)

    def __len__(self) -> int:
        return len(self._pollers)


def choose_pollers(pollers: Mapping[str, Poller[..., Any]], names: Sequence[str] | None) -> list[PollerDefinition]:
    """Those of these names, or all if None. Raises ConfigurationError for a name that none has."""
    if isinstance(names, str):
        raise ConfigurationError(f"pollers is a list of names, not text: write pollers=[{names!r}].")
    chosen = list(pollers) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in chosen if name not in pollers]:
        known = ", ".join(sorted(pollers)) or "none"
        raise ConfigurationError(f"This app has no poller {', '.join(map(repr, unknown))}; it has {known}.")
    return [pollers[name].definition for name in chosen]


def _as_claimed(key: Any) -> Iterator[list[Any]]:
    """A key as claims may have it: a whole number is text where its column has others as well."""
    values = map(key_value, key if isinstance(key, list | tuple) else [key])
    for variant in product(*((value, str(value)) if type(value) is int else (value,) for value in values)):
        yield list(variant)
