"""Rota beside the raw limit of PostgreSQL, PgQueuer and Graphile Worker, in one run: the table of what it must show.

make bench                           everything; half an hour and more
python bench/speed.py 1 2 9          some items
python bench/speed.py --short        with less work: about a minute for each
python bench/speed.py --postgres 15  on another PostgreSQL of this machine than the embedded one
python bench/speed.py --python P     with this Python as well (again for more); by default that of the project's environment

A figure is a share of what is measured right beside it, in turn and several times: never compare it with another day's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path

from field import Field, Peer, graphile, pgqueuer, rota
from speed_items import cost, drain, enqueue, flat, pickup, pinned, process
from speed_items.table import Row, Run, available, table

ITEMS = {
    number: item
    for room in (drain, enqueue, pickup, cost, flat, pinned, process)
    for number, item in room.ITEMS.items()
}
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", type=int, metavar="ITEM", help=", ".join(map(str, ITEMS)))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turn")
    parser.add_argument("--postgres", type=int, metavar="MAJOR")
    parser.add_argument("--python", action="append", metavar="PATH")
    parser.add_argument("--concurrency", type=int, help="of Rota's workers; its own default if not given")
    parser.add_argument("--without", action="append", default=[], choices=["pgqueuer", "graphile"])
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every figure there, as JSON")
    given = parser.parse_args()
    if unknown := set(given.items) - set(ITEMS):
        parser.error(f"there are no items {unknown}; there are {', '.join(map(str, ITEMS))}")

    peers = {"graphile": graphile(), "pgqueuer": pgqueuer()}
    rows: list[Row] = []
    with Field.opened(given.postgres) as field:
        there, missing = available(field, {name: peer for name, peer in peers.items() if name not in given.without})
        missing |= dict.fromkeys(given.without, "left out as asked")
        for name, reason in missing.items():
            print(f"!! {name} is NOT COMPARED WITH: {reason}", flush=True)
        run = Run(field, given.short, given.rounds, rotas(given.python, given.concurrency), there, missing)
        pythons = " and ".join(run.rotas)
        print(f"PostgreSQL {field.version()}; Rota on Python {pythons}; {given.rounds} rounds", flush=True)
        for item in given.items or sorted(ITEMS):
            began = time.monotonic()
            print(f"== {item}", flush=True)
            try:
                rows += ITEMS[item](run)
            except Exception as error:  # the other items are worth having all the same
                traceback.print_exc()
                rows.append(Row(item, "could not be measured", None, None, note=repr(error)[:100]))
            run.say(f"({time.monotonic() - began:.0f} s)")
            if given.out is not None:
                given.out.write_text(json.dumps(run.figures, indent=1))
    print()
    print(table(rows))
    for name, reason in missing.items():
        print(f"!! {name} is NOT COMPARED WITH: {reason}")


def rotas(pythons: list[str] | None, concurrency: int | None) -> dict[str, Peer]:
    """Rota on this Python and on others, the newest first."""
    others = pythons if pythons is not None else [str(Path(__file__).parent.parent / ".venv" / "bin" / "python")]
    found = {}
    for python in [sys.executable, *filter(Path.exists, map(Path, others))]:
        version = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=True).stdout.strip()
        found.setdefault(version, rota(str(python), **({} if concurrency is None else {"concurrency": concurrency})))
    return dict(sorted(found.items(), key=lambda each: tuple(map(int, each[0].split("."))), reverse=True))


if __name__ == "__main__":
    main()
