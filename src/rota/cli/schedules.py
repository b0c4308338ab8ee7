"""`rota schedules`: look at schedules, put them, and change what becomes of them."""

from __future__ import annotations

from typing import Any

import click

from rota.cli.changes import change_options, for_each, json_object, moment
from rota.cli.output import json_option, json_text, print_fields, print_json, print_table, say, say_more, short_time
from rota.cli.schedule_check import check, pace, print_slots
from rota.cli.schedule_put import change, put
from rota.cli.target import app_option, database_options, open_app, reading_app_option
from rota.errors import NotPossible
from rota.schedules.view import STATES, Schedule
from rota.schedules.zones import zone_of

__all__ = ["schedules"]


@click.group()
def schedules() -> None:
    """Look at schedules, put, pause, trigger and backfill them."""


schedules.add_command(check)
schedules.add_command(put)
schedules.add_command(change)


@schedules.command("list")
@click.option("--prefix", help="Whose names begin with this.")
@click.option("--state", type=click.Choice(STATES), help="In this state.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="NAME", help="Continue after this name: the last of the page before.")
@json_option
@reading_app_option
@database_options
def list_(
    prefix: str | None,
    state: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
    app_path: str | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Schedules that fit, by name: when they run, what came of it, and why one is idle."""
    with open_app(dsn, schema, app_path) as app:
        found = app.schedules.list_sync(prefix=prefix, state=state, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["name", "when", "next", "last", "state", "why"],
        [[s.name, s.when, short_time(s.next_at), _last(s), s.state, "; ".join(_remarks(s))] for s in found],
        empty="no schedules fit",
    )
    if len(found) == limit:
        say(f"there may be more: --after {found[-1].name}")


def _last(schedule: Schedule) -> str:
    """What became of its last run that anything is known of."""
    if schedule.live:
        return "under way"
    succeeded, failed = schedule.succeeded_at, schedule.failed_at
    if failed is not None and (succeeded is None or failed > succeeded):
        again = f" ({schedule.failures} in a row)" if schedule.failures > 1 else ""
        return f"failed {short_time(failed)}{again}"
    return f"succeeded {short_time(succeeded)}" if succeeded is not None else ""


def _remarks(schedule: Schedule) -> list[str]:
    """Why it does not run, and what would keep its runs from being taken."""
    remarks = [schedule.why_idle] if schedule.why_idle else []
    if not schedule.known:
        remarks.append(f"no running worker knows its task {schedule.task!r}")
    elif schedule.declared is False:
        remarks.append("no running process declares it any more")
    return remarks


@schedules.command()
@click.argument("name")
@json_option
@reading_app_option
@database_options
def show(name: str, as_json: bool, app_path: str | None, dsn: str | None, schema: str | None) -> None:
    """One schedule with its arguments and its rules, and how far it has come."""
    with open_app(dsn, schema, app_path) as app:
        schedule = app.schedules.get_sync(name)
    if as_json:
        print_json(schedule)
    else:
        _print_schedule(schedule)


def _print_schedule(schedule: Schedule) -> None:
    timed = schedule.kind in ("cron", "every", "once")
    rules = {
        "start": short_time(schedule.start_at),
        "end": short_time(schedule.end_at),
        "max runs": schedule.max_runs,
        "jitter": schedule.jitter or None,
        "exclude": json_text(schedule.exclude),
        "misfire": f"{schedule.misfire}, grace {schedule.misfire_grace}, at most {schedule.misfire_limit}"
        if timed
        else None,
        "overlap": schedule.overlap,
        "clocks": f"gap {schedule.dst_gap}, overlap {schedule.dst_overlap}" if schedule.kind == "cron" else None,
    }
    print_fields(
        {
            "name": schedule.name,
            "task": schedule.task,
            "version": schedule.version,
            "when": schedule.when,
            "state": schedule.state,
            "why": "; ".join(_remarks(schedule)),
            "next": short_time(schedule.next_at),
            "last slot": short_time(schedule.last_slot),
            "last": _last(schedule),
            "last job": schedule.last_job,
            "runs": schedule.runs,
            "live": schedule.live or None,
            "waiting": schedule.waiting or None,
            "skipped": schedule.skipped or None,
            "missed": schedule.missed or None,
            **rules,
            "queue": schedule.queue,
            "priority": schedule.priority,
            "key": schedule.key,
            "tags": ", ".join(schedule.tags),
            "arguments": json_text(schedule.args),
            "note": schedule.note,
            "owner": schedule.owner,
            "revision": schedule.revision,
            "updated": short_time(schedule.updated_at),
        }
    )


@schedules.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=int, help="Continue after this id: the last of the page before.")
@json_option
@database_options
def history(name: str, limit: int, after: int | None, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """The runs of a schedule with what became of them, the newest first."""
    with open_app(dsn, schema) as app:
        found = app.schedules.history_sync(name, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "slot", "cause", "state", "job", "attempt", "started", "finished", "error"],
        [
            [
                run.id,
                short_time(run.slot_at),
                run.cause,
                run.state,
                run.job,
                run.attempt,
                short_time(run.started_at),
                short_time(run.finished_at),
                " ".join((run.error or "").split())[:80],
            ]
            for run in found
        ],
        empty=f"no runs of {name} are on record",
    )
    say_more(found, limit)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def pause(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
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

        for_each(names, change)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def resume(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
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

        for_each(names, change)


@schedules.command()
@click.argument("name")
@click.argument("args", callback=json_object, required=False)
@click.option("--delay", help="Due after this time, such as 90s or 1h30m.")
@click.option("--at", callback=lambda _, __, text: moment(text), help="Due at this time, such as 2030-01-31T09:00:00Z.")
@app_option("Check the arguments against this app's task, with its codec.")
@change_options
@database_options
def trigger(
    name: str,
    args: dict[str, Any] | None,
    delay: str | None,
    at: Any,
    app_path: str | None,
    by: str | None,
    dry_run: bool,
    dsn: str | None,
    schema: str | None,
) -> None:
    """Run a schedule by hand, whatever its rules say, and print the id of the job.

    ARGS is a JSON object of arguments that go over the schedule's. A run that was asked for before and has not begun is not
    doubled.
    """
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at cannot both be given.")
    wait = None if delay is None else pace(delay)
    with open_app(dsn, schema, app_path) as app:
        job = app.schedules.trigger_sync(name, args, at=at, delay=wait, by=by, dry_run=dry_run)
    if job.existing:
        say(f"job {job.id}, which has not begun, does this already: nothing {'would be' if dry_run else 'was'} added")
    elif dry_run:
        say(f"would run {job.task} for schedule {name}, due {short_time(job.due_at)}")
    if not dry_run:
        click.echo(job.id)


@schedules.command()
@click.argument("name")
@change_options
@database_options
def skip(name: str, by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
    """Leave out the next slot of a schedule, and no other."""
    with open_app(dsn, schema) as app:
        slot = app.schedules.skip_sync(name, by=by, dry_run=dry_run)
    say(f"{'would leave out' if dry_run else 'left out'} the slot at {short_time(slot)} of schedule {name}")


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@database_options
def delete(names: tuple[str, ...], by: str | None, dry_run: bool, dsn: str | None, schema: str | None) -> None:
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

        for_each(names, change)


@schedules.command()
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="So many slots.")
@json_option
@database_options
def preview(name: str, count: int, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """The next slots of a schedule, in its time zone and in UTC, without jitter."""
    with open_app(dsn, schema) as app:
        slots = app.schedules.preview_sync(name, count)
        schedule = app.schedules.get_sync(name)
    if as_json:
        print_json(slots)
        return
    print_slots(slots, schedule.tz)
    if schedule.why_idle:
        say(f"it is {schedule.state}: {schedule.why_idle}")


@schedules.command()
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

    Times without an offset are those of the schedule's time zone. Slots that are still to come are not among them.
    """
    with open_app(dsn, schema) as app:
        zone = zone_of(app.schedules.get_sync(name).tz)
        begin, until = moment(start, zone), moment(end, zone)
        assert begin is not None
        assert until is not None
        count = app.schedules.backfill_sync(name, begin, until, limit=limit, by=by, dry_run=dry_run)
    say(f"{'would run' if dry_run else 'to run'}: {count} slot(s) of schedule {name}")
