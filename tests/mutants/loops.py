"""Guards of event loops that end, and of bodies that do not."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "steps that have to end in the time of one",
        "postgres/ask.py",
        "                answer = query.read(await _rows(connection, schema, query))\n            went_on()\n",
        "                answer = query.read(await _rows(connection, schema, query))\n",
        "tests/postgres/test_ask.py::test_steps_may_take_long_and_each_of_them_may_not",
    ),
    Mutant(
        "a pool whose worker keeps its loop from ending",
        "postgres/loop_pool.py",
        "if worker is not None and worker.cancelling():",
        "if False:",
        "tests/postgres/test_connection.py",
    ),
    Mutant(
        "connections of ended loops that add up",
        "postgres/pool.py",
        "            self._end_of_closed_loops()\n            # one opening",
        "            # one opening",
        "tests/postgres/test_connection.py",
    ),
    Mutant(
        "connections of ended loops that outlive the app",
        "postgres/pool.py",
        "        self._end_of_closed_loops()\n        with self._lock:",
        "        with self._lock:",
        "tests/postgres/test_connection.py",
    ),
    Mutant(
        "a membership of a loop that was closed by hand",
        "pollers/by_hand.py",
        "            self._entering.result().leave_sync()",
        "            pass",
        "tests/pollers/test_kept_by_hand.py",
    ),
    Mutant(
        "a web process that waits for a body that refuses to end",
        "integrations/asgi/lifespan.py",
        "if refusing := leave_refusing():",
        "if refusing := 0:",
        "tests/web/test_refusing.py",
    ),
    Mutant(
        "a body that refuses to end and is not remembered",
        "service/consume.py",
        "            for task in refusing:\n                note_refusing(task)\n",
        "",
        "tests/web/test_refusing.py",
    ),
]
