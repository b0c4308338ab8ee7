"""Projections: those that have stopped, hang or lag, what holds them up, and those that nobody reads for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rota.events.source import EventSource
from rota.postgres.query import Query, statement
from rota.projections.behind import Behind, count_behind
from rota.projections.definition import lease_name
from rota.projections.horizon import HorizonHolder, who_holds_the_horizon
from rota.projections.inspect import STALLED_SECONDS, ProjectionView, list_projections
from rota.runtime.doctor.finding import Finding, Grade, ok
from rota.runtime.doctor.patient import Patient

__all__ = ["projections"]

_COUNTED = 10_000
_TOLD = 5  # of each kind: whoever reads this mends one after the other
_LATE = 60.0  # seconds that the first of what waits has done so


class _Trouble(NamedTuple):
    grade: Grade
    found: str
    why: str
    mend: Sequence[str] = ()


# A checkpoint or a last event whose transaction id this server has not given out. Both are one step along an index.
FIND_FOREIGN = statement(
    "find_foreign_projections",
    """
    select projection.name
    from {schema}.projections as projection
    where projection.state <> 'retired'
      and greatest(
          projection.order_xid,
          (
              select event.order_xid
              from {schema}.events as event
              where event.log = projection.definition ->> 'source'
                -- a table of the user's may have the name of a log
                and projection.definition ->> 'kind' is distinct from 'table'
              order by event.order_xid desc, event.position desc
              limit 1
          )
      ) >= pg_snapshot_xmax(pg_current_snapshot())
    group by projection.name
    order by projection.name
    """,
)


def _find_foreign() -> Query[list[str]]:
    return FIND_FOREIGN.query(read=lambda rows: [name for (name,) in rows])


def projections(patient: Patient) -> Finding:
    """Do all projections take in what there is?"""
    views = [view for view in patient.ask(list_projections()) if view.state != "retired"]
    if not views:
        return ok("no process has declared one")
    behind = _behind(patient, views)
    late = [each for each in behind.values() if each.events and (each.seconds or 0.0) > _LATE]
    holder = patient.ask(who_holds_the_horizon()) if late else None
    is_held = holder is not None and (holder.seconds is None or holder.seconds > _LATE)
    troubles = [
        *_foreign(patient),
        *_stopped(patient, views),
        *_left_alone(patient, views, behind),
        *(_held(holder, late) if holder is not None and is_held else _late(patient, views, behind)),
        *_parked(patient, views),
        *_paused(patient, views),
    ]
    if not troubles:
        known = f", {sum(each.events for each in behind.values())} event(s) wait" if behind else ""
        return ok(f"{len(views)} in order{known}")
    grades: tuple[Grade, ...] = ("problem", "warning", "note")
    grade = next(grade for grade in grades if any(each.grade == grade for each in troubles))
    return Finding(
        grade,
        "; ".join(each.found for each in troubles),
        " ".join(dict.fromkeys(each.why for each in troubles)),
        tuple(mend for each in troubles for mend in each.mend),
    )


def _behind(patient: Patient, views: Iterable[ProjectionView]) -> dict[tuple[str, int], Behind]:
    """What waits for those of the app: where the others read from is known to theirs."""
    declared = {(view.name, view.version) for view in views}
    read_from: dict[EventSource, list[tuple[str, int]]] = {}
    for definition in patient.app.projections.definitions:
        if (definition.name, definition.version) in declared:
            read_from.setdefault(definition.source, []).append((definition.name, definition.version))
    found: dict[tuple[str, int], Behind] = {}
    for source, projections in read_from.items():
        for each in patient.ask(count_behind(source, projections, most=_COUNTED)):
            found[each.name, each.version] = each
    return found


def _foreign(patient: Patient) -> Iterable[_Trouble]:
    if foreign := patient.ask(_find_foreign()):
        yield _Trouble(
            "problem",
            f"the places of {_names(foreign)} are of another server",
            "A dump was restored here: nothing can be read, and new events would come before the old ones. No worker starts so.",
            (f"{patient.command('projections', 'rebase')}   # while no worker runs and nobody appends",),
        )


def _stopped(patient: Patient, views: Iterable[ProjectionView]) -> Iterable[_Trouble]:
    stopped = [view for view in views if view.state == "stopped"]
    if stopped:
        # what the error says may hold what is not for everyone who reads this
        told = ", ".join(f"{view.name} ({view.error_type or 'unknown'})" for view in stopped[:_TOLD])
        yield _Trouble(
            "problem",
            f"{len(stopped)} stopped at an event that cannot be taken in: {told}",
            "Nothing more is read until someone resumes it.",
            (
                *(patient.command("projections", "show", view.name) for view in stopped[:_TOLD]),
                *(
                    f"{patient.command('projections', 'resume', view.name)}   # when that is mended"
                    for view in stopped[:_TOLD]
                ),
            ),
        )


def _left_alone(
    patient: Patient, views: Iterable[ProjectionView], behind: dict[tuple[str, int], Behind]
) -> Iterable[_Trouble]:
    alone = [view for view in views if not view.workers]
    if not alone:
        return
    waits = any(each.events for view in alone if (each := behind.get((view.name, view.version))) is not None)
    yield _Trouble(
        "problem" if waits else "warning",
        f"no running worker has {_names(f'{view.name} (version {view.version})' for view in alone)}",
        "Nobody takes in its events. One that is in no code any more can be forgotten.",
        (
            patient.app_command("worker"),
            *(
                patient.command("projections", "forget", view.name, "--version", str(view.version))
                for view in alone[:_TOLD]
            ),
        ),
    )


def _held(holder: HorizonHolder, late: Sequence[Behind]) -> Iterable[_Trouble]:
    for_ = "" if holder.seconds is None else f" for {holder.seconds:.0f} s"
    where = "" if holder.database is None else f" in database {holder.database}"
    if holder.pid is None:
        gid = "'" + (holder.query or "").replace("'", "''") + "'"
        who, mend = f"a prepared transaction{where}", [f"rollback prepared {gid};   -- or commit prepared"]
    else:
        who = f"pid {holder.pid} ({holder.state}, role {holder.user or 'unknown'}{where})"
        # what others ask may hold what is not for everyone who reads this: whoever may know it can look
        mend = [
            f"select pid, query from pg_stat_activity where pid = {holder.pid};   -- what it does",  # noqa: S608 - to be read
            f"select pg_terminate_backend({holder.pid});",
        ]
    yield _Trouble(
        "warning",
        f"{who} has been in a transaction{for_}, and {_names(each.name for each in late)} cannot read past it",
        "It may still commit events that come before those that wait. Nothing is lost, and all are late.",
        mend,
    )


def _late(
    patient: Patient, views: Iterable[ProjectionView], behind: dict[tuple[str, int], Behind]
) -> Iterable[_Trouble]:
    for view in views:
        waits = behind.get((view.name, view.version))
        is_late = waits is not None and waits.events > 0 and (waits.seconds or 0.0) > _LATE
        if waits is None or not is_late or view.state != "running" or view.owner is None:
            continue
        count = f"{waits.events} event(s)" if waits.events < _COUNTED else f"{_COUNTED:,} events or more"
        if not view.failures and (view.progress_seconds or 0.0) > STALLED_SECONDS:
            yield _Trouble(
                "problem",
                f"{view.name} has not come further for {view.progress_seconds:.0f} s although {count} wait",
                "Its handler hangs, or waits for a lock.",
                (
                    patient.app_command("projections", "show", view.name, option="--app"),
                    patient.command("leaders", "resign", _lease(view), "--force") + "   # another process goes on",
                ),
            )
        else:
            yield _Trouble(
                "warning",
                f"{view.name} is behind: {count} wait, the first for {waits.seconds:.0f} s",
                "It goes on, and takes in less than is appended, or has begun anew.",
                (patient.app_command("projections", "show", view.name, option="--app"),),
            )


def _parked(patient: Patient, views: Iterable[ProjectionView]) -> Iterable[_Trouble]:
    parked = [view for view in views if view.parked]
    if parked:
        yield _Trouble(
            "warning",
            "parked: " + ", ".join(f"{view.parked} of {view.name}" for view in parked[:_TOLD]),
            "These events were not taken in, and stay until someone replays or drops them.",
            [patient.command("projections", "parked", view.name) for view in parked[:_TOLD]],
        )


def _paused(patient: Patient, views: Iterable[ProjectionView]) -> Iterable[_Trouble]:
    paused = [view for view in views if view.state == "paused"]
    if paused:
        yield _Trouble(
            "note",
            "paused: " + ", ".join(f"{view.name} by {view.state_by}" for view in paused[:_TOLD]),
            "Nobody reads for it until it is resumed.",
            [patient.command("projections", "resume", view.name) for view in paused[:_TOLD]],
        )


def _lease(view: ProjectionView) -> str:
    """Of the partition that has been silent for the longest."""
    silent = max(view.partitions, key=lambda each: each.progress_seconds or 0.0)
    return lease_name(view.name, view.version, silent.partition if len(view.partitions) > 1 else None)


def _names(names: Iterable[str]) -> str:
    all_ = list(dict.fromkeys(names))
    return ", ".join(all_[:_TOLD]) + (f" and {len(all_) - _TOLD} more" if len(all_) > _TOLD else "")
