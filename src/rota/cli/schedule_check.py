"""`rota schedules check`: what an expression means, and when it would come, without any database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import click

from rota.cli.changes import moment
from rota.cli.output import json_option, print_json, print_table
from rota.schedules.cron import Cron
from rota.schedules.every import Every
from rota.schedules.exclude import Exclude
from rota.schedules.jumps import upsets
from rota.schedules.timing import Timing
from rota.schedules.zones import zone_of

__all__ = ["check", "exclude_option", "gap_option", "overlap_option", "pace", "print_slots"]

# a year and a month: the jumps of each zone that has some, in both directions
_AHEAD = timedelta(days=395)


def _excluded(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, Any] | None:
    try:
        read = None if value is None else json.loads(value)
    except ValueError as error:
        raise click.BadParameter(
            f'{value!r} is no JSON ({error}). Write it such as \'{{"weekdays": ["sat", "sun"]}}\'.'
        ) from error
    if value is not None:
        Exclude.from_json(read)  # which tells what is wrong with it
    return read


exclude_option = click.option(
    "--exclude",
    metavar="JSON",
    callback=_excluded,
    help="What is left out: an object with some of weekdays, dates, ranges and windows.",
)
gap_option = click.option(
    "--dst-gap",
    type=click.Choice(["run", "skip"]),
    help="A time that does not exist when clocks go forward: it runs right after, or not. [default: run]",
)
overlap_option = click.option(
    "--dst-overlap",
    type=click.Choice(["once", "twice"]),
    help="A time that comes twice when clocks go back: it runs at the first, or at both. [default: once]",
)


def pace(text: str) -> str | float:
    """An interval as it is typed: a bare number is seconds."""
    return float(text) if text.isdecimal() else text


@click.command()
@click.argument("cron", required=False)
@click.option("--every", help="A pace such as 30s, '1h 30m' or '1 month', in place of an expression.")
@click.option("--tz", default="UTC", show_default=True, help="The time zone, such as Europe/Berlin.")
@click.option("--name", default="", help="The schedule's name, which chooses what H stands for.")
@gap_option
@overlap_option
@exclude_option
@click.option("--from", "begin", metavar="TIME", help="As from this time. [default: now, by this machine's clock]")
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="So many slots.")
@json_option
def check(
    cron: str | None,
    every: str | None,
    tz: str,
    name: str,
    dst_gap: Literal["run", "skip"] | None,
    dst_overlap: Literal["once", "twice"] | None,
    exclude: dict[str, Any] | None,
    begin: str | None,
    count: int,
    as_json: bool,
) -> None:
    """Explain a cron expression, or a pace, without any database.

    In words, by its next slots, and by what the clock changes of the next 13 months do to it. One that is wrong ends with 2, and
    with the field and the reason.
    """
    if (cron is None) == (every is None):
        raise click.UsageError("Give a cron expression, as one argument in quotes, or --every: one of them.")
    if every is not None and (dst_gap or dst_overlap):
        raise click.UsageError("--dst-gap and --dst-overlap are for cron expressions: a pace has no choice there.")
    zone = zone_of(tz)
    after = moment(begin, zone) or datetime.now(UTC)
    trigger = (
        Cron(cron, tz, name, dst_gap or "run", dst_overlap or "once")
        if cron is not None
        else Every(pace(every or ""), after.replace(microsecond=0), tz)
    )
    timing = Timing(trigger, Exclude.from_json(exclude), tz)
    slots = timing.preview(after, count)
    warnings = upsets(timing, after, after + _AHEAD)
    if as_json:
        print_json({"when": timing.explain(), "tz": tz, "slots": slots, "warnings": warnings})
        return
    click.echo(f"{timing.explain()}\n")
    print_slots(slots, tz)
    if warnings:
        click.echo("\nWhen the clocks change:")
    for each in warnings:
        click.echo(f"- {each.words}")


def print_slots(slots: Sequence[datetime], tz: str) -> None:
    """Each slot as the clocks of the zone show it, and in UTC."""
    zone = zone_of(tz)
    print_table(
        [tz, "UTC"] if tz != "UTC" else ["UTC"],
        [
            [_written(at.astimezone(zone), "%a %Y-%m-%d %H:%M:%S", " %Z"), _written(at, "%Y-%m-%d %H:%M:%S")][
                : 1 + (tz != "UTC")
            ]
            for at in slots
        ],
        empty="no slot is to come",
    )


def _written(at: datetime, moment: str, then: str = "") -> str:
    part = f".{at.microsecond // 1000:03}" if at.microsecond else ""
    return f"{at:{moment}}{part}{at:{then}}" if then else f"{at:{moment}}{part}"
