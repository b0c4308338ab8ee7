"""Who changed what by hand.

An entry is written in the transaction of the change, so there is none without the other; a change that takes several
transactions has several. Entries are never changed, and outlive what they tell of: they hold names, numbers and filters,
never arguments, so that erasing someone's jobs leaves nothing of them here.
"""

from __future__ import annotations

import functools
import getpass
import os
import socket
from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from rota.postgres.names import check_name
from rota.postgres.query import Query, nothing, statement

__all__ = ["actor", "record"]


def actor(by: str | None) -> str:
    """Who is on record: the name given, else this process."""
    return f"{_user_and_host()}:{os.getpid()}" if by is None else check_name("by", by, 200)


@functools.cache
def _user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


RECORD = statement(
    "record_audit",
    """
    insert into {schema}.audit (actor, action, details)
    values (%(actor)s, %(action)s, %(details)s)
    """,
)


def record(actor: str, action: str, details: Mapping[str, Any]) -> Query[None]:
    """Enter that someone did this."""
    return RECORD.query({"actor": actor, "action": action, "details": Jsonb(details)}, read=nothing)
