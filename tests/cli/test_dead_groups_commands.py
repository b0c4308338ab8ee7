"""`rota dead groups`, and what is done to a group."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rota.testing import TestRota

Run = Callable[..., Any]


def test_a_group_is_shown_tried_with_a_canary_and_put_away(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    send = rota_app.task(name="send", retry=None)(lambda to: {}[to])
    for name in ("ana", "bo", "cy"):
        send.enqueue_sync(name)
    rota_app.drain_sync()

    (group,) = json.loads(rota("dead", "groups", "--json", "--dsn", dsn).out)["groups"]
    dry = rota("dead", "retry", "--group", group["id"], "--dry-run", "--dsn", dsn)
    tried = rota("dead", "retry", "--group", group["id"], "--canary", "1", "--dsn", dsn)
    shown = rota("dead", "groups", "--dsn", dsn)
    few = rota("dead", "groups", "--most", "1", "--dsn", dsn)
    away = rota("dead", "acknowledge", "--group", group["id"], "--note", "known", "--dsn", dsn)
    none = rota("dead", "groups", "--dsn", dsn)
    gone = rota("dead", "retry", "--group", group["id"], "--dsn", dsn)
    both = rota("dead", "retry", "7", "--group", group["id"], "--dsn", dsn)
    alone = rota("dead", "retry", "--canary", "1", "--dsn", dsn)

    assert (group["letters"], group["error_type"]) == (3, "KeyError")
    assert (dry.out, "would retry 3 letter(s)" in dry.err) == ("", True)
    assert len(tried.out.splitlines()) == 1
    assert "retried 1 letter(s) of group" in tried.err
    assert group["id"] in shown.out
    assert "1 queued" in shown.out
    assert "only the newest 1 letters were looked at" in few.err
    assert "acknowledged 2 letter(s)" in away.err
    assert "no letters are open" in none.err
    assert (gone.code, "No open letter is in the group" in gone.err) == (1, True)
    assert (both.code, alone.code) == (2, 2)
