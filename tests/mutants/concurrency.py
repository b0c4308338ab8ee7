"""Guards of statements that meet: for the model of the queue, which tries them in any order, and for pairs of them in every order."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MODEL = "tests/jobs/test_model.py"
PAIRS = "tests/jobs/test_isolation.py"
ASK = "tests/postgres/test_ask.py"
PUT = "postgres/migrations/0009_collapse.sql"

_LOCK = "                limit %(limit)s\n                for update skip locked"
_LANE = """\
                  and job.queue = lane.queue
                  and job.priority = lane.priority
                  and (job.due_at, job.id) >"""
_LOCK_SUSPECT = "        limit 1\n        for update skip locked"
_LOCK_LOST = "            limit %(limit)s\n            -- a holder that is settling this very row is let go first; then the row is no longer its, or no longer there\n            for update skip locked"  # noqa: E501

# For each of these both the model and the pairs fail alone.
_BOTH = [
    ("success without the token", "jobs/settle.py", "and job.token = outcome.token", ""),
    ("other outcomes without the token", "jobs/settle.py", " and outcome.token = job.token", ""),
    ("a claim that waits", "jobs/claim.py", _LOCK, _LOCK.replace(" skip locked", "")),
    ("a claim that locks nothing", "jobs/claim.py", _LOCK, _LOCK.partition("\n")[0]),
    (
        "a claim of what is not queued",
        "jobs/claim.py",
        f"where job.state = 'queued'\n{_LANE}",
        f"where true\n{_LANE}",
    ),
    ("a claim of a suspect that waits", "jobs/claim.py", _LOCK_SUSPECT, _LOCK_SUSPECT.replace(" skip locked", "")),
    ("a claim of a suspect that locks nothing", "jobs/claim.py", _LOCK_SUSPECT, "        limit 1"),
    (
        "a claim of a suspect that is not queued",
        "jobs/claim.py",
        "where job.state = 'queued'\n          and job.losses > 0",
        "where job.losses > 0",
    ),
    ("a rescue that waits", "jobs/rescue.py", _LOCK_LOST, _LOCK_LOST.replace(" skip locked", "")),
    ("a rescue from the living", "jobs/rescue.py", "where member.ended_at is not null", "where true"),
    (
        "a cancelled job that is queued again",
        "jobs/settle.py",
        "outcome.kind = 'cancelled' or job.cancel_requested_at is not null",
        "outcome.kind = 'cancelled'",
    ),
    (
        "a cancelled job that is rescued",
        "jobs/rescue.py",
        "when job.cancel_requested_at is not null then 'cancelled'",
        "",
    ),
    (
        "a running job that is replaced",
        PUT,
        " = 'replace' and stored ->> 'state' in ('queued', 'blocked')\n",
        " = 'replace' and stored is not null\n",
    ),
]

MUTANTS = [
    *[Mutant(f"{what} (model)", file, old, new, MODEL) for what, file, old, new in _BOTH],
    *[Mutant(f"{what} (pairs)", file, old, new, PAIRS) for what, file, old, new in _BOTH],
    Mutant(
        "a claim given back without its token",
        "jobs/claim.py",
        "and job.token = %(token)s\n        returning job.id\n    )\n    select count(*)",
        "and %(token)s > 0\n        returning job.id\n    )\n    select count(*)",
        MODEL,
    ),
    Mutant(
        "a claim given back without its member",
        "jobs/claim.py",
        "and job.member = %(member)s\n          and job.token",
        "and %(member)s::uuid is not null\n          and job.token",
        MODEL,
    ),
    Mutant(
        "a claim of what was cancelled and given back",
        "jobs/claim.py",
        "and job.cancel_requested_at is null",
        "",
        PAIRS,
    ),
    Mutant("jobs cancelled in another order", "jobs/cancel.py", "order by job.id", "order by job.id desc", PAIRS, 0),
    Mutant("jobs discarded in another order", "jobs/cancel.py", "order by job.id", "order by job.id desc", PAIRS, 1),
    Mutant(
        "outcomes written in another order",
        "jobs/settle.py",
        "order by job.id\n        for update of job",
        "order by outcome.id desc\n        for update of job",
        PAIRS,
    ),
    Mutant(
        "successes written in any order",
        "jobs/settle.py",
        "outcomes = sorted(outcomes, key=_job_id)",
        "outcomes = list(outcomes)",
        PAIRS,
    ),
    Mutant(
        "keys not locked before the first job is put",
        PUT,
        "on conflict (key) do update set key = excluded.key",
        "on conflict (key) do nothing",
        PAIRS,
    ),
    Mutant(
        "keys locked in any order",
        PUT,
        "select distinct (job #>> '{unique,digest}')::uuid as key\n    from jsonb_array_elements(jobs || later) as job\n"
        "    where job ? 'unique'\n    order by key\n",
        "select (job #>> '{unique,digest}')::uuid as key\n    from jsonb_array_elements(jobs || later) as job\n"
        "    where job ? 'unique'\n",
        PAIRS,
    ),
    Mutant(
        "jobs replaced in another order",
        PUT,
        "        order by job.id\n        for update;",
        "        order by job.id desc\n        for update;",
        PAIRS,
    ),
    Mutant(
        "plain jobs that read others",
        PUT,
        """if (jobs || later) @? '$[*].unique ? (@.conflict == "replace")' then""",
        "if true then",
        PAIRS,
    ),
    Mutant(
        "a strict level not noticed",
        "postgres/connection.py",
        'connection.strict = isolation != "read committed"',
        "connection.strict = False",
        ASK,
    ),
    Mutant(
        "a refusal for a strict level",
        "postgres/ask.py",
        "with contextlib.suppress(SerializationFailure):",
        "with contextlib.suppress():",
        ASK,
    ),
    Mutant(
        "a refusal for a strict level, sync",
        "postgres/ask.py",
        "with contextlib.suppress(SerializationFailure), block:",
        "with contextlib.suppress(), block:",
        ASK,
    ),
    Mutant("steps at a strict level", "postgres/ask.py", "if not is_direct(connection):", "if False:", ASK, 0),
    Mutant("steps at a strict level, sync", "postgres/ask.py", "if not is_direct(connection):", "if False:", ASK, 1),
    Mutant(
        "blocks at a strict level",
        "postgres/ask.py",
        "set transaction isolation level read committed; set local",
        "set local",
        ASK,
    ),
    Mutant(
        "a frozen block that keeps its locks",
        "postgres/ask.py",
        "; set local idle_in_transaction_session_timeout = '{IDLE_LIMIT}'",
        "",
        ASK,
    ),
    Mutant(
        "a commit that is refused unseen",
        "postgres/ask.py",
        "            async with connection.transaction():\n                return",
        "            if True:\n                return",
        ASK,
    ),
    Mutant(
        "a frozen transaction that keeps its locks",
        "postgres/pool.py",
        "[OPENING]\n    + [",
        "[",
        ASK,
    ),
    Mutant(
        "migrations at a strict level",
        "postgres/schema.py",
        '"set transaction isolation level read committed; "',
        '""',
        ASK,
    ),
    Mutant("a short limit of the database", "postgres/connection.py", " or is_short or bool", " or bool", ASK),
    Mutant("a limit that must hold everywhere", "postgres/connection.py", " or bool(self.everywhere)", "", ASK),
    Mutant(
        "a settle that is not answered",
        "jobs/source.py",
        " or isinstance(error.__cause__, TimeoutError)",
        "",
        "tests/chaos/test_faults_of_transactions.py",
    ),
]
