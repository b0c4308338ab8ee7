from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest


@pytest.mark.one_server
@pytest.mark.long
def test_bench_prints_its_figures_and_removes_its_schema(rota: Callable[..., Any], rota_database: str) -> None:
    ended = rota("bench", "--jobs", "300", "--json", "--dsn", rota_database)

    assert ended.code == 0
    figures = json.loads(ended.out)
    assert set(figures) == {
        "enqueue_one_rate",
        "enqueue_many_rate",
        "drain_rate",
        "pickup_p50",
        "pickup_p99",
        "enqueue_wal_bytes",
        "drain_wal_bytes",
        "drain_statements",
    }
    assert all(value > 0 for value in figures.values())
    assert figures["drain_statements"] < 1
    with psycopg.connect(rota_database) as connection:
        assert connection.execute("select to_regnamespace('rota_bench') is null").fetchone() == (True,)
    assert "drain no-op jobs" in rota("bench", "--jobs", "100", "--dsn", rota_database).out
