"""Putting schedules: what is new takes effect from now on, and no slot is lost or doubled by it.

A slot of the old words that is due and was not given out yet is given out first, by the old words. The next one is the
first of the new words that is neither past nor was given out before. What says the same as before changes nothing at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from rota.conversion.plain import read_json
from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.codec import Codec, decoded, encoded
from rota.jobs.inspect import database_time
from rota.postgres.audit import record
from rota.postgres.notify import notify, schedule_channel
from rota.postgres.query import Steps
from rota.schedules.definition import ScheduleDefinition, plain, timing_of
from rota.schedules.due import DueSchedule, Fired, fire
from rota.schedules.every import interval_of
from rota.schedules.parents import check_parents, write_parents
from rota.schedules.plan import make_plan
from rota.schedules.store import (
    LockedName,
    StoredSchedule,
    delete_rows,
    lock_definitions,
    lock_rows,
    read_rows,
    write_rows,
)
from rota.schedules.timing import jittered

__all__ = ["Author", "SchedulesPut", "next_slot", "put_schedules", "says_the_same", "told_changes", "write"]

_BATCH = 1000
_MOST_TOLD = 100  # on record, of a put of many
_COMPARED = [each.name for each in fields(ScheduleDefinition) if each.name not in ("name", "args", "checked")]
# what decides which slots there are; as long as it stays, so does the next one
_OF_TIME = ("kind", "cron", "at", "tz", "dst_gap", "dst_overlap", "start_at", "end_at", "exclude", "jitter")


@dataclass(frozen=True, slots=True)
class SchedulesPut:
    """What a put came to, by name."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    #: of those that were changed, by name and field: what it said before, and what it says now. None for arguments and keys
    changes: Mapping[str, Mapping[str, tuple[Any, Any] | None]] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        """Whether anything is different now."""
        return bool(self.added or self.changed or self.deleted)


@dataclass(frozen=True, slots=True)
class Author:
    """Who puts a schedule: by hand, or code that says it under a digest."""

    owner: str
    digest: UUID | None = None
    digests: tuple[UUID, ...] = ()


def put_schedules(
    definitions: Sequence[ScheduleDefinition],
    *,
    schema: str,
    codec: Codec | None,
    actor: str,
    prune_prefix: str | None = None,
    action: str = "schedule.put",
) -> Steps[SchedulesPut]:
    """Put all of these by hand, in one transaction; with `prune_prefix`, delete others of that prefix that code does not say."""
    names = [definition.name for definition in definitions]
    yield lock_definitions(schema)
    locked: list[LockedName] = yield lock_rows(names, prune_prefix)
    put = yield from write(definitions, {}, actor=actor, codec=codec)
    kept = set(names)
    surplus = {each.name for each in locked if not each.is_declared and each.name not in kept}
    if followed := {(new.name, parent) for new in definitions for parent in new.parents if parent in surplus}:
        told = "; ".join(f"{child!r} after {parent!r}" for child, parent in sorted(followed)[:10])
        raise ConfigurationError(
            f"Nothing was put: {prune_prefix!r} would prune what others of these follow: {told}. Put the parents as well."
        )
    deleted: list[str] = (yield delete_rows(sorted(surplus))) if surplus else []
    put = replace(put, deleted=tuple(deleted))
    if put:
        yield record(actor, action, _told(put))
        yield notify(schedule_channel(schema), "")
    return put


def _told(put: SchedulesPut) -> dict[str, Any]:
    if len(put.added) + len(put.changed) == 1 and not put.deleted:
        name = (put.added + put.changed)[0]
        return {"schedule": name, **({"changes": put.changes[name]} if name in put.changes else {})}
    counts = {"added": len(put.added), "changed": len(put.changed), "deleted": list(put.deleted[:_MOST_TOLD])}
    return {**counts, "changes": told_changes(put)} if put.changes else counts


def told_changes(put: SchedulesPut) -> dict[str, Any]:
    """What became other, for the record: of no more than there is use for."""
    return dict(islice(put.changes.items(), _MOST_TOLD))


def write(
    definitions: Sequence[ScheduleDefinition], authors: Mapping[str, Author], *, actor: str, codec: Codec | None
) -> Steps[SchedulesPut]:
    """Write what is new in these; the caller has locked their rows. Those without an author are put by the actor, by hand."""
    added: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    changes: dict[str, dict[str, tuple[Any, Any] | None]] = {}
    now: datetime = yield database_time()
    for start in range(0, len(definitions), _BATCH):
        batch = definitions[start : start + _BATCH]
        rows: dict[str, StoredSchedule] = yield read_rows([new.name for new in batch])
        same = {new.name for new in batch if new.name in rows and says_the_same(new, rows[new.name], codec)}
        changes |= {
            new.name: _changes(new, rows[new.name], codec) for new in batch if new.name in rows and new.name not in same
        }
        rows |= yield from _give_out([rows[new.name] for new in batch if new.name in rows and new.name not in same])
        written = []
        for new in batch:
            old, author = rows.get(new.name), authors.get(new.name)
            (unchanged if new.name in same else added if old is None else changed).append(new.name)
            if new.name in same and author is None:
                continue
            by_hand = Author(actor, old.digest if old else None, tuple(old.digests) if old else ())
            written.append(_row(new, old, now, author or by_hand, codec, is_same=new.name in same))
        if written:
            yield write_rows(written)
            yield write_parents({new.name: new.parents for new in batch if new.name not in same})
    # a parent may have gone since: what says the same waits, as it did, and says so
    known = set(unchanged)
    yield from check_parents([new.name for new in definitions if new.parents and new.name not in known])
    return SchedulesPut(tuple(added), tuple(changed), tuple(unchanged), changes=changes)


def says_the_same(new: ScheduleDefinition, old: StoredSchedule, codec: Codec | None) -> bool:
    if old.problem is not None or any(getattr(new, name) != getattr(old, name) for name in _COMPARED):
        return False
    return _same_args(new, old, codec)


def _changes(new: ScheduleDefinition, old: StoredSchedule, codec: Codec | None) -> dict[str, tuple[Any, Any] | None]:
    """What becomes other. Arguments and keys are only named: they may be about someone, and this is kept for good."""
    told: dict[str, tuple[Any, Any] | None] = {
        name: None if name == "key" else (plain(getattr(old, name)), plain(getattr(new, name)))
        for name in _COMPARED
        if getattr(new, name) != getattr(old, name)
    }
    return told if _same_args(new, old, codec) else {**told, "args": None}


def _same_args(new: ScheduleDefinition, old: StoredSchedule, codec: Codec | None) -> bool:
    try:
        stored: bool = decoded(codec, old.args) == read_json(new.args)
    except InvalidArguments:  # whatever it says, nobody here could read it
        return False
    return stored


def _give_out(rows: Sequence[StoredSchedule]) -> Steps[dict[str, StoredSchedule]]:
    """Give out what is due by the old words; returns the rows as they are then."""
    due = {row.name: row for row in rows if _is_due(row)}
    if not due:
        return {}
    plans = [make_plan(_as_due(row), lambda _: None) for row in due.values()]
    fired: list[Fired] = yield fire(plans)
    slots = {plan.name: plan.slots for plan in plans}
    return {
        each.name: due[each.name]._replace(
            runs=due[each.name].runs + each.fired,
            last_slot=max((slot for slot in (*slots[each.name], due[each.name].last_slot) if slot), default=None),
            live=due[each.name].live or each.fired > 0,
            next_slot=None,
            next_at=None,
        )
        for each in fired
    }


def _is_due(row: StoredSchedule) -> bool:
    return row.next_at is not None and row.next_at <= row.now and row.paused_at is None and row.problem is None


def _as_due(row: StoredSchedule) -> DueSchedule:
    due = DueSchedule._make(getattr(row, name) for name in DueSchedule._fields)
    # which is read as text there
    return due._replace(exclude=None if row.exclude is None else json.dumps(row.exclude))


def next_slot(
    new: ScheduleDefinition | StoredSchedule, old: StoredSchedule | None, anchor: datetime, now: datetime
) -> datetime | None:
    """The slot that comes next by the new words."""
    runs = old.runs if old else 0
    if new.max_runs is not None and runs >= new.max_runs:
        return None
    if new.kind == "once":
        is_over = old is not None and old.at == new.at and old.next_slot is None and old.problem is None
        return None if is_over else new.at
    timing = timing_of(new, anchor, old.skipped_slots if old else ())
    if new.kind == "delay":
        if old is not None and old.live:
            return None  # it is counted from the end of that run
        return new.start_at if new.start_at and new.start_at > now else timing.next(now)
    return timing.next(max(now, old.last_slot) if old and old.last_slot else now)


def _row(
    new: ScheduleDefinition,
    old: StoredSchedule | None,
    now: datetime,
    author: Author,
    codec: Codec | None,
    *,
    is_same: bool,
) -> dict[str, Any]:
    keeps_anchor = old is not None and _same_pace(new, old) and old.start_at == new.start_at
    anchor = old.anchor if old is not None and keeps_anchor else new.start_at or now.replace(microsecond=0)
    slot: datetime | None
    at: datetime | None
    if (
        old is not None
        and old.next_slot is not None
        and old.next_at is not None
        and (_is_kept(new, old) or (old.next_slot <= now < old.next_at and old.paused_at is None))
    ):
        slot, at = old.next_slot, old.next_at  # one that only its jitter keeps back was promised, too
    else:
        slot = next_slot(new, old, anchor, now)
        at = None if slot is None else jittered(new.name, slot, new.jitter)
    pace = interval_of(new.every) if new.kind == "delay" and new.every else None
    refused = f"Schedule {new.name!r} was not put"
    return {
        **{name: _json(getattr(new, name)) for name in _COMPARED if name != "parents"},
        "name": new.name,
        # a codec may make something else of the same each time
        "args": read_json(old.args if is_same and old else encoded(codec, new.args, refused, secret=bool(new.redact))),
        "checked": new.checked,
        "tags": list(new.tags) or None,
        "redact": list(new.redact) or None,
        "jitter": new.jitter.total_seconds(),
        "misfire_grace": new.misfire_grace.total_seconds(),
        "delay_months": pace.months if pace else None,
        "delay_seconds": pace.length.total_seconds() if pace else None,
        "anchor": anchor.isoformat(),
        "next_slot": _json(slot),
        "next_at": _json(at),
        "owner": author.owner,
        "digest": None if author.digest is None else str(author.digest),
        "digests": [str(digest) for digest in author.digests],
        "revision": 1 if old is None else old.revision + (not is_same),
    }


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else None if value is None else value


def _is_kept(new: ScheduleDefinition, old: StoredSchedule) -> bool:
    """Whether the next slot stays, as nothing changes that decides about it."""
    if old.problem is not None or (new.max_runs is not None and old.runs >= new.max_runs):
        return False
    return _same_pace(new, old) and all(getattr(new, name) == getattr(old, name) for name in _OF_TIME)


def _same_pace(new: ScheduleDefinition, old: StoredSchedule) -> bool:
    """Whether it is every so often as before, in whatever words."""
    if new.every is None or old.every is None or new.every == old.every:
        return new.every == old.every
    try:
        return interval_of(new.every) == interval_of(old.every)
    except ConfigurationError:  # someone wrote something else into the row
        return False
