"""Guards of starting, stopping and being asked to."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STAGES = "tests/service/test_stages.py"
ENDING = "tests/service/test_ending.py"
PROCESS = "tests/runtime/test_process.py"
FLEET = "tests/chaos/test_fleet.py"
SIGNAL = "tests/flows/test_signal_to_exit.py"
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
        "            if first:\n",
        "            if True:\n",
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
    Mutant(
        "threads of asyncio that keep the process",
        "runtime/process.py",
        "        loop.set_default_executor(ThreadPoolExecutor())\n",
        "",
        SIGNAL,
    ),
    Mutant(
        "a second signal that changes nothing",
        "runtime/process.py",
        """        if not ENDING.begin(name) and not (name == ENDING.reason == "SIGTERM" and is_watched()):
            ENDING.hurry()
""",
        "        ENDING.begin(name)\n",
        PROCESS,
    ),
    Mutant(
        "outcomes that could not be written, and all is well",
        "runtime/process.py",
        "isinstance(fact, Drained) and fact.abandoned:",
        "isinstance(fact, Drained) and False:",
        PROCESS,
    ),
    Mutant(
        "an interpreter that waits for threads at its end",
        "runtime/process.py",
        "                limit.within(HARD_LIMIT)  #",
        "                pass  #",
        PROCESS,
    ),
    Mutant(
        "a limit that is far away",
        "runtime/limit.py",
        "self.within(grace + HARD_LIMIT)",
        "self.within(grace + 60)",
        PROCESS,
    ),
    Mutant(
        "a limit that needs the interpreter",
        "runtime/limit.py",
        "faulthandler.dump_traceback_later(seconds + _BEHIND_SECONDS, exit=True)",
        "pass",
        PROCESS,
    ),
    Mutant(
        "an orphan that does not look for its parent",
        "runtime/lifeline.py",
        "while os.getppid() == parent:",
        "while True:",
        FLEET,
    ),
    Mutant(
        "an orphan that works on whatever database it finds",
        "runtime/lifeline.py",
        '    if not said.endswith(b"\\n"):',
        "    if False:",
        FLEET,
    ),
    Mutant(
        "two signals that arrive as one",
        "runtime/supervisor.py",
        "self._send(signal.SIGINT)",
        "self._send(signal.SIGTERM)",
        FLEET,
    ),
    Mutant(
        "restarts that cannot help", "runtime/fleet.py", "        if code in _HOPELESS:", "        if False:", FLEET
    ),
    Mutant(
        "restarts without an end",
        "runtime/fleet.py",
        "        elif min(self._failures.values()) >= _TRIES:",
        "        elif False:",
        FLEET,
    ),
    Mutant(
        "a dead child that is left to suspicion",
        "runtime/fleet.py",
        "            await self._buried(child)\n",
        "            pass\n",
        FLEET,
    ),
    Mutant(
        "a child that hears nothing and is waited for",
        "runtime/fleet.py",
        "            child.kill()\n",
        "            pass\n",
        FLEET,
    ),
    Mutant(
        "a stop that misses the child that starts",
        "runtime/fleet.py",
        "        if self._stopping.is_set():  # meanwhile\n            child.terminate()\n",
        "",
        FLEET,
    ),
    Mutant(
        "a drained child that is started again",
        "runtime/fleet.py",
        "            elif code == 0 and self._once:",
        "            elif False:",
        FLEET,
    ),
    Mutant(
        "a pool that opens while the process ends",
        "postgres/pool.py",
        "        opening.cancel()  #",
        "        pass  #",
        PROCESS,
    ),
    Mutant(
        "a cancellation that is lost with a connection",
        "postgres/loop_pool.py",
        "if task and task.cancelling() > asked:",
        "if False:",
        "tests/postgres/test_connection.py",
    ),
    Mutant(
        "a drain that ends the process",
        "runtime/limit.py",
        "ENDING.on_exit(",
        "ENDING.on_begin(",
        "tests/runtime/test_limit.py",
    ),
    Mutant(
        "a manager and a parent taken for two wishes",
        "runtime/lifeline.py",
        "return _held.is_set() or multiprocessing.parent_process() is not None",
        "return False",
        FLEET,
    ),
    Mutant(
        "a child that speaks for the service",
        "runtime/supervisor.py",
        "if name not in _OURS_ALONE",
        "if True",
        FLEET,
    ),
]
