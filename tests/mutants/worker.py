"""Guards of the worker: claiming on time, stopping, executors, children."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CLAIM = "tests/jobs/test_claim.py"
EXECUTE = "tests/jobs/test_execute.py"
THREADS = "tests/jobs/test_threads.py"
CONSUME = "tests/service/test_consume.py"
WORKER = "tests/jobs/test_worker.py"
CHILDREN = "tests/jobs/test_process_executor.py"

MUTANTS = [
    Mutant(
        "a sooner due time that wakes nobody",
        "jobs/claimer.py",
        "            self._sooner()\n",
        "            pass\n",
        CLAIM,
    ),
    Mutant(
        "an expectation forgotten by a look",
        "jobs/claimer.py",
        "self._due_at = min([self._due_at, *(asked_at + due_in for due_in in found)])",
        "self._due_at = min([math.inf, *(asked_at + due_in for due_in in found)])",
        CLAIM,
    ),
    Mutant(
        "a due time kept for ever",
        "jobs/claimer.py",
        "self._lanes, self._due_at = [], math.inf",
        "self._lanes = []",
        CLAIM,
    ),
    Mutant(
        "a due time read from the head of its lane only",
        "jobs/claimer.py",
        "lane.next_due_in for lane in look.lanes if lane.next_due_in is not None",
        "lane.due_in for lane in look.lanes if lane.due_in > 0",
        CLAIM,
    ),
    Mutant(
        "dead rows walked for every wake-up",
        "jobs/claimer.py",
        "self.saw_all = self._at_any_cost or asked_at >= self._dear_until",
        "self.saw_all = True",
        CLAIM,
    ),
    Mutant(
        "a hiccup taken for how it is",
        "jobs/claimer.py",
        "min(seconds, self._costs.get(what, 0.0))",
        "seconds",
        CLAIM,
    ),
    Mutant(
        "what only a dear look finds forgotten",
        "jobs/claimer.py",
        "self._owed = True",
        "self._owed = False",
        CLAIM,
    ),
    Mutant(
        "a backlog skipped by a wake-up",
        "jobs/claimer.py",
        "min(lane.start, self._behind) if lane.start else self._behind",
        "self._behind",
        CLAIM,
    ),
    Mutant(
        "a job due now hidden by one due later",
        "jobs/claimer.py",
        "min(lane.start, self._behind) if lane.start else self._behind",
        "lane.start or self._behind",
        CLAIM,
    ),
    Mutant(
        "jobs for others walked for every wake-up",
        "jobs/claimer.py",
        "self._known |= {(lane.queue, lane.priority): self._behind for lane, _ in self._lanes if not lane.lines}",
        "pass",
        CLAIM,
    ),
    Mutant(
        "a drain that is content with what is cheap to see",
        "jobs/source.py",
        "if self._claimer.saw_all:",
        "if True:",
        "tests/chaos/test_faults_of_transactions.py"
        "::test_dead_rows_that_a_long_transaction_keeps_are_not_walked_for_every_job",
    ),
    Mutant(
        "one unknown claim remembered",
        "jobs/claimer.py",
        "self._unknown.add((member, token))",
        "self._unknown = {(member, token)}",
        CLAIM,
    ),
    Mutant(
        "all unknown claims forgotten",
        "jobs/claimer.py",
        "self._unknown -= {(member, job.token) for job in jobs}",
        "self._unknown.clear()",
        CLAIM,
    ),
    Mutant(
        "a claim of what is to be cancelled",
        "jobs/claim.py",
        "and job.cancel_requested_at is null",
        "",
        CLAIM,
    ),
    Mutant(
        "a claim of a suspect that is to be cancelled",
        "jobs/claim.py",
        "          and job.cancel_requested_at is null\n          and job.due_at",
        "          and job.due_at",
        CLAIM,
    ),
    Mutant(
        "a fast poll",
        "jobs/source.py",
        "min(self._pause, self._claimer.next_look_in)",
        "min(self._pause, 0.04)",
        EXECUTE,
    ),
    Mutant(
        "a second stop that waits",
        "service/consume.py",
        "        self._hurried.set()\n",
        "        self._give_up_running()\n",
        f"{CONSUME} {WORKER}",
    ),
    Mutant(
        "the whole grace for last words",
        "service/consume.py",
        "        if self._hurried.is_set():\n            deadline = Deadline.after(0)\n",
        "",
        CONSUME,
    ),
    Mutant(
        "a script that never ends", "app.py", "                await leave_stuck()\n", "                pass\n", WORKER
    ),
    Mutant(
        "stuck coroutines awaited by the loop",
        "service/loop.py",
        "        asyncio.tasks._unregister_task(task)\n",
        "        pass\n",
        WORKER,
    ),
    Mutant(
        "timers that outlive their body",
        "jobs/execute.py",
        "                timer.cancel()\n",
        "                pass\n",
        EXECUTE,
    ),
    Mutant(
        "bodies that wait behind one that blocks",
        "jobs/threads.py",
        "                    self._have_someone_come()\n",
        "                    pass\n",
        THREADS,
    ),
    Mutant(
        "threads that come once",
        "jobs/threads.py",
        "    def _come(self) -> None:\n        self._someone_comes = False\n",
        "    def _come(self) -> None:\n",
        THREADS,
    ),
    Mutant(
        "a loop that is told once",
        "jobs/threads.py",
        "        self._loop_told = False\n        while",
        "        while",
        THREADS,
    ),
    Mutant("bodies begun after the close", "jobs/threads.py", "        self._waiting.clear()\n", "", THREADS),
    Mutant(
        "a body cancelled and called",
        "jobs/threads.py",
        "        return self._taken() is not None\n",
        "        return not self.ended\n",
        THREADS,
    ),
    Mutant(
        "a body in a thread that nobody hears the end of",
        "jobs/threads.py",
        "            self._outlived.set_result(None)\n",
        "            pass\n",
        THREADS,
    ),
    Mutant(
        "a body cancelled for having committed",
        "jobs/rounds.py",
        "taken_away = taken_away - settled.keys()",
        "pass",
        CHILDREN,
    ),
    Mutant(
        "a stop that is left half done",
        "jobs/worker.py",
        "await asyncio.shield(finishing)",
        "await finishing",
        CHILDREN,
    ),
    Mutant("a hindrance told every minute", "jobs/rounds.py", "done.hindered != hindered:", "done.hindered:", WORKER),
    Mutant(
        "words to a child that leaves",
        "jobs/children.py",
        "if not self._leaving and not self._writer.is_closing():",
        "if not self._writer.is_closing():",
        CHILDREN,
    ),
    Mutant(
        "a pool that opens a second connection for its first caller",
        "postgres/pool.py",
        '"prepare_threshold": 0, "ready": [first]}',
        '"prepare_threshold": 0}',
        "tests/postgres/test_connection.py::test_a_pool_opens_one_connection_for_its_first_caller",
    ),
]
