"""`rota leaders lanes`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
from tests.leases.test_lanes import PUT

from rota.testing import TestRota

Run = Callable[..., Any]


def test_lanes_are_shown_with_what_nobody_led(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(PUT)

    shown = rota("leaders", "lanes", "--dsn", dsn)
    (lane,) = json.loads(rota("leaders", "lanes", "--back", "5h", "--json", "--dsn", dsn).out)

    assert [
        word for line in shown.out.splitlines() for word in line.split() if word in ("h1", "h2", "h3", "h4", "nobody")
    ] == [
        *("h1", "nobody", "h2", "h3", "nobody", "h4"),
    ]
    assert [term["epoch"] for term in lane["terms"]] == [3, 4]
