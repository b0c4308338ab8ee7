"""Guards of bulks: what they may touch, that each job is changed once, and what comes back."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BULK = "tests/jobs/test_bulk.py"
UNDO = "tests/jobs/test_bulk_undo.py"
PAGES = "tests/dashboard/test_bulk_pages.py"

MUTANTS = [
    Mutant(
        "a form that finds out a secret",
        "dashboard/application.py",
        "                action.check(look, values)\n",
        "                pass\n",
        PAGES,
    ),
    Mutant(
        "a program that finds out a secret",
        "dashboard/api/routes.py",
        "        action.check(look, values)\n",
        "        pass\n",
        PAGES,
    ),
    Mutant(
        "all jobs by saying nothing",
        "dashboard/acting/bulk.py",
        'if ids is None and not filters and not values.get("all"):',
        "if False:",
        PAGES,
    ),
    Mutant(
        "secrets among the samples of a bulk",
        "dashboard/pages/bulk.py",
        "[look.redaction.job(job) for job in known.value.samples]",
        "list(known.value.samples)",
        PAGES,
    ),
    Mutant(
        "an error that quotes a secret, as a filter",
        "dashboard/redaction.py",
        'MASK if name == "error" else value',
        "value",
        PAGES,
    ),
    Mutant(
        "boxes for who may not",
        "dashboard/pages/bulk.py",
        " if look.may(BULK_RIGHTS[name])]",
        "]",
        PAGES,
    ),
    Mutant(
        "a bulk that touches what runs",
        "jobs/bulk/fitting.py",
        "when job.state = 'running' then 'running'",
        "when false then 'running'",
        BULK,
    ),
    Mutant(
        "a bulk that runs what has succeeded again",
        "jobs/bulk/fitting.py",
        '"repeats": ids is not None or wanted.state in ("succeeded", "cancelled"),',
        '"repeats": True,',
        BULK,
    ),
    Mutant(
        "a turn that does not look whether jobs still fit",
        "jobs/bulk/turn.py",
        "wanted, named = thawed(taken.filter), ids if taken.filter is None else None",
        "wanted, named = thawed(None), ids if taken.filter is None else None",
        BULK,
    ),
    Mutant(
        "a pace that nobody keeps",
        "jobs/bulk/turn.py",
        "      and bulk.not_before <= statement_timestamp()\n    order by bulk.not_before\n    limit 1\n    for update skip locked",
        "    order by bulk.not_before\n    limit 1\n    for update skip locked",
        BULK,
    ),
    Mutant(
        "values of arguments that stay",
        "jobs/bulk/turn.py",
        "        filter = filter - '{values,hiding}'::text[],\n",
        "",
        BULK,
    ),
    Mutant(
        "values of arguments on record",
        "jobs/bulk/start.py",
        'if name not in ("paths", "values", "hiding")}',
        'if name not in ("paths", "hiding")}',
        BULK,
    ),
    Mutant(
        "a refused job that holds up all",
        "jobs/bulk/turns.py",
        "self._fewer[at.bulk] = max(1, most // _FEWER)",
        "self._fewer[at.bulk] = most",
        BULK,
    ),
    Mutant(
        "a locked job that holds up other bulks",
        "jobs/bulk/turns.py",
        "await session.run(put_off_turn(at, _PAUSE))",
        "pass",
        BULK,
    ),
    Mutant(
        "an undo after its time",
        "jobs/bulk/operate.py",
        "      and undo_until > {schema}.now()\n",
        "",
        UNDO,
    ),
    Mutant(
        "an undo that takes back what was changed since",
        "jobs/bulk/undo.py",
        'now[each.id].queue == options["to"]',
        "True",
        UNDO,
    ),
    Mutant(
        "a job that comes back beside the holder of its key",
        "jobs/bulk/undo.py",
        "not exists (select from {schema}.jobs as live where live.unique_key = done.unique_key)\n",
        "true\n",
        UNDO,
    ),
    Mutant(
        "a job that comes back beside its next try",
        "jobs/bulk/undo.py",
        "free = [each for each in ids if each not in again]",
        "free = list(ids)",
        UNDO,
    ),
    Mutant(
        "an undo that does not wait for who tries a job again",
        "jobs/bulk/undo.py",
        "        yield lock_settled(sorted(first))\n",
        "",
        UNDO,
    ),
    Mutant(
        "a link of a chain that comes back",
        "jobs/bulk/undo.py",
        'before.get("batch_id") is not None or before.get("after") is not None',
        "False",
        UNDO,
    ),
    Mutant(
        "a run of a schedule that comes back",
        "jobs/bulk/undo.py",
        'if action in ("cancel", "discard") and before.get("schedule") is not None:',
        "if False:",
        UNDO,
    ),
    Mutant(
        "a run of a schedule that ends for good, unsaid",
        "jobs/bulk/fitting.py",
        "num_nonnulls(job.batch_id, job.after, job.schedule) > 0",
        "num_nonnulls(job.batch_id, job.after) > 0",
        UNDO,
    ),
    Mutant(
        "an erased job that comes back",
        "jobs/erase.py",
        'yield FORGET.query({"tag": tag}, read=nothing)',
        "pass",
        UNDO,
    ),
    Mutant(
        "a line that does not follow priorities",
        "jobs/bulk/change.py",
        "when job.place > 0 and coalesce(",
        "when false and coalesce(",
        UNDO,
    ),
    Mutant(
        "a worker that leaves a bulk lying",
        "jobs/worker.py",
        "self._empty() if drain else self._rounds.take_bulk_turns(),",
        "self._empty() if drain else self._stop.wait(),",
        BULK,
    ),
]
