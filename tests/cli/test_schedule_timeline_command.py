"""`rota schedules timeline`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rota.testing import TestRota

Run = Callable[..., Any]


def test_the_command_draws_it_in_words(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    rota_app.task(name="t")(lambda: None)
    rota_app.schedules.put_sync("hourly", task="t", every="1h")

    shown = rota("schedules", "timeline", "--dsn", dsn)
    as_json = json.loads(rota("schedules", "timeline", "--ahead", "2h", "--json", "--dsn", dsn).out)

    assert "hourly" in shown.out.splitlines()[1]
    assert "most runs begin within 15 minutes of" in shown.err
    assert len(as_json["load"]) == 8
    assert [lane["name"] for lane in as_json["lanes"]] == ["hourly"]
