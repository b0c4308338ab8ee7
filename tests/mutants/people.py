"""Guards of what people see and do: redaction, codecs, dry runs, checks of arguments."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ARGUMENTS = "tests/jobs/test_arguments.py"
CODEC = "tests/jobs/test_codec.py"
COMMANDS = "tests/cli/test_jobs_commands.py"
INSPECT = "tests/jobs/test_inspect.py"
REDACT = "tests/jobs/test_redact.py"

GROUPS = "tests/jobs/test_groups.py"
AUDIT = "tests/postgres/test_audit.py"
LANES = "tests/leases/test_lanes.py"
SEARCH = "tests/jobs/test_search.py"
TIMELINE = "tests/schedules/test_timeline.py"
TRENDS = "tests/jobs/test_trends.py"

MUTANTS = [
    Mutant(
        "a load without an end",
        "schedules/timeline.py",
        "time.monotonic() + _BUDGET",
        "time.monotonic() + 60.0",
        TIMELINE,
    ),
    Mutant(
        "a broken schedule that hides the others",
        "schedules/timeline.py",
        "with contextlib.suppress(RotaError):  # one",
        "with contextlib.nullcontext():  # one",
        TIMELINE,
    ),
    Mutant(
        "a gap where one followed the other at once",
        "leases/inspect.py",
        "before.ended_at < then.acquired_at",
        "before.ended_at <= then.acquired_at",
        LANES,
    ),
    Mutant(
        "an audit that says nothing of what it did not look at",
        "postgres/audit.py",
        'looked_at < params["reach"] or',
        "True or",
        AUDIT,
    ),
    Mutant(
        "minutes counted twice",
        "jobs/tally.py",
        "       or kept.kept_at < {schema}.now() - %(every)s",
        "       or true",
        TRENDS,
    ),
    Mutant("what came late", "jobs/tally.py", "kept.minutes_until - _LATE if", "kept.minutes_until if", TRENDS),
    Mutant("the hour that is not over", "jobs/trends.py", "if kept.hours is not None:", "if False:", TRENDS),
    Mutant("canaries beyond their number", "jobs/groups.py", "ids[: canary - so_far.resolved]", "ids", GROUPS),
    Mutant(
        "letters of other groups",
        "jobs/groups.py",
        "if letter.fingerprint.id == group]",
        "]",
        GROUPS,
    ),
    Mutant("a place of libraries", "jobs/fingerprint.py", "if not _NOT_OWN.search(frame[0])", "", GROUPS),
    Mutant(
        "a secret that is found by asking for it",
        "jobs/wanted.py",
        ", 1) = any (job.redact)",
        ", 1) = any ('{}')",
        SEARCH,
    ),
    Mutant(
        "a secret that came by SQL and is found by asking for it",
        "jobs/wanted.py",
        "                         or job.task = any (%(hiding)s::text[])\n",
        "",
        SEARCH,
    ),
    Mutant(
        "a search that does not go on where it was",
        "jobs/search.py",
        'params["before"] = floor.id',
        'params["before"] = floor.id - 1',
        SEARCH,
    ),
    Mutant(
        "a search that says nothing of what it did not look at",
        "jobs/search.py",
        "return JobsFound(tuple(found), floor.id, floor.at)",
        "return JobsFound(tuple(found), None, None)",
        SEARCH,
    ),
    Mutant("what runs, walked to", "jobs/search.py", 'if wanted.state == "running" and', "if False and", SEARCH),
    Mutant("a look without an end", "postgres/look.py", "if limit is None else f", "if True else f", SEARCH),
    Mutant(
        "an instance its own class would refuse",
        "conversion/records.py",
        "        back = decode(encoded)\n        if comparable and back != value:",
        "        if comparable and decode(encoded) != value:",
        ARGUMENTS,
    ),
    Mutant(
        "a struct of anything",
        "conversion/records.py",
        "if comparable and back != value:",
        "if False:",
        ARGUMENTS,
    ),
    Mutant("pieces of a secret", "blot.py", "text = _without_pieces(text, secret, dots)", "pass", REDACT),
    Mutant("lines of a secret", "blot.py", "{text, *text.splitlines()}", "{text}", REDACT),
    Mutant("a quoted secret", "blot.py", "repr(part)[1:-1], ", "", REDACT),
    Mutant(
        "a refusal that shows a secret",
        "jobs/arguments.py",
        "        if name not in self._redact:\n            return",
        "        if True:\n            return",
        REDACT,
    ),
    Mutant(
        "secrets that came by SQL",
        "jobs/redact.py",
        "{*(redact or ()), *app.redacted(task)}",
        "{*(redact or ())}",
        REDACT,
    ),
    Mutant(
        "a secret in an error after success",
        "jobs/execute.py",
        "told = describe(error, secrets_of(task, job, self._desk.codec)).error",
        "told = error",
        REDACT,
    ),
    Mutant(
        "a secret in an error after success, in a child",
        "jobs/child.py",
        "describe(error, secrets_of(task, job, desk.codec))",
        "describe(error)",
        REDACT,
    ),
    Mutant(
        "a secret in a reason to discard",
        "jobs/execute.py",
        "blotted(error.reason, secrets_of(task, job, codec) or ())",
        "error.reason",
        REDACT,
    ),
    Mutant("a secret under an old name", "jobs/definition.py", " or name not in self.signature.names", "", REDACT),
    Mutant(
        "a secret in an error",
        "failure.py",
        "error if secrets is None else StandIn.of(*stored)",
        "error",
        REDACT,
    ),
    Mutant(
        "a dry run that does it",
        "postgres/ask.py",
        "    with connection.transaction(force_rollback=undo):",
        "    with connection.transaction():",
        COMMANDS,
    ),
    Mutant(
        "a dry run that does it, async",
        "postgres/ask.py",
        "async with connection.transaction(force_rollback=undo):",
        "async with connection.transaction():",
        INSPECT,
    ),
    Mutant(
        "a dry run that enqueues",
        "cli/jobs.py",
        "connection.transaction(force_rollback=True)",
        "connection.transaction()",
        COMMANDS,
    ),
    Mutant(
        "what a codec made and nobody can store",
        "jobs/codec.py",
        "    if problem := _unstorable(coded):\n        raise InvalidArguments",
        "    if False and (problem := _unstorable(coded)):\n        raise InvalidArguments",
        CODEC,
    ),
    Mutant(
        "a secret in the words of a codec",
        "jobs/codec.py",
        "said = type(error).__name__ if secret else brief(error)",
        "said = brief(error)",
        CODEC,
    ),
    Mutant(
        "letters counted whose key is taken",
        "jobs/letters.py",
        "            where not exists (select from {schema}.jobs as live where live.unique_key = letter.unique_key)",
        "            where true",
        COMMANDS,
    ),
    Mutant(
        "a secret kept as text",
        "jobs/enqueue.py",
        " and not some[0].redact",
        "",
        "tests/jobs/test_enqueue.py::test_secrets_of_many_jobs_are_not_kept",
    ),
    Mutant(
        "secrets of a job that was there",
        "jobs/enqueue.py",
        'args=shown_args(app, asked.task, stored.get("args"), stored.get("redact")),',
        'args=readable(codec, stored.get("args")),',
        REDACT,
    ),
    Mutant(
        "times in the zone of the session",
        "cli/output.py",
        ".astimezone(UTC)",
        "",
        "tests/cli/test_commands.py",
    ),
]
