"""How the control thread reaches the database: it must notice silence sooner than anyone may act on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.facts import Facts
from rota.leases.condition import Condition
from rota.leases.control import Control, Reactions
from rota.leases.trust import LeaseSettings
from rota.postgres.pool import Database
from rota.release import RELEASE

__all__ = ["control_on"]

# Within the lease's margin.
_CONTROL_NETWORK = {
    "keepalives_idle": "1",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "3000",
}
_CONTROL_SETTINGS = {
    "statement_timeout": "5s",
    "lock_timeout": "2s",
    # what is asked along with a beat must not become a scan because statistics are stale, and is planned once
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def control_on(
    database: Database,
    settings: LeaseSettings,
    reactions: Reactions,
    work: Mapping[str, Any],
    *,
    environment: str | None,
    facts: Facts,
    app_release: str | None = None,
    condition: Condition | None = None,
) -> Control:
    """The control thread of a member that is about to join there; `work` is what it shows of itself."""
    return Control(
        database.connector(
            "control",
            settings=_CONTROL_SETTINGS,
            network=_CONTROL_NETWORK,
            patience=settings.lease.total_seconds() / 3,  # three tries fit into a lease
        ),
        database.schema,
        release=RELEASE,
        facts=facts,
        work=work,
        settings=settings,
        reactions=reactions,
        environment=environment,
        app_release=app_release,
        condition=condition,
    )
