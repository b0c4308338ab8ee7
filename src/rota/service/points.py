"""Named moments at which a test may kill, pause or break a process. Off, each costs one comparison.

claim.before    claim.after       around the statement that takes jobs or rows; after, it is committed
run.before      run.after         around the body
settle.before   settle.after      around the statement that writes outcomes down; after, it is committed
transaction.before_commit         job.transaction(), poll.transaction(): the body's writes and the success are written, not committed
transaction.after_commit          and now they are

project.read                      a projection has events in hand, and nothing is begun
project.handled                   its handler has written, and the checkpoint is where it was
project.moved                     the checkpoint has moved, and nothing is committed
project.committed                 and now it is

bulk.taken                        a worker has a turn with a bulk, and nothing is changed
bulk.changed                      its jobs are changed, and nothing of it is on record
bulk.before_commit                all of it is written, not committed
bulk.committed                    and now it is

close.before    close.after       around the statement that lets go of jobs that waited for others; a worker comes by all the time
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BULK_POINTS", "POINTS", "PROJECTION_POINTS", "reach", "set_hook"]

POINTS = (
    "claim.before",
    "claim.after",
    "run.before",
    "run.after",
    "settle.before",
    "settle.after",
    "transaction.before_commit",
    "transaction.after_commit",
)
BULK_POINTS = ("bulk.taken", "bulk.changed", "bulk.before_commit", "bulk.committed")
PROJECTION_POINTS = ("project.read", "project.handled", "project.moved", "project.committed")

_hook: Callable[[str], None] | None = None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call this at every point from now on; None ends it."""
    global _hook  # noqa: PLW0603 - one per process, and read on hot paths
    _hook = hook


def reach(point: str) -> None:
    if _hook is not None:
        _hook(point)
