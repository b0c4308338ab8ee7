"""`rota schedules`: look at schedules, put them, and change what becomes of them."""

from __future__ import annotations

import click

from rota.cli.output import json_option, json_text, print_fields, print_json, print_table, say, say_more, short_time
from rota.cli.schedule_check import check, print_slots
from rota.cli.schedule_put import change, put
from rota.cli.schedule_timeline import timeline
from rota.cli.schedule_verbs import VERBS
from rota.cli.target import database_options, open_app, reading_app_option
from rota.schedules.view import STATES, Schedule

__all__ = ["schedules"]


@click.group()
def schedules() -> None:
    """Look at schedules, put, pause, trigger and backfill them."""


for each in (check, put, change, timeline, *VERBS):
    schedules.add_command(each)


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
