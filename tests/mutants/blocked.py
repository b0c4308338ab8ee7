"""Guards of what waits in lines, where people ask for it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "one that waits for a batch run now",
        "jobs/repeat.py",
        "job.after is null and job.due_at > {schema}.now()",
        "job.due_at > {schema}.now()",
        "tests/limits/test_blocked.py",
    ),
    Mutant(
        "one that is due made due",
        "jobs/repeat.py",
        "job.after is null and job.due_at > {schema}.now()",
        "job.after is null",
        "tests/limits/test_blocked.py",
    ),
    Mutant(
        "workers of lines not woken by a test's clock",
        "testing/clock.py",
        "state in ('queued', 'blocked')",
        "state = 'queued'",
        "tests/limits/test_blocked.py",
    ),
    Mutant(
        "lines hidden from a test",
        "testing/app.py",
        '("queued", "blocked")',
        '("queued",)',
        "tests/limits/test_blocked.py",
    ),
    Mutant(
        "blocked jobs in no metric",
        "integrations/prometheus.py",
        '(queue, "blocked"), jobs',
        '(queue, "blocked"), 0',
        "tests/integrations/test_prometheus.py",
    ),
    Mutant(
        "lines that nobody takes from",
        "runtime/doctor/work.py",
        "        where lane.of_lines",
        "        where false",
        "tests/cli/test_doctor.py",
    ),
    Mutant(
        "the line of the call as written",
        "jobs/middleware.py",
        "return self._lined_up(new, checked)",
        "return checked",
        "tests/jobs/test_middleware.py",
    ),
    Mutant(
        "middleware of any parameters",
        "jobs/middleware.py",
        "except TypeError as error:",
        "except KeyError as error:",
        "tests/jobs/test_middleware.py",
    ),
    Mutant(
        "an empty key by its digest",
        "jobs/limit.py",
        "if len(key) <= LONGEST_KEY",
        "if 0 < len(key) <= LONGEST_KEY",
        "tests/limits/test_limit_declared.py",
    ),
    Mutant(
        "a key that cannot be stored",
        "jobs/limit.py",
        " and not _UNSTORABLE.search(key)",
        "",
        "tests/limits/test_limit_declared.py",
    ),
    Mutant(
        "a function that nobody can read",
        "jobs/by.py",
        "(TypeError, ValueError) as error",
        "KeyError as error",
        "tests/limits/test_limit_declared.py",
    ),
    Mutant(
        "a function of nameless arguments",
        "jobs/by.py",
        "if nameless := ",
        "if False and ",
        "tests/limits/test_limit_declared.py",
    ),
    Mutant(
        "a resource of what nobody gives",
        "service/resources.py",
        "if lacking := ",
        "if False and ",
        "tests/jobs/test_resources.py",
    ),
    Mutant(
        "inject without brackets",
        "service/inject.py",
        "if each.default is inject:",
        "if False:",
        "tests/jobs/test_resources.py",
    ),
    Mutant(
        "a long line that hides the others",
        "jobs/queue_view.py",
        "few.id not in (select long.id from long)",
        "true",
        "tests/jobs/test_queues.py",
    ),
]
