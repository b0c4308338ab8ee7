"""Guards of who says what of itself, and of what others want of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STEERING = "tests/leases/test_steering.py"
OUTSIDE = "tests/flows/test_asked_from_outside.py"
CONDITION = "tests/leases/test_condition.py"
TABS = "tests/dashboard/test_open_tabs.py"

MUTANTS = [
    Mutant(
        "a reader that a process waits for at its end",
        "dashboard/looking.py",
        "await before_the_end(reading)",
        "await reading",
        TABS,
    ),
    Mutant(
        "a request for the API that a process waits for at its end",
        "dashboard/api/routes.py",
        "await bounded(endpoint.read(look, values))",
        "await endpoint.read(look, values)",
        TABS,
    ),
    Mutant(
        "a look that waits for the server when it is given up",
        "app.py",
        "            prompt=True,\n",
        "",
        TABS,
    ),
    Mutant("a stop that nobody sees", "jobs/worker.py", "            control.show_draining()\n", "", STEERING),
    Mutant(
        "a quiet process that claims",
        "service/consume.py",
        "            if self.paused:\n                await self._open.wait()\n",
        "",
        STEERING,
    ),
    Mutant(
        "a quiet process that keeps what it has not begun",
        "service/consume.py",
        "soon = 0 if self.paused else self.finished - finished",
        "soon = len(self._ready) if self.paused else self.finished - finished",
        STEERING,
    ),
    Mutant(
        "a quiet process that begins what it has",
        "service/consume.py",
        "self._starting or self.paused or not",
        "self._starting or not",
        "tests/service/test_consume.py",
    ),
    Mutant(
        "a quiet process that leads on",
        "jobs/worker.py",
        """                companion.pause()
""",
        """                companion.name
""",
        STEERING,
    ),
    Mutant(
        "a quiet process that polls",
        "pollers/polling.py",
        "            part.consumer.pause()\n",
        "            part.consumer.idle\n",
        STEERING,
    ),
    Mutant(
        "a wish that is forgotten by who comes back",
        "leases/members.py",
        "where was.member = %(was)s::uuid",
        "where was.member = %(was)s::uuid and false",
        STEERING,
    ),
    Mutant(
        "a drain that rests for good",
        "working.py",
        'elif wish.what == "drain" or self._drains:',
        'elif wish.what == "drain":',
        STEERING,
    ),
    Mutant(
        "a web process that ends because its jobs are to",
        "leases/steer.py",
        'wish = "drain" if verb == "drain" and member.work["drains"] != "quiet" else "quiet"',
        'wish = "drain" if verb == "drain" else "quiet"',
        STEERING,
    ),
    Mutant(
        "a web process that shows to end",
        "integrations/asgi/lifespan.py",
        "            self.app.serves = True\n",
        "",
        OUTSIDE,
    ),
    Mutant(
        "a web process that is not ready as it rests",
        "runtime/health.py",
        'working.state in ("running", "quiet")',
        'working.state == "running"',
        OUTSIDE,
    ),
    Mutant(
        "a worker that goes on when it is drained",
        "runtime/process.py",
        "    app.exits = ENDING.begin\n",
        "    app.exits = print\n",
        OUTSIDE,
    ),
    Mutant(
        "one of several of the same name is picked",
        "leases/steer.py",
        "    if len(found) > 1:\n",
        "    if False:\n",
        STEERING,
    ),
    Mutant(
        "numbers that are told with every beat",
        "leases/condition.py",
        "if boottime() - self._looked_at < _EVERY_SECONDS:",
        "if False:",
        CONDITION,
    ),
    Mutant(
        "numbers that are told although nothing has changed",
        "leases/condition.py",
        "(self._last is not None and _alike(now, self._last))",
        "False",
        CONDITION,
    ),
    Mutant(
        "a number that cannot be had costs the lease",
        "leases/condition.py",
        "with contextlib.suppress(Exception):",
        "with contextlib.suppress(KeyError):",
        CONDITION,
    ),
]
