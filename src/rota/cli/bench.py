"""`rota bench`: throughput and latency on this database."""

from __future__ import annotations

import asyncio

import click

from rota.cli.output import print_json, print_table, say
from rota.runtime.measure import SCHEMA, measure

__all__ = ["bench"]


@click.command()
@click.option("--jobs", type=click.IntRange(min=100), default=20_000, show_default=True, help="Jobs to drain.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--dsn", help="Database address. [env: ROTA_DATABASE_URL, DATABASE_URL, PG*; default: embedded]")
def bench(jobs: int, as_json: bool, dsn: str | None) -> None:
    """Enqueue, drain and pick up no-op jobs with one process on default settings, in a schema that is removed afterwards."""
    say(f"measuring with {jobs} jobs in the schema {SCHEMA}; other load on this machine shows in every figure")
    figures = asyncio.run(measure(dsn, jobs=jobs))
    if as_json:
        print_json(figures)
        return
    print_table(
        ["what", "figure"],
        [
            ["enqueue one by one", f"{figures.enqueue_one_rate:,.0f} jobs/s"],
            [
                "enqueue many",
                f"{figures.enqueue_many_rate:,.0f} jobs/s, {figures.enqueue_wal_bytes:,.0f} B of WAL per job",
            ],
            ["drain no-op jobs", f"{figures.drain_rate:,.0f} jobs/s, {figures.drain_wal_bytes:,.0f} B of WAL per job"],
            ["statements while draining", f"{100 * figures.drain_statements:,.1f} per 100 jobs"],
            ["call to start, p50 / p99", f"{1000 * figures.pickup_p50:.1f} / {1000 * figures.pickup_p99:.1f} ms"],
        ],
        empty="",
    )
