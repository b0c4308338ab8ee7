"""Facts in words, on the standard logger `rota`; and how our own commands log. What records know of jobs: see `log_records`."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

from rota import facts
from rota.errors import ConfigurationError
from rota.facts import Fact, Facts
from rota.integrations.log_records import Context, JsonFormatter, TextFormatter, know_member, structlog_context

__all__ = ["Context", "JsonFormatter", "log_facts", "set_up_logging", "structlog_context", "words"]

logger = logging.getLogger("rota")

Words = tuple[int, str]

_WISHES = {
    "quiet": "quiet, as {by} asked: nothing new is begun until `rota members resume`, and what runs goes on",
    "drain": "{by} asked this process to drain",
    None: "no longer quiet: work is taken on again",
}


def words(fact: Fact) -> Words | None:
    """The level and the sentence for a fact; None for those that are too many to log."""
    match fact:
        case facts.MigrationApplied(number, name, seconds):
            return logging.INFO, f"migration {number:04} {name} applied in {seconds:.2f} s"
        case facts.MemberJoined(member, name):
            return logging.INFO, f"joined as {name} ({member})"
        case facts.MemberLeft(member):
            return logging.INFO, f"left ({member})"
        case facts.WishHeard(_, wish, by):
            return logging.INFO, _WISHES[wish].format(by=by)
        case facts.MemberIdentityLost(member):
            return (
                logging.WARNING,
                f"a peer ended this process's lease ({member}): it was silent for too long; starting over",
            )
        case facts.MemberEnded(_, name, reason):
            return logging.WARNING, f"ended {name}, which {_reason(reason)}; its work is taken over"
        case facts.ControlLost(_, error):
            return logging.WARNING, f"control session lost, starting nothing new: {error}"
        case facts.ControlRestored():
            return logging.INFO, "control session restored"
        case facts.LeadershipGained(name, epoch):
            return logging.INFO, f"leading {name} (epoch {epoch})"
        case facts.LeadershipEnded(name, epoch, reason, kind):
            level = logging.WARNING if kind in ("taken", "lost") else logging.INFO
            return level, f"no longer leading {name} (epoch {epoch}): {reason}"
        case facts.StandingBy(name, holder):
            return logging.INFO, f"standing by for {name}, which {holder} leads"
        case facts.TakeoverHindered(name, epoch, roles):
            return logging.WARNING, (
                f"{name} cannot be led yet: its last leader (epoch {epoch}) left a session inside its transaction; it is waited "
                f"for, as this role may not end a session of {', '.join(roles)}: log in as the same role, or grant pg_signal_backend"
            )
        case facts.SingletonFailed(name, epoch, error, pause):
            return (
                logging.ERROR,
                f"singleton {name} (epoch {epoch}) failed: {_brief(error)}; it is started again in {pause:.1f} s",
            )
        case facts.ScheduleRoundBegan():
            return logging.DEBUG, "scheduler: looking at what is due and what has ended"
        case facts.ScheduleRoundEnded(given_out, elsewhere, ends, seconds):
            return logging.DEBUG, (
                f"scheduler: {given_out} schedule(s) given out, {elsewhere} taken, changed or locked by others, {ends} end(s) "
                f"concluded in {seconds:.3f} s"
            )
        case facts.ScheduleFired(name, runs):
            return logging.DEBUG, f"schedule {name}: {runs} run(s) given out"
        case facts.ScheduleSkipped(name, runs):
            return logging.INFO, f"schedule {name}: {runs} slot(s) left out, as a run of it is still under way"
        case facts.ScheduleMissed(name, runs):
            return logging.WARNING, f"schedule {name}: {runs} slot(s) were missed and are not made up for"
        case facts.ScheduleUnclaimed(name, task):
            return (
                logging.WARNING,
                f"schedule {name}: no live worker knows its task {task}; the job waits for one that does",
            )
        case facts.ScheduleBroken(name, problem):
            return logging.ERROR, f"schedule {name} cannot go on, and waits until it is put anew or resumed: {problem}"
        case facts.SchedulesDeclared(added, changed, left):
            kept = f", {len(left)} left to the newer code of other processes ({_some(left)})" if left else ""
            return logging.INFO, (
                f"schedules of this code: {len(added)} added ({_some(added)}), {len(changed)} changed ({_some(changed)}){kept}"
            )
        case facts.SchedulesNotDeclared(error, pause):
            return (
                logging.ERROR,
                f"the schedules of this code could not be put: {_brief(error)}; that is tried again in {pause:.0f} s",
            )
        case facts.ScheduleOrphaned(name):
            return logging.WARNING, (
                f"schedule {name} is declared by no live process, and goes on; if it is not wanted: rota schedules delete {name}"
            )
        case facts.PoolerDetected():
            return logging.WARNING, (
                "the database is behind a transaction pooler: no session locks and no LISTEN, so deaths are noticed by "
                "lease only and jobs are found by polling; give workers a direct address to have both"
            )
        case facts.ListenerDeaf():
            return logging.WARNING, "notifications do not arrive; polling more often"
        case facts.ListenerHeard():
            return logging.DEBUG, "notifications arrive"
        case facts.DatabaseLost(part, error):
            return logging.WARNING, f"{part}: {error}"
        case facts.DatabaseBack(part):
            return logging.INFO, f"{part}: the database is back"
        case facts.DatabaseAwaited(error):
            return logging.WARNING, f"waiting for the database: {error}"
        case facts.ResourceAwaited(error):
            return logging.ERROR, f"waiting, as nothing can run without it: {error}"
        case facts.StageStarted(name, seconds):
            return logging.DEBUG, f"started: {name} ({seconds:.2f} s)"
        case facts.StageStopped(name, seconds):
            return logging.DEBUG, f"stopped: {name} ({seconds:.2f} s)"
        case facts.StageFailed(name, error):
            return logging.ERROR, f"could not be stopped in order, and is left behind: {name}: {_brief(error)}"
        case facts.EndingBegan(reason):
            return logging.INFO, f"stopping ({reason}): nothing new is begun, and what runs has its time to finish"
        case facts.EndingHurried():
            return logging.INFO, "stopping at once: what has not finished is handed back"
        case facts.Ended(seconds):
            return logging.INFO, f"stopped in order within {seconds:.1f} s"
        case facts.LoopBlocked(seconds, stack):
            return logging.ERROR, (
                f"the event loop has not turned for {seconds:.1f} s: something on it blocks, and nothing else goes on meanwhile. "
                f"Put it into a thread (`def` instead of `async def`, or asyncio.to_thread). It is here:\n{stack}"
            )
        case facts.LoopFree(seconds):
            return logging.WARNING, f"the event loop turns again, after {seconds:.1f} s"
        case facts.WorkerStarted(_, queues, tasks, concurrency):
            where = "all queues" if queues is None else f"queues {', '.join(queues)}"
            return logging.INFO, f"working on {where}, {len(tasks)} task(s), {concurrency} at once"
        case facts.WorkerStopped(_, jobs, statements):
            return logging.INFO, f"worker stopped after {jobs} job(s) and {statements} statement(s)"
        case facts.Drained(finished, handed_back, abandoned):
            rest = f", {abandoned} could not be written in time and are left to rescue" if abandoned else ""
            return logging.INFO, f"drained: {finished} finished, {handed_back} handed back{rest}"
        case facts.JobSucceeded(job, task, _, attempt, seconds):
            return logging.DEBUG, f"job {job} ({task}) succeeded in {seconds:.3f} s, attempt {attempt}"
        case facts.JobFailed(job, task, _, attempt, _, error, retry_in):
            then = "it is dead" if retry_in is None else f"next attempt in {retry_in:.1f} s"
            return (
                logging.WARNING,
                f"job {job} ({task}) failed in attempt {attempt}: {_brief(error)}; {then}",
            )
        case facts.JobLost(job, task, _, attempt, _, fate, error):
            then = {
                "dead": "it is dead, having taken too many processes with it",
                "cancelled": "it is cancelled, as it was to be",
            }.get(fate, "it is queued again")
            return logging.WARNING, f"job {job} ({task}) was lost in attempt {attempt}: {error}; {then}"
        case facts.JobsLocked(ids):
            return logging.WARNING, (
                f"what became of job(s) {', '.join(map(str, ids))} cannot be written down yet: someone holds a lock on their rows. "
                "Look for an old transaction in pg_stat_activity (xact_start), and end it"
            )
        case facts.SuccessesRepeated(jobs):
            return logging.WARNING, (
                f"the database has crashed, and had forgotten {jobs} success(es) of relaxed queues: they are on record again"
            )
        case facts.LogLinesDropped(lines):
            return logging.WARNING, (
                f"job logs: {lines} line(s) of bodies found no room and are not kept; log less in them, or keep less: "
                "Rota(job_logs=...), @app.task(logs=...)"
            )
        case facts.JobSnoozed(job, task, _, attempt, _, pause):
            return logging.DEBUG, f"job {job} ({task}) snoozed for {pause:.1f} s in attempt {attempt}"
        case facts.JobCancelled(job, task, _, attempt, _, reason):
            when = f"in attempt {attempt}" if attempt else "before its first attempt"
            return logging.INFO, f"job {job} ({task}) cancelled {when}{f': {reason}' if reason else ''}"
        case facts.JobStuck(job, task, attempt):
            return logging.ERROR, (
                f"job {job} ({task}): the body of attempt {attempt} goes on although it was told to end; its slot stays taken until "
                "it does"
            )
        case facts.JobRaisedAfterSuccess(job, task, attempt, error):
            return logging.ERROR, (
                f"job {job} ({task}) has succeeded, but attempt {attempt} raised after its transaction: {_brief(error)}"
            )
        case facts.BulkEnded(bulk, action, state, changed, skipped, failed):
            return (
                logging.INFO,
                f"bulk {bulk} ({action}) is {state}: {changed} done, {skipped} skipped, {failed} failed",
            )
        case facts.HistoryKept(created, dropped, removed, hindered):
            done = f"history: {created} partition(s) made, {dropped} dropped, {removed} row(s) or result(s) removed"
            return (
                (logging.WARNING, f"{done}; left undone: {'; '.join(hindered)}") if hindered else (logging.INFO, done)
            )
        case facts.JobClaimLost(job, task, attempt, _, False):
            return logging.WARNING, f"job {job} ({task}): attempt {attempt} has lost its claim and is told to stop"
        case facts.JobClaimLost(job, task, attempt, _, True):
            return (
                logging.WARNING,
                f"job {job} ({task}): attempt {attempt} ended after its claim did; its outcome changed nothing",
            )
        case facts.RowPolled(poller, key, _, "changed"):
            return (
                logging.INFO,
                f"poller {poller}: row {_key(key)} was polled, and stamped although it fits where= no longer",
            )
        case facts.RowPolled(poller, key, _, "gone"):
            return logging.INFO, f"poller {poller}: row {_key(key)} was deleted while it was polled"
        case facts.RowFailed(poller, key, attempt, _, error, None):
            return logging.ERROR, (
                f"poller {poller}: row {_key(key)} failed in attempt {attempt}: {_brief(error)}; it is parked, "
                f"until: rota pollers release {shlex.quote(poller)} {shlex.quote(_key(key))}"
            )
        case facts.RowFailed(poller, key, attempt, _, error, retry_in):
            return (
                logging.WARNING,
                f"poller {poller}: row {_key(key)} failed in attempt {attempt}: {_brief(error)}; next attempt in {retry_in:.1f} s",
            )
        case facts.RowLost(poller, key, _, losses, True):
            return logging.ERROR, (
                f"poller {poller}: row {_key(key)} was lost with its process; it is parked, having taken {losses} with it"
            )
        case facts.RowLost(poller, key, _, losses, False):
            return (
                logging.WARNING,
                f"poller {poller}: row {_key(key)} was lost with its process (loss {losses}); it is tried again, apart from others",
            )
        case facts.RowClaimLost(poller, key):
            return (
                logging.WARNING,
                f"poller {poller}: the poll of row {_key(key)} ended after its claim did; its outcome changed nothing",
            )
        case facts.RowLocked(poller, key):
            return logging.WARNING, (
                f"poller {poller}: row {_key(key)} was polled and cannot be stamped yet: someone holds a lock on it. Look for an old "
                "transaction in pg_stat_activity (xact_start)"
            )
        case facts.RowHindered(poller, key, error):
            return logging.WARNING, (
                f"poller {poller}: row {_key(key)} was polled, and what became of it cannot be written yet: {error}. Look at the "
                "triggers of its table, and at what they wait for in pg_stat_activity"
            )
        case facts.RowRaisedAfterSuccess(poller, key, error):
            return logging.ERROR, (
                f"poller {poller}: row {_key(key)} is polled, but its handler raised after its transaction: {_brief(error)}"
            )
        case facts.PollerHindered(poller, error, retry_in):
            return logging.ERROR, (
                f"poller {poller} cannot look for due rows: {error}; the next look is in {retry_in:.0f} s. To see what is wrong: "
                f"rota pollers check {shlex.quote(poller)} --app APP"
            )
        case facts.RowsLeftOut(poller, find):
            return logging.ERROR, (
                f"poller {poller} leaves out rows whose keys are too long to be claimed, and goes on with the others. Give the "
                f"table a shorter unique key for key=... To find them: {find}"
            )
        case facts.ProjectionFailed(_, _, position, attempt, error, retry_in):
            return logging.WARNING, (
                f"projection {_projection(fact)}: the event at position {position} failed in attempt {attempt}: {_brief(error)}; next "
                f"attempt in {retry_in:.1f} s"
            )
        case facts.ProjectionStopped(projection, _, position, attempt, error):
            return logging.ERROR, (
                f"projection {_projection(fact)} has stopped at position {position} after attempt {attempt}: {_brief(error)}. Mend "
                f"it, then: rota projections resume {shlex.quote(projection)}"
            )
        case facts.ProjectionAbandoned(_, _, epoch):
            return logging.WARNING, (
                f"projection {_projection(fact)}: its handler has not ended with its term (epoch {epoch}); its session was ended, and "
                "what it wrote is undone"
            )
        case facts.HookHindered(_, version, hook, attempt, error, retry_in):
            return logging.WARNING, (
                f"projection {_projection(fact)}: {hook}=... of version {version} cannot have a lock that it needs, in attempt "
                f"{attempt}: {_brief(error)}; next attempt in {retry_in:.1f} s"
            )
        case facts.EventParked(projection, _, _, position, attempt, error):
            return logging.ERROR, (
                f"projection {_projection(fact)}: the event at position {position} failed in attempt {attempt}: {_brief(error)}; it "
                f"is parked, until: rota projections parked {shlex.quote(projection)} --replay"
            )
        case facts.ProjectionStalled(_, _, position, busy):
            return logging.WARNING, (
                f"projection {_projection(fact)}: its handler has been busy for {busy:.0f} s, at or behind position {position}"
            )
        case facts.ProjectionHindered(_, _, waited, holder):
            return logging.WARNING, (
                f"projection {_projection(fact)} has waited {waited:.0f} s for a transaction that may still commit something older: "
                f"{holder}"
            )
        case _:
            return None


def log_facts(source: Facts) -> Callable[[], None]:
    """Log every fact of an app; returns how to stop."""
    unsubscribe = know_member(source), source.subscribe(_log)

    def stop() -> None:
        for each in unsubscribe:
            each()

    return stop


def set_up_logging(level: int | str | None = None, format: str | None = None, label: str = "") -> None:
    """For our own commands: one line per record on stderr, in the `format` text or json. A library user's logging is theirs.

    `label` tells the lines of this process from those of others that share its stderr.

    Without arguments it is as ROTA_LOG_LEVEL and ROTA_LOG_FORMAT say. Records of other loggers come out in the same way as long
    as nobody handles them: warnings and worse, or as the level says if someone said one.
    """
    said = level if level is not None else os.environ.get("ROTA_LOG_LEVEL") or None
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Context())
    handler.setFormatter(_formatter(format or os.environ.get("ROTA_LOG_FORMAT") or "text", label))
    logger.addHandler(handler)
    logger.setLevel(_level(said) if said is not None else logging.INFO)
    unhandled = logging.StreamHandler(sys.stderr)
    unhandled.addFilter(Context())
    unhandled.setFormatter(handler.formatter)
    unhandled.setLevel(logging.WARNING if said is None else logger.level)
    logging.lastResort = unhandled
    if said is not None:
        logging.getLogger().setLevel(logger.level)


def _formatter(format: str, label: str) -> logging.Formatter:
    if format not in ("text", "json"):
        raise ConfigurationError(f"Logs cannot be written as {format!r} (ROTA_LOG_FORMAT): it is text or json.")
    return JsonFormatter() if format == "json" else TextFormatter(label)


def _level(said: int | str) -> int:
    level = logging.getLevelName(said.upper()) if isinstance(said, str) else said
    if not isinstance(level, int):
        raise ConfigurationError(
            f"There is no log level {said!r} (ROTA_LOG_LEVEL): it is debug, info, warning, error or critical."
        )
    return level


def _log(fact: Fact) -> None:
    # one for each job: words that nobody reads would cost it more than all else that is counted of it
    if type(fact) is facts.JobSucceeded and not logger.isEnabledFor(logging.DEBUG):
        return
    said = words(fact)
    if said is not None and logger.isEnabledFor(said[0]):
        logger.log(said[0], said[1], exc_info=_traced(fact), extra={"fact": fact})


def _traced(fact: Fact) -> BaseException | None:
    """The error whose trace is worth reading here: that of an attempt which is tried again is on record, others are nowhere."""
    match fact:
        case facts.SingletonFailed(error=error) | facts.JobFailed(error=error, retry_in=None):
            return error
        case facts.RowFailed(error=BaseException() as error, retry_in=None) | facts.RowRaisedAfterSuccess(error=error):
            return error
        case facts.ProjectionStopped(error=error):
            return error
    return None


def _projection(fact: Any) -> str:
    """Its name, and what else tells where in it something happened."""
    parts = [f"build {fact.build}"] if fact.build > 1 else []
    parts += [f"partition {fact.partition}"] if fact.partition is not None else []
    return f"{fact.projection} ({', '.join(parts)})" if parts else str(fact.projection)


def _brief(error: BaseException | str | None) -> str:
    if isinstance(error, str):
        return error
    return "its outcome could not be stored" if error is None else f"{type(error).__name__}: {error}"


def _key(key: list[Any]) -> str:
    return str(key[0]) if len(key) == 1 else json.dumps(key, ensure_ascii=False)


def _reason(reason: str) -> str:
    return {"suspected": "died", "expired": "was silent for a whole lease"}.get(reason, reason)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "none"
