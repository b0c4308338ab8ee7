"""Guards of starting, stopping and being asked to."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STAGES = "tests/service/test_stages.py"
ENDING = "tests/service/test_ending.py"
WORKING = "tests/flows/test_working.py"

MUTANTS = [
    Mutant(
        "a stage that fails keeps the others from stopping",
        "service/stages.py",
        "    except Exception as error:",
        "    except asyncio.InvalidStateError as error:",
        STAGES,
    ),
    Mutant(
        "a stage without a deadline",
        "service/stages.py",
        "async with asyncio.timeout(within):",
        "async with asyncio.timeout(None):",
        STAGES,
    ),
    Mutant(
        "a stop that is cancelled half-way",
        "service/stages.py",
        "await asyncio.shield(stopping)",
        "await stopping",
        STAGES,
    ),
    Mutant(
        "stages stopped from the first on", "service/stages.py", "self._started.pop()", "self._started.pop(0)", STAGES
    ),
    Mutant(
        "a handler that waits for its own thread", "service/ending.py", "threading.RLock()", "threading.Lock()", ENDING
    ),
    Mutant(
        "an end that begins twice",
        "service/ending.py",
        "            if self.begun:\n",
        "            if False:\n",
        ENDING,
    ),
    Mutant("a drain that waits for a database", "working.py", "patient=not drain", "patient=True", WORKING),
    Mutant("a worker that does not wait for its database", "working.py", "if not patient:", "if True:", WORKING),
    Mutant(
        "terms that are kept until jobs have ended",
        "jobs/worker.py",
        '            stopped(self._facts, "jobs", self._consumer.drain(deadline), within=most),\n',
        '            *[await stopped(self._facts, "jobs", self._consumer.drain(deadline), within=most) and None][:0],\n',
        WORKING,
    ),
]
