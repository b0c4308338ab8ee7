"""`rota schedules pause`, `resume`, `trigger` and what else is done to schedules, by name or to all that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rota.app import Rota
from rota.cli.changes import change_options, for_each, json_object, moment
from rota.cli.output import say, short_time
from rota.cli.schedule_check import pace
from rota.cli.target import app_option, database_options, open_app
from rota.errors import NotPossible
from rota.schedules.view import STATES
from rota.schedules.zones import zone_of

__all__ = ["VERBS"]

F = TypeVar("F", bound=Callable[..., Any])
_PAGE = 1000


def _filters(command: F) -> F:
    """`--prefix`, `--tag` and `--state`: in place of names, all that fit."""
    for option in (
        click.option("--state", type=click.Choice(STATES), help="All in this state."),
        click.option("--tag", help="All with this tag."),
        click.option("--prefix", help="All whose names begin with this."),
    ):
        command = option(command)
    return command


def _chosen(app: Rota, names: Sequence[str], prefix: str | None, tag: str | None, state: str | None) -> Sequence[str]:
    """The names given, or of those that fit: all of them, before the first is changed."""
    filters = [each for each in (prefix, tag, state) if each is not None]
    if bool(names) == bool(filters):
        raise click.UsageError("Give names, or --prefix, --tag or --state for all that fit: one of the two.")
    if prefix == "":
        raise click.UsageError("--prefix is empty, and every name begins with that: say which schedules are meant.")
    if names:
        return names
    chosen: list[str] = []
    after: str | None = None
    while True:
        page = app.schedules.list_sync(prefix=prefix, state=state, limit=_PAGE, after=after)
        chosen += [each.name for each in page if tag is None or tag in each.tags]
        if len(page) < _PAGE:
            break
        after = page[-1].name
    if not chosen:
        say("no schedules fit: nothing is changed")
    return chosen


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_filters
@change_options
@database_options
def pause(
    names: tuple[str, ...],
    prefix: str | None,
    tag: str | None,
    state: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Give out no more runs of schedules, until they are resumed.

    What is queued or running goes on.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            before = app.schedules.get_sync(name)
            if before.paused_at is not None:
                say(f"nothing to do: schedule {name} is {before.why_idle}")
                return
            app.schedules.pause_sync(name, by=by, dry_run=dry_run)
            say(f"would pause schedule {name}, which is {before.state}" if dry_run else f"schedule {name} is paused")

        for_each(_chosen(app, names, prefix, tag, state), change)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_filters
@change_options
@database_options
def resume(
    names: tuple[str, ...],
    prefix: str | None,
    tag: str | None,
    state: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """End the pause of schedules, or try those anew that are broken.

    What they missed meanwhile is not made up for: see backfill.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            before = app.schedules.get_sync(name)
            if before.paused_at is None and before.problem is None:
                say(f"schedule {name} is not paused: it is {before.state}")
                return
            schedule = app.schedules.resume_sync(name, by=by, dry_run=dry_run)
            if schedule.problem is not None:
                raise NotPossible(
                    f"Schedule {name!r} {'would be' if dry_run else 'is'} broken still: {schedule.problem}"
                )
            then = f", next at {short_time(schedule.next_at)}" if schedule.next_at else ""
            say(f"would resume schedule {name}{then}" if dry_run else f"schedule {name} is {schedule.state}{then}")

        for_each(_chosen(app, names, prefix, tag, state), change)


@click.command()
@click.argument("name", required=False)
@click.argument("args", required=False)
@click.option("--delay", help="Due after this time, such as 90s or 1h30m.")
@click.option("--at", callback=lambda _, __, text: moment(text), help="Due at this time, such as 2030-01-31T09:00:00Z.")
@_filters
@app_option("Check the arguments against this app's task, with its codec.")
@change_options
@database_options
@click.pass_context
def trigger(
    ctx: click.Context,
    name: str | None,
    args: str | None,
    delay: str | None,
    at: Any,
    prefix: str | None,
    tag: str | None,
    state: str | None,
    app_path: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run schedules by hand, whatever their rules say, and print the ids of the jobs.

    ARGS is a JSON object of arguments that go over the schedule's; with --prefix, --tag or --state, which stand for NAME, it is
    the only argument. A run that was asked for before, for at once or for the same --at, and has not begun is not doubled; each
    --delay is another moment, and so another run.
    """
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at cannot both be given.")
    if args is None and (prefix, tag, state) != (None, None, None):
        name, args = None, name
    over = json_object(ctx, ctx.command.params[1], args)
    wait = None if delay is None else pace(delay)
    with open_app(dsn, schema, app_path) as app:

        def change(name: str) -> None:
            job = app.schedules.trigger_sync(name, over, at=at, delay=wait, by=by, dry_run=dry_run)
            if job.existing:
                added = "would be" if dry_run else "was"
                say(f"job {job.id}, which has not begun, does this already: nothing {added} added")
            elif dry_run:
                say(f"would run {job.task} for schedule {name}, due {short_time(job.due_at)}")
            if not dry_run:
                click.echo(job.id)

        for_each(_chosen(app, () if name is None else (name,), prefix, tag, state), change)


@click.command()
@click.argument("name")
@change_options
@database_options
def skip(name: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Leave out the next slot of a schedule, and no other."""
    with open_app(dsn, schema) as app:
        slot = app.schedules.skip_sync(name, by=by, dry_run=dry_run)
    say(f"{'would leave out' if dry_run else 'left out'} the slot at {short_time(slot)} of schedule {name}")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_filters
@change_options
@database_options
def delete(
    names: tuple[str, ...],
    prefix: str | None,
    tag: str | None,
    state: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Delete schedules, and what waits of them.

    Jobs that are queued or running go on, and runs stay on record. One that code declares comes back with the next process that
    declares it.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            declared = app.schedules.get_sync(name).declared
            children = app.schedules.delete_sync(name, by=by, dry_run=dry_run)
            say(f"would delete schedule {name}" if dry_run else f"schedule {name} is deleted")
            if children:
                told = ", ".join(children[:10]) + (f" and {len(children) - 10} more" if len(children) > 10 else "")
                say(f"those that follow it are idle until it is back, or they are put anew: {told}")
            if declared:
                say("a running process declares it: it comes back when one starts; to stop it, pause it")

        for_each(_chosen(app, names, prefix, tag, state), change)


@click.command()
@click.argument("name")
@click.argument("start")
@click.argument("end")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="More are refused.")
@change_options
@database_options
def backfill(
    name: str, start: str, end: str, limit: int, by: str | None, dry_run: bool, dsn: str | None, schema: str | None
) -> None:
    """Run the slots from START to before END that have not run.

    Times without an offset are those of the schedule's time zone. Slots that are still to come are not among them. What has not
    begun can be taken back: see clear.
    """
    with open_app(dsn, schema) as app:
        schedule = app.schedules.get_sync(name)
        zone = zone_of(schedule.tz)
        begin, until = moment(start, zone), moment(end, zone)
        assert begin is not None
        assert until is not None
        count = app.schedules.backfill_sync(name, begin, until, limit=limit, by=by, dry_run=dry_run)
    say(f"{'would run' if dry_run else 'to run'}: {count} slot(s) of schedule {name}")
    if count and schedule.paused_at is not None:
        say("it is paused: they wait until it is resumed")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def clear(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Forget the runs of schedules that wait: for another to end, or for the end of a pause.

    It takes back a backfill as far as it has not begun. Jobs that are queued or running go on: see rota jobs cancel.
    """
    with open_app(dsn, schema) as app:

        def change(name: str) -> None:
            count = app.schedules.clear_sync(name, by=by, dry_run=dry_run)
            say(f"{'would clear' if dry_run else 'cleared'}: {count} waiting run(s) of schedule {name}")

        for_each(names, change)


VERBS = (pause, resume, trigger, skip, backfill, clear, delete)
