"""`rota dead`: dead letters, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each, json_object
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
from rota.jobs.groups import MOST
from rota.jobs.letters import REASONS, Letter, LetterFilters

__all__ = ["dead"]

F = TypeVar("F", bound=Callable[..., Any])

_SAMPLES = 5


@click.group()
def dead() -> None:
    """Look at dead letters, retry and acknowledge them."""


def filter_options(command: F) -> F:
    """The filters: letters that fit all of them."""
    for option in (
        click.option("--error", metavar="TEXT", help="In the type or the message of the last error."),
        click.option("--reason", type=click.Choice(REASONS), help="They failed, or were lost with their processes."),
        click.option("--tag", help="With this tag."),
        click.option("--task", help="Of the task of this name."),
        click.option("--queue", help="From this queue."),
    ):
        command = option(command)
    return command


@dead.command("list")
@filter_options
@click.option("--resolved", is_flag=True, help="Those that are resolved, instead of those that are open.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=int, help="Continue after this id: the last of the page before.")
@json_option
@reading_app_option
@database_options
def list_(
    queue: str | None,
    task: str | None,
    tag: str | None,
    reason: str | None,
    error: str | None,
    resolved: bool,
    limit: int,
    after: int | None,
    as_json: bool,
    app_path: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Dead letters that fit all filters, the newest first."""
    filters: LetterFilters = {"queue": queue, "task": task, "tag": tag, "reason": reason, "error": error}
    with open_app(dsn, schema, app_path) as app:
        found = app.dead.list_sync(resolved=resolved, limit=limit, after=after, **filters)
    if as_json:
        print_json(found)
    else:
        _print_letters(found)
        say_more(found, limit)


@dead.command()
@click.option("--queue", help="Of letters from this queue.")
@click.option("--task", help="Of letters of the task of this name.")
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=MOST, show_default=True, help="Look at so many letters."
)
@json_option
@database_options
def groups(queue: str | None, task: str | None, most: int, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """Open letters by what they died of, the largest group first.

    Try a few of a group with `rota dead retry --group ID --canary 10`, see here how they fare, then retry the rest.
    """
    with open_app(dsn, schema) as app:
        told = app.dead.groups_sync(queue=queue, task=task, most=most)
    if as_json:
        print_json(told)
        return
    print_table(
        ["group", "letters", "first", "last", "tasks", "error", "in", "retried"],
        [
            [
                group.id,
                group.letters,
                short_time(group.first_at),
                short_time(group.last_at),
                ", ".join(group.tasks),
                f"{group.error_type}: {group.message}"[:80].rstrip(": "),
                group.frame,
                ", ".join(f"{jobs} {state}" for state, jobs in group.retried.items()),
            ]
            for group in told.groups
        ],
        empty="no letters are open",
    )
    if not told.exact:
        say(f"only the newest {told.letters} letters were looked at: --most")


def _print_letters(letters: Iterable[Letter]) -> None:
    print_table(
        ["id", "task", "queue", "attempt", "reason", "died", "error", "resolution"],
        [
            [
                each.id,
                each.task,
                each.queue,
                each.attempt,
                each.reason,
                short_time(each.died_at),
                _error(each)[:80],
                f"{each.resolution} by {each.resolved_by}" if each.resolution else "",
            ]
            for each in letters
        ],
        empty="no letters fit",
    )


def _error(letter: Letter) -> str:
    """The last error on one line."""
    return " ".join(f"{letter.error_type or ''}: {letter.error_message or ''}".strip(": ").split())


@dead.command()
@click.argument("id", type=int)
@json_option
@reading_app_option
@database_options
def show(id: int, as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """One letter with its arguments and its last error.

    And how it was resolved, if it was.
    """
    with open_app(dsn, schema, app_path) as app:
        letter = app.dead.get_sync(id)
    if as_json:
        print_json(letter)
        return
    print_fields(
        {
            "id": letter.id,
            "task": letter.task,
            "version": letter.version,
            "queue": letter.queue,
            "reason": letter.reason,
            "attempt": letter.attempt,
            "losses": letter.losses or None,
            "created": short_time(letter.created_at),
            "died": short_time(letter.died_at),
            "key": letter.key,
            "tags": ", ".join(letter.tags),
            "repeats": letter.origin,
            "resolution": f"{letter.resolution} by {letter.resolved_by}" if letter.resolution else None,
            "resolved": short_time(letter.resolved_at),
            "note": letter.note,
            "successor": letter.successor,
            "arguments": json_text(letter.args),
            "error": _error(letter),
        }
    )
    if letter.error_trace:
        click.echo(f"\n{letter.error_trace.rstrip()}")


@dead.command()
@click.argument("ids", type=int, nargs=-1, metavar="[ID...]")
@click.option("--args", callback=json_object, help="Arguments to replace, of one letter; the others stay.")
@app_option("Check the arguments against this app's task, with its codec.")
@click.option("--group", metavar="ID", help="All open letters of this group, as `rota dead groups` has it.")
@click.option("--canary", type=click.IntRange(1), metavar="N", help="Of so many letters of the group only.")
@click.option("--all", "everything", is_flag=True, help="All open letters that fit the filters, if there are any.")
@filter_options
@change_options
@database_options
def retry(
    ids: tuple[int, ...],
    args: dict[str, Any] | None,
    app_path: str | None,
    group: str | None,
    canary: int | None,
    everything: bool,
    queue: str | None,
    task: str | None,
    tag: str | None,
    reason: str | None,
    error: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Make new jobs of dead letters.

    Of those named, of a group, or of all that fit the filters. Of letters that are named or in a group, the ids of the new jobs are
    printed.
    """
    filters: LetterFilters = {"queue": queue, "task": task, "tag": tag, "reason": reason, "error": error}
    if canary is not None and group is None:
        raise click.UsageError("--canary is for a --group: a few of its letters, before the rest.")
    if group is not None:
        _check_group(ids, everything, filters, args)
        with open_app(dsn, schema, app_path) as app:
            jobs = app.dead.retry_group_sync(group, canary=canary, by=by, dry_run=dry_run)
        if not dry_run:
            for job in jobs:
                click.echo(job)
        say(f"{'would retry' if dry_run else 'retried'} {len(jobs)} letter(s) of group {group}")
        return
    _check_choice(ids, everything, filters)
    if args is not None and len(ids) != 1:
        raise click.UsageError("--args is for one letter: name it.")
    with open_app(dsn, schema, app_path) as app:
        if not ids:
            count = app.dead.retry_many_sync(by=by, dry_run=dry_run, **filters)
            _say_how_many("retry" if dry_run else "retried", count, app, dry_run, filters)
            fitting = app.dead.acknowledge_many_sync(dry_run=True, **filters) - (count if dry_run else 0)
            if fitting > 0:
                say(
                    f"{fitting} that fit stay open: a live job has their unique key, or another letter with it comes first"
                )
            return

        def change(id: int) -> None:
            job = app.dead.retry_sync(id, args, by=by, dry_run=dry_run)
            if dry_run:
                say(f"would retry letter {id} ({job.task})")
                return
            click.echo(job.id)
            say(f"letter {id} ({job.task}) is tried again as job {job.id}")

        for_each(ids, change)


@dead.command()
@click.argument("ids", type=int, nargs=-1, metavar="[ID...]")
@click.option("--note", default="", help="Why nothing more is to be done.")
@click.option("--group", metavar="ID", help="All open letters of this group, as `rota dead groups` has it.")
@click.option("--all", "everything", is_flag=True, help="All open letters that fit the filters, if there are any.")
@filter_options
@change_options
@database_options
def acknowledge(
    ids: tuple[int, ...],
    note: str,
    group: str | None,
    everything: bool,
    queue: str | None,
    task: str | None,
    tag: str | None,
    reason: str | None,
    error: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Put dead letters away without another try.

    Those named, those of a group, or all that fit the filters.
    """
    filters: LetterFilters = {"queue": queue, "task": task, "tag": tag, "reason": reason, "error": error}
    if group is not None:
        _check_group(ids, everything, filters)
        with open_app(dsn, schema) as app:
            count = app.dead.acknowledge_group_sync(group, note, by=by, dry_run=dry_run)
        say(f"{'would acknowledge' if dry_run else 'acknowledged'} {count} letter(s) of group {group}")
        return
    _check_choice(ids, everything, filters)
    with open_app(dsn, schema) as app:
        if not ids:
            count = app.dead.acknowledge_many_sync(note, by=by, dry_run=dry_run, **filters)
            _say_how_many("acknowledge" if dry_run else "acknowledged", count, app, dry_run, filters)
            return

        def change(id: int) -> None:
            letter = app.dead.acknowledge_sync(id, note, by=by, dry_run=dry_run)
            said = f"letter {id} ({letter.task})"
            say(f"would acknowledge {said}" if dry_run else f"{said} is acknowledged")

        for_each(ids, change)


def _check_group(ids: tuple[int, ...], everything: bool, filters: LetterFilters, args: Any = None) -> None:
    if ids or everything or args is not None or any(value is not None for value in filters.values()):
        raise click.UsageError("--group names the letters: neither ids, filters, --all nor --args go with it.")


def _check_choice(ids: tuple[int, ...], everything: bool, filters: LetterFilters) -> None:
    chosen = any(value is not None for value in filters.values())
    if ids and (everything or chosen):
        raise click.UsageError("Name letters, or choose them by filters: not both.")
    if not ids and not everything and not chosen:
        raise click.UsageError("Name letters, choose them by filters, or say --all.")


def _say_how_many(verb: str, count: int, app: Rota, dry_run: bool, filters: LetterFilters) -> None:
    if not dry_run or not count:
        say(f"{'would ' if dry_run else ''}{verb} {count} letter(s)")
        return
    say(f"would {verb} {count} letter(s), such as:")
    _print_letters(app.dead.list_sync(limit=_SAMPLES, **filters))
