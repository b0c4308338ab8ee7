"""`rota jobs`: look at jobs, and change what becomes of them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each, json_object, moment
from rota.cli.job_search import count, search
from rota.cli.output import as_json as plain
from rota.cli.output import (
    json_option,
    json_text,
    print_fields,
    print_json,
    print_table,
    say,
    say_more,
    short_time,
)
from rota.cli.target import app_option, database_options, open_app, reading_app_option
from rota.conversion.plain import dumps, read_json
from rota.errors import NotPossible
from rota.jobs.checks import check_at, check_delay, check_priority, check_tags
from rota.jobs.definition import JobOptions, Task
from rota.jobs.inspect import STATES
from rota.jobs.job import Job, NewJob
from rota.jobs.logs.read import LogLine
from rota.jobs.redact import masked
from rota.jobs.unique import Unique
from rota.postgres.names import check_name

__all__ = ["jobs"]


@click.group()
def jobs() -> None:
    """Look at jobs, retry, cancel, erase and enqueue them."""


jobs.add_command(search)
jobs.add_command(count)


@jobs.command("list")
@click.option("--state", type=click.Choice(STATES), help="In this state.")
@click.option("--queue", help="In this queue.")
@click.option("--task", help="Of the task of this name.")
@click.option("--tag", help="With this tag.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=int, help="Continue after this id: the last of the page before.")
@json_option
@reading_app_option
@database_options
def list_(
    state: str | None,
    queue: str | None,
    task: str | None,
    tag: str | None,
    limit: int,
    after: int | None,
    as_json: bool,
    app_path: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Jobs that fit all filters, the newest first."""
    with open_app(dsn, schema, app_path) as app:
        found = app.jobs.list_sync(state=state, queue=queue, task=task, tag=tag, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "state", "queue", "task", "attempt", "due", "finished"],
        [[j.id, j.state, j.queue, j.task, j.attempt, short_time(j.due_at), short_time(j.finished_at)] for j in found],
        empty="no jobs fit",
    )
    say_more(found, limit)


@jobs.command()
@click.argument("id", type=int)
@json_option
@reading_app_option
@database_options
def show(id: int, as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """One job with its arguments, its result and its errors."""
    with open_app(dsn, schema, app_path) as app:
        job = app.jobs.get_sync(id)
        letter = app.dead.get_sync(id) if job.state == "dead" else None
    if as_json:
        print_json({**plain(job), "successor": letter.successor if letter else None})
        return
    print_fields(
        {
            "id": job.id,
            "task": job.task,
            "version": job.version,
            "queue": job.queue,
            "state": job.state,
            "reason": job.reason,
            "priority": job.priority,
            "attempt": job.attempt,
            "losses": job.losses or None,
            "created": short_time(job.created_at),
            "due": short_time(job.due_at),
            "started": short_time(job.started_at),
            "finished": short_time(job.finished_at),
            "member": job.member,
            "progress": None if job.progress is None else f"{job.progress:.0%} {job.progress_note or ''}".rstrip(),
            "cancelling": short_time(job.cancel_requested_at),
            "key": job.key,
            "tags": ", ".join(job.tags),
            "retention": job.retention,
            "repeats": job.origin,
            "resolved": f"{letter.resolution} by {letter.resolved_by}" if letter and letter.resolution else None,
            "successor": letter.successor if letter else None,
            "arguments": json_text(job.args),
            "result": json_text(job.result),
        }
    )
    for error in job.errors:
        said = f"{error.type or ''}: {error.message or ''}".strip(": ")
        click.echo(f"\nattempt {error.attempt} {error.kind} at {short_time(error.finished_at)}, {said}".rstrip(", "))
        if error.trace:
            click.echo(error.trace.rstrip())


@jobs.command()
@click.argument("id", type=int)
@click.option("--attempt", type=click.IntRange(1), help="Of this attempt only.")
@click.option("--follow", is_flag=True, help="Go on until the job is settled.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="At most so many.")
@click.option(
    "--after", type=click.IntRange(1), help="Continue after the line of this id: the last of the page before."
)
@json_option
@database_options
def logs(
    id: int,
    attempt: int | None,
    follow: bool,
    limit: int,
    after: int | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """What the body of a job logged, the oldest line first.

    With --follow it is shown while it comes; --json is then one object per line. What is kept is for the app to say: see job_logs.
    """
    with open_app(dsn, schema) as app:
        if follow:
            for page in app.jobs.follow_logs_sync(id, attempt=attempt, after=after):
                for line in page:
                    click.echo(dumps(plain(line)) if as_json else _log_line(line))
            return
        lines = app.jobs.logs_sync(id, attempt=attempt, after=after, limit=limit)
    if as_json:
        print_json(lines)
        return
    for line in lines:
        click.echo(_log_line(line))
    if not lines:
        say("nothing was kept of what it logged")
    say_more(lines, limit)


def _log_line(line: LogLine) -> str:
    told = f"{short_time(line.logged_at)} {line.level:<8} attempt {line.attempt} {line.logger}: {line.message}"
    return f"… {line.dropped} line(s) of attempt {line.attempt} were not kept\n{told}" if line.dropped else told


@jobs.command()
@click.argument("id", type=int)
@json_option
@reading_app_option
@database_options
def explain(id: int, as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """Why a job is not running, and what would change that."""
    with open_app(dsn, schema, app_path) as app:
        explanation = app.jobs.explain_sync(id)
    if as_json:
        print_json(explanation)
    else:
        click.echo(str(explanation))


@jobs.command()
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@change_options
@database_options
def retry(ids: tuple[int, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Have jobs tried now, and print the ids of those that will run.

    One that waits becomes due; of a dead or settled one a new job is made.
    """
    with open_app(dsn, schema) as app:

        def change(id: int) -> None:
            before = app.jobs.get_sync(id)
            job = app.jobs.retry_sync(id, by=by, dry_run=dry_run)
            if dry_run:
                say(f"{_would('retry', before)}" + ("" if job.id == id else ", as another job"))
                return
            click.echo(job.id)
            say(f"job {id} ({job.task}) is {job.state}" + ("" if job.id == id else f", as job {job.id}"))

        for_each(ids, change)


@jobs.command()
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@click.option("--reason", default="", help="Why, for whoever looks at the job later.")
@change_options
@database_options
def cancel(
    ids: tuple[int, ...], reason: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Have jobs never run, or stop running.

    One that runs is told to end, and is cancelled when it has.
    """
    with open_app(dsn, schema) as app:

        def change(id: int) -> None:
            before = app.jobs.get_sync(id)
            job = app.jobs.cancel_sync(id, reason, by=by, dry_run=dry_run)
            _tell_ended("cancel", before, job, dry_run)

        for_each(ids, change)


@jobs.command()
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@click.option("--reason", default="", help="Why, for whoever looks at the job later.")
@change_options
@database_options
def discard(
    ids: tuple[int, ...], reason: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Cancel jobs without waiting for those that run.

    From then on the body can change nothing. A dead one is put away as cancelled.
    """
    with open_app(dsn, schema) as app:

        def change(id: int) -> None:
            before = app.jobs.get_sync(id)
            job = app.jobs.discard_sync(id, reason, by=by, dry_run=dry_run)
            _tell_ended("discard", before, job, dry_run)

        for_each(ids, change)


def _tell_ended(verb: str, before: Job[Any], job: Job[Any], dry_run: bool) -> None:
    """Say what became of a job that someone wants to end. One that was cancelled before is as they want it; raises NotPossible
    for one that had ended otherwise."""
    name = f"job {job.id} ({job.task})"
    if before.state == "cancelled":
        say(f"{name} was cancelled already, at {short_time(job.finished_at)}: nothing is left to {verb}")
    elif job.state == "dead" and verb == "cancel":
        raise NotPossible(
            f"Job {job.id} ({job.task}) is dead: nothing is left to cancel. To put its letter away: rota jobs discard {job.id}, or "
            f"rota dead acknowledge {job.id}."
        )
    elif job.state not in ("cancelled", "running"):
        how = "is dead, and its letter is resolved" if job.state == "dead" else f"has {job.state}"
        raise NotPossible(f"Job {job.id} ({job.task}) {how}: nothing is left to {verb}.")
    elif dry_run:
        say(_would(verb, before))
    else:
        say(f"{name} is {job.state}" + (", and was told to end" if job.state == "running" else ""))


def _would(verb: str, job: Job[Any]) -> str:
    return f"would {verb} job {job.id} ({job.task}), which is {job.state}"


@jobs.command()
@click.option("--tag", required=True, help="Whose jobs.")
@change_options
@database_options
def erase(tag: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Delete all jobs with a tag, and all that is known of them.

    Live, dead and settled ones. It cannot be undone.
    """
    with open_app(dsn, schema) as app:
        erased = app.jobs.erase_sync(tag=tag, by=by, dry_run=dry_run)
    say(f"{'would erase' if dry_run else 'erased'}, for tag {tag!r}:")
    print_fields(asdict(erased))


@jobs.command()
@click.argument("task")
@click.argument("args", callback=json_object, default="{}")
@click.option("--queue", help="Into this queue. [default: the task's with --app, else default]")
@click.option("--priority", type=int, help="The higher runs first.")
@click.option("--delay", help="Due after this time, such as 90s or 1h30m.")
@click.option("--at", callback=lambda _, __, text: moment(text), help="Due at this time, such as 2030-01-31T09:00:00Z.")
@click.option("--tag", "tags", multiple=True, help="With this tag; may be given several times.")
@click.option("--unique", metavar="KEY", help="Only if no job of the task with this key is queued or running.")
@click.option("--key", help="What it is ordered and limited by.")
@app_option("Check the call against this app's task, and use its options.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be, or why it is refused.")
@database_options
def enqueue(
    task: str,
    args: dict[str, Any],
    queue: str | None,
    priority: int | None,
    delay: str | None,
    at: datetime | None,
    tags: tuple[str, ...],
    unique: str | None,
    key: str | None,
    app_path: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Enqueue a call of a task, and print the id of the job.

    TASK is the task's name, ARGS a JSON object of its arguments by name. Without --app, what is given is stored as it is, and
    nothing is checked until a worker runs it.
    """
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at cannot both be given.")
    options: JobOptions = {
        "queue": queue,
        "priority": priority,
        "delay": float(delay) if delay is not None and delay.isdecimal() else delay,
        "at": at,
        "tags": tags or None,
        "key": key,
    }
    if unique is not None:
        options["unique"] = unique
    with open_app(dsn, schema, app_path) as app:
        new = (
            _unchecked(task, args, unique, options)
            if app_path is None
            else _checked(app.tasks.find(task), args, options)
        )
        job = _rehearsed(app, new) if dry_run else app.enqueue_sync(new)
    if job.existing:
        added = "nothing would be added" if dry_run else "nothing was added"
        say(f"job {job.id}, which is {job.state}, has this unique key: {added}")
    elif dry_run:
        say(f"would enqueue {new.task} on queue {new.queue} with {json_text(masked(read_json(new.args), new.redact))}")
    if not dry_run:
        click.echo(job.id)
    if app_path is None:
        # on stderr, and no error: a task that only another program knows is enqueued this way
        say(_UNCHECKED + ("" if dry_run else f" Whether a worker takes it: rota jobs explain {job.id}"))


_UNCHECKED = "The call was not checked, and no options of its task count: name the app with --app for that."


def _rehearsed(app: Rota, new: NewJob) -> Job[Any]:
    """What enqueueing would return or raise, without its effect."""
    with app.database.transaction_sync() as connection, connection.transaction(force_rollback=True):
        return app.enqueue_sync(new, on=connection)


def _checked(task: Task[..., Any], args: dict[str, Any], options: JobOptions) -> NewJob:
    positional, named = task.signature.read(args)
    return task.using(**options).bind(*positional, **named)


def _unchecked(task: str, args: dict[str, Any], unique: str | None, options: JobOptions) -> NewJob:
    """The same as `select rota.enqueue(...)`."""
    queue, key = options["queue"], options["key"]
    delay, at = options["delay"], options["at"]
    return NewJob(
        task=check_name("a task name", task, 500),
        args=dumps(args),
        queue=check_name("queue", "default" if queue is None else queue, 200),
        priority=check_priority(options["priority"] or 0),
        delay=None if delay is None else check_delay(delay),
        at=None if at is None else check_at(at),
        tags=check_tags(options["tags"] or ()),
        key=None if key is None else check_name("key", key, 500),
        unique=None if unique is None else Unique(by=unique).under(unique),
    )
