"""`rota schedules timeline`: what became of the last runs, and what is to come."""

from __future__ import annotations

from collections import Counter

import click

from rota.cli.output import json_option, print_json, print_table, say, short_time
from rota.cli.target import database_options, open_app

__all__ = ["timeline"]


@click.command()
@click.option(
    "--back", default="6h", show_default=True, metavar="DURATION", help="What became of runs since so long ago."
)
@click.option("--ahead", default="24h", show_default=True, metavar="DURATION", help="What is to come in so long.")
@click.option("--most", type=click.IntRange(1, 500), default=20, show_default=True, help="Of so many schedules.")
@json_option
@database_options
def timeline(back: str, ahead: str, most: int, as_json: bool, dsn: str | None, schema: str | None) -> None:
    """What became of the last runs, and what is to come.

    Of the schedules that are due next; with the next ten runs of all, and when most runs begin at once.
    """
    with open_app(dsn, schema) as app:
        told = app.schedules.timeline_sync(back, ahead, most=most)
    if as_json:
        print_json(told)
        return
    print_table(
        ["schedule", "past", "to come", "next", "clock"],
        [
            [
                lane.name,
                ", ".join(f"{runs} {state}" for state, runs in Counter(run.state for run in lane.past).items()),
                f"{len(lane.future)} or more" if lane.cut else len(lane.future),
                short_time(lane.future[0]) if lane.future else lane.problem,
                "; ".join(upset.words for upset in lane.upsets),
            ]
            for lane in told.lanes
        ],
        empty="nothing is to come by itself",
    )
    for each in told.next:
        click.echo(f"{short_time(each.at)}  {each.name}")
    if any(told.load):
        busiest = max(range(len(told.load)), key=told.load.__getitem__)
        at = told.now + busiest * (told.until - told.now) / len(told.load)
        some = "" if told.counted == told.schedules else f", of {told.counted} of {told.schedules} schedules"
        say(f"most runs begin within 15 minutes of {short_time(at)}: {told.load[busiest]:.0f}{some}")
