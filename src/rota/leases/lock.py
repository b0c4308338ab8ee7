"""A lock for short sections: held by a transaction, so PostgreSQL itself gives it up when that ends, however it ends."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import psycopg

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, LockHeld
from rota.leases.fenced import whoever
from rota.postgres.foreign import Foreign
from rota.postgres.keys import lock_key
from rota.postgres.pool import Database
from rota.postgres.query import nothing, scalar, statement

__all__ = ["Lock"]

# The name is shown in pg_stat_activity while the section lasts or is waited for: a key alone tells nobody what is locked.
TRY = statement(
    "try_lock",
    """
    select
        pg_try_advisory_xact_lock(%(key)s::bigint),
        set_config('application_name', %(shown)s::text, true)
    """,
)
WAIT = statement(
    "wait_for_lock",
    """
    with limited as materialized (
        select
            current_setting('lock_timeout') as usual,
            set_config('lock_timeout', %(limit)s::text, true),
            set_config('application_name', %(shown)s::text, true)
    ), taken as materialized (
        select pg_advisory_xact_lock(%(key)s::bigint) from limited
    )
    -- the limit was for this wait; the statements of the section are the user's
    select set_config('lock_timeout', limited.usual, true) from limited, taken
    """,
)
# PostgreSQL takes the COMMIT of a transaction in which a statement failed for a ROLLBACK, and says nothing; a query it refuses.
PROVE = statement("prove_lock", "select 1")


# Who is in which section.
_SECTIONS: set[tuple[Database, int, object]] = set()


class Lock:
    """The block of `app.lock(name)`. It gives the connection whose transaction holds the lock, and commits it at the end."""

    def __init__(self, database: Database, name: str, *, wait: bool | Duration = True) -> None:
        self.name = name
        self.key = lock_key(database.schema, "lock", name)
        self._database = database
        self._limit = None if wait is True else 0.0 if wait is False else seconds(wait, "lock(wait=...)")

    @property
    def application_name(self) -> str:
        """What its holder, and who waits for it, are called in pg_stat_activity: within the 63 ASCII characters it shows."""
        return f"rota:lock/{self.name}".encode("ascii", "backslashreplace").decode()[:63]

    async def __aenter__(self) -> Any:
        return await self._begin(self._database.borrow(is_async=True))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    def __enter__(self) -> Any:
        own = self._database.borrow(is_async=False)
        return own.at_once(self._begin, own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.at_once(self._end, error)

    # Written once for both colours, as `postgres.foreign` is: on a sync connection nothing is ever waited for.

    async def _begin(self, own: Foreign) -> Any:
        section = (self._database, self.key, whoever())
        if section in _SECTIONS:
            raise ConfigurationError(
                f"Whoever asks for the lock {self.name!r} here is inside its section already, and would wait for itself: each block "
                "has a transaction of its own. Take it once, around both, and pass its connection on."
            )
        self._own = own
        with self._database.in_words():
            await own.begin()
        try:
            if not await self._taken(own):
                raise LockHeld(
                    f"Someone else holds the lock {self.name!r} (key {self.key}), and it was not "
                    f"{'waited for' if self._limit == 0 else f'free within {self._limit:g} s'}. Try again later, or wait longer with "
                    f"lock(wait=...). In pg_stat_activity its holder has the application_name {self.application_name!r}."
                )
        except BaseException:
            await own.rollback()
            raise
        self._section = section
        _SECTIONS.add(section)
        return own.native

    async def _taken(self, own: Foreign) -> bool:
        params = {"key": self.key, "shown": self.application_name}
        limit = "0" if self._limit is None else f"{max(1, round(self._limit * 1000))}ms"
        with self._database.in_words():
            if self._limit == 0:
                return bool(await own.run(TRY.query(params, read=scalar), self._database.schema))
            try:
                await own.run(WAIT.query({**params, "limit": limit}, read=nothing), self._database.schema)
            except psycopg.errors.LockNotAvailable:
                return False
        return True

    async def _end(self, error: BaseException | None) -> None:
        _SECTIONS.discard(self._section)
        if error is not None:
            await self._own.rollback()
            return
        try:
            with self._database.in_words():
                await self._own.run(PROVE.query(read=nothing), self._database.schema)
        except BaseException:
            await self._own.rollback()
            raise
        await self._own.commit()
