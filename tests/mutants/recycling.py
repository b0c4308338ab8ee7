"""Guards of web processes that replace each other, and of those who watch them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "one replaced before its successor is ready",
        "runtime/fleet.py",
        "                await _first(successor.process.ready.wait(), run.ended, successor.ended)\n",
        "                pass\n",
        "tests/runtime/test_succession.py",
    ),
    Mutant(
        "all replaced at once",
        "runtime/fleet.py",
        "        self._nobody_is_replaced.clear()\n",
        "",
        "tests/runtime/test_succession.py",
    ),
    Mutant(
        "a successor of one that has ended",
        "runtime/fleet.py",
        "            if run.ended.done():\n                return None\n        self",
        "        self",
        "tests/runtime/test_succession.py",
    ),
    Mutant(
        "a child without a sign of life",
        "runtime/fleet.py",
        "                dead.kill()\n",
        "                pass\n",
        "tests/chaos/test_fleet.py",
    ),
    Mutant(
        "ready when one of them is",
        "runtime/systemd.py",
        "        if not self._is_ready and ready >= size:\n",
        "        if not self._is_ready and ready >= 1:\n",
        "tests/chaos/test_fleet.py",
    ),
    Mutant(
        "ready before it is",
        "runtime/systemd.py",
        "        if not is_ready and process.ready_sync().well:\n",
        "        if not is_ready:\n",
        "tests/web/test_serve.py",
    ),
    Mutant(
        "several that wait for their database killed",
        "runtime/systemd.py",
        "        if not self._is_ready and waits and ready < size:\n            notify(_MORE_TIME)\n",
        "",
        "tests/runtime/test_probes.py",
    ),
    Mutant(
        "one that is replaced and does not know",
        "runtime/lifeline.py",
        "            _replaced.set()\n",
        "",
        "tests/web/test_recycling.py",
    ),
    Mutant(
        "one that is replaced and lets clients in",
        "cli/serve.py",
        "        if is_replaced() and self._attached.life is not None:\n",
        "        if False:\n",
        "tests/web/test_recycling.py",
    ),
    Mutant(
        "one that is replaced and sends balancers away",
        "integrations/asgi/readiness.py",
        'or (is_replaced() and reason == "shutting_down")',
        "",
        "tests/web/test_recycling.py",
    ),
    Mutant(
        "one that joins ready ones and says that it starts",
        "cli/serve.py",
        '        command += ["--joins"] if fleet.is_ready else []\n',
        "",
        "tests/web/test_recycling.py",
    ),
    Mutant(
        "a failed shutdown taken for a good one",
        "cli/serve.py",
        "    failed = failed or (",
        "    failed = failed and (",
        "tests/web/test_serve.py",
    ),
    Mutant(
        "lines of uvicorn in their own format",
        "cli/serve.py",
        '    _log_alike("uvicorn", "uvicorn.error")\n',
        "",
        "tests/web/test_serve.py",
    ),
    Mutant(
        "lines in colours", "cli/serve.py", 'vars(record).pop("color_message", None)', "pass", "tests/web/test_serve.py"
    ),
    Mutant(
        "a failed shutdown that is not noted",
        "integrations/asgi/attach.py",
        'self._life.failed = message["type"] == "lifespan.shutdown.failed"',
        "self._life.failed = False",
        "tests/web/test_attach.py",
    ),
    Mutant(
        "a warning for each request",
        "integrations/asgi/attach.py",
        "            self._warned = True\n",
        "            pass\n",
        "tests/web/test_attach.py",
    ),
    Mutant(
        "stopped in order though it failed",
        "integrations/asgi/lifespan.py",
        "        if not self.left and not self.failed:\n",
        "        if True:\n",
        "tests/web/test_attach.py",
    ),
    Mutant(
        "ready without the worker that was wanted",
        "integrations/asgi/readiness.py",
        'return "starting" if self._expected() else None',
        "return None",
        "tests/web/test_attach.py",
    ),
    Mutant(
        "no word of which methods there are",
        "integrations/asgi/health.py",
        "        if report.status == 405:\n",
        "        if False:\n",
        "tests/web/test_attach.py",
    ),
    Mutant(
        "no word of which methods a worker has",
        "runtime/health_server.py",
        '{"Allow": "GET, HEAD"}',
        "{}",
        "tests/runtime/test_probes.py",
    ),
    Mutant(
        "a fleet that takes longer than it says",
        "runtime/supervisor.py",
        "LEAVE_SECONDS = HARD_LIMIT + 0.15",
        "LEAVE_SECONDS = HARD_LIMIT + 2.0",
        "tests/runtime/test_limit.py",
    ),
]
