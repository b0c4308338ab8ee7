"""Rota's drain beside the plain psycopg loop, several times in turn, on the embedded server or the one named.

make bench                        embedded server, thrown away afterwards
python bench/compare.py DSN
"""

from __future__ import annotations

import asyncio
import statistics
import sys

from reference import drain_rate

from rota.embedded import EmbeddedServer
from rota.runtime.measure import Figures, measure

JOBS = 20_000
ROUNDS = 5


BAR = 0.4  # the least share of the reference's rate that Rota must reach


def compare(dsn: str) -> None:
    figures: list[Figures] = []
    ratios: list[float] = []
    for round_ in range(ROUNDS):
        before = drain_rate(dsn, JOBS)
        figures.append(asyncio.run(measure(dsn, jobs=JOBS)))
        after = drain_rate(dsn, JOBS)
        ratios.append(2 * figures[-1].drain_rate / (before + after))
        rates = f"reference {before:,.0f} and {after:,.0f}/s, drain {figures[-1].drain_rate:,.0f}/s"
        print(f"round {round_ + 1}: {rates}, ratio {ratios[-1]:.2f}")
    print(f"ratio to the reference: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    for name in Figures.__dataclass_fields__:
        values = [getattr(figure, name) for figure in figures]
        print(f"{name:20} median {statistics.median(values):14,.4f}   from {min(values):,.4f} to {max(values):,.4f}")

    if statistics.median(ratios) < BAR:
        sys.exit(f"the median is below the bar of {BAR}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compare(sys.argv[1])
    else:
        # durable settings: a figure without fsync says little about a production server
        with EmbeddedServer(
            ephemeral=True, options={"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
        ) as server:
            compare(server.start())
