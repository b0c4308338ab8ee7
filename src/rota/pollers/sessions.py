"""The connections that pollers use, by what they are for."""

from __future__ import annotations

from rota.postgres.pool import Database

__all__ = ["Sessions"]

# The author's SQL finds its functions and types as in a session of theirs.
_AS_THE_USER: dict[str, str | None] = {"search_path": None, "jit": "off"}
# How much of a table is due changes all the time, and how many rows are asked for too: each look is planned for itself.
_LOOKING = _AS_THE_USER | {"plan_cache_mode": "force_custom_plan"}
# Everything here is found by its key, and that must not turn into a scan because statistics are stale.
_SETTLING = _AS_THE_USER | {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
# What someone has locked must not hold up the others for long, not behind a pooler either. A stamp runs the user's triggers, and
# may wait for whatever they wait for.
_SETTLING_LIMITS = {"lock_timeout": "2s"}
_STAMPING_LIMITS = {"lock_timeout": "1s"}
_MOST = 3  # of each kind: statements are short


class Sessions:
    """For looks at the user's table, for stamps in it, for claims, and for the transactions of handlers. Opened at first use."""

    def __init__(self, database: Database, *, pollers: int, handlers: int) -> None:
        size = min(max(1, pollers), _MOST)
        self.looking = database.apart("poll", size=size, settings=_LOOKING)
        self.stamping = database.apart("stamp", size=size, settings=_SETTLING, everywhere=_STAMPING_LIMITS)
        # apart from stamps: rescue, and what is handed back, must not wait for a slow one
        self.settling = database.apart("claims", size=size, settings=_SETTLING, everywhere=_SETTLING_LIMITS)
        self.transactions = database.apart("row", size=max(1, handlers), purpose="poll.transaction()")

    async def close(self) -> None:
        for database in (self.transactions, self.stamping, self.settling, self.looking):
            await database.close()

    def close_sync(self) -> None:
        """What handlers in threads opened, and what loops did that are closed by now."""
        for database in (self.transactions, self.stamping, self.settling, self.looking):
            database.close_sync()

    async def close_with_loop(self) -> None:
        """The same at the end of an event loop, whose runner has cancelled all that runs in it."""
        for database in (self.transactions, self.stamping, self.settling, self.looking):
            await database.close_with_loop()
        self.close_sync()
