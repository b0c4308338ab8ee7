"""Guards of the job queue: tokens, states, claims, outcomes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SETTLE = "tests/jobs/test_settle.py"
RUNNING = "tests/jobs/test_running.py"
MEMBERS = "tests/leases/test_members.py"

NAMED = "tests/jobs/test_claim_named.py"

MUTANTS = [
    *(
        Mutant(f"very many jobs {what}", "jobs/copy.py", old, new, "tests/jobs/test_enqueue.py")
        for what, old, new in (
            ("that wake nobody", "yield notify(", "wake_channel(schema) or notify("),
            ("in the letters of the session", "set_config('client_encoding', 'UTF8', true)", "null"),
            ("whose secrets are none", "_texts(kind.redact),", "_NULL,"),
            ("in a COPY without end", "if boottime() > until:", "if False:"),
            ("that are all due at one time", "ends[kind - 1] for kind", "ends[0] for kind"),
        )
    ),
    *(
        Mutant(f"a claim of what is named {what}", "jobs/claim.py", old, new, NAMED, occurrence)
        for what, old, new, occurrence in (
            ("that takes what is not due", "and job.due_at <= (select {schema}.now())", "", 1),
            (
                "that takes from all queues",
                "(%(queues)s::text[] is null or job.queue = any (%(queues)s::text[]))",
                "true",
                0,
            ),
            ("that takes what it does not know", "and job.task = any (%(tasks)s::text[])", "", 1),
            ("that takes newer versions", "job.version = 1", "true", 1),
            ("that takes what was lost before", "and job.losses = 0", "", 1),
            ("that takes what is to be cancelled", "and job.cancel_requested_at is null", "", 1),
            ("past the limit of a queue", "queue.running_limit is not null", "false", 0),
            ("past the rate of a queue", "queue.rate_count is not null", "false", 0),
            ("past a pause", "or queue.paused_at is not null and", "or false and", 0),
            ("past what holds for all queues", "queue.name in ('', job.queue)", "queue.name = job.queue", 0),
            ("that waits", "for update skip locked", "for update", 1),
        )
    ),
    Mutant(
        "an idle worker that looks for what it was told of",
        "jobs/source.py",
        "if 0 < len(named)",
        "if 0 > len(named)",
        NAMED,
    ),
    Mutant(
        "a job of later that is named",
        "jobs/enqueue.py",
        "case when %(at)s is null and %(delay)s is null",
        "case when true",
        NAMED,
    ),
    Mutant("success without the token", "jobs/settle.py", "and job.token = outcome.token", "", SETTLE),
    Mutant("other outcomes without the token", "jobs/settle.py", "and outcome.token = job.token", "", SETTLE),
    Mutant(
        "tokens of a batch taken together",
        "jobs/settle.py",
        "and job.token = outcome.token",
        "and job.token in (select token from outcome)",
        SETTLE,
    ),
    Mutant(
        "a cancelled job that is queued again",
        "jobs/settle.py",
        "outcome.kind = 'cancelled' or job.cancel_requested_at is not null",
        "outcome.kind = 'cancelled'",
        SETTLE,
    ),
    Mutant("progress without the token", "jobs/report.py", "and job.token = %(token)s", "and %(token)s > 0", SETTLE, 0),
    Mutant(
        "a checkpoint without the token", "jobs/report.py", "and job.token = %(token)s", "and %(token)s > 0", SETTLE, 1
    ),
    Mutant(
        "a transaction that ignores a lost claim",
        "jobs/running.py",
        "self._job._still_ours(await self._own.run(self._success(), self._desk.database.schema))",
        "await self._own.run(self._success(), self._desk.database.schema)",
        RUNNING,
    ),
    Mutant(
        "a transaction whose lost reply is taken for a failure",
        "jobs/running.py",
        "if not await self._was_committed():",
        "if True:",
        RUNNING,
    ),
    Mutant("a claim of newer versions", "jobs/claim.py", "job.version = 1", "true", SETTLE),
    Mutant("suspects claimed with the rest", "jobs/claim.py", "and job.losses = 0", "", SETTLE),
    Mutant(
        "suspects let in side by side",
        "jobs/suspects.py",
        "return 1 if self._inside else _ANY",
        "return _ANY",
        "tests/jobs/test_suspects.py",
    ),
    Mutant(
        "no timer for a retry",
        "jobs/source.py",
        "self._claimer.expect(outcome.pause)",
        "pass",
        "tests/jobs/test_execute.py",
    ),
    Mutant(
        "nobody is told of a cancel",
        "jobs/cancel.py",
        "from (select distinct member from chosen where not now) as members",
        "from (select distinct member from chosen where false) as members",
        "tests/jobs/test_execute.py",
    ),
    Mutant(
        "a settle that never looks for its own token",
        "jobs/source.py",
        "earlier = await self._run(find_settled(unmatched))",
        "earlier = {}",
        "tests/chaos/test_lost_replies.py",
    ),
    Mutant(
        "a lost claim that is not given back",
        "jobs/claimer.py",
        "await self._session.run(give_back_claim(*unknown))",
        "pass",
        "tests/chaos/test_lost_replies.py",
    ),
    Mutant("a claim that locks nothing", "jobs/claim.py", "for update skip locked", "", SETTLE),
    Mutant(
        "a claim of tasks nobody here knows",
        "jobs/claim.py",
        "and job.task = any (%(tasks)s::text[])",
        "and %(tasks)s::text[] is not null",
        SETTLE,
    ),
    Mutant("a claim by an ended member", "jobs/claim.py", "member.ended_at is null and", "", MEMBERS, 0),
    *(
        Mutant(f"a claim {way} by a member that is suspected", "jobs/claim.py", old, "", MEMBERS, occurrence)
        for way, old, occurrence in (
            ("of lanes", " and member.suspected_at is null", 0),
            ("from lines", " and member.suspected_at is null", 1),
            ("of what was lost", " and member.suspected_at is null", 2),
        )
    ),
    Mutant("rescue from the living", "jobs/rescue.py", "where member.ended_at is not null", "", SETTLE),
    Mutant(
        "losses that never bury",
        "jobs/rescue.py",
        "when job.losses + 1 >= coalesce(job.lost_limit, %(lost_limit)s) then 'dead'",
        "when %(lost_limit)s < 0 then 'dead'",
        SETTLE,
    ),
    Mutant(
        "a look that takes before what was lost",
        "jobs/claim.py",
        "where way.suspects or way.due_in",
        "where way.due_in",
        "tests/jobs/test_claim.py",
    ),
    Mutant(
        "a look that takes what is limited",
        "jobs/claim.py",
        "and (way.lines or way.limited)) as is_all",
        "and false) as is_all",
        "tests/limits/test_limited_queues.py",
    ),
    Mutant("jobs left behind unseen", "jobs/rounds.py", "if found.lost:", "if False:", "tests/jobs/test_worker.py"),
    Mutant(
        "claims nobody knows of",
        "jobs/rounds.py",
        "await self._give_back_unknown(member, found.held)",
        "pass",
        "tests/chaos/test_odd_moments.py",
    ),
    Mutant(
        "jobs blamed for a refused settle",
        "jobs/source.py",
        "if is_about_data(error.__cause__):",
        "if True:",
        "tests/chaos/test_odd_moments.py",
    ),
    Mutant(
        "no timer on the next due time",
        "jobs/source.py",
        "min(pause, self._claimer.next_look_in)",
        "pause",
        "tests/postgres/test_notify.py",
    ),
    Mutant(
        "a zombie that is not told",
        "jobs/source.py",
        "self._facts.emit(JobClaimLost(",
        "(lambda fact: None)(JobClaimLost(",
        "tests/chaos/test_faults_of_the_database.py::"
        "test_a_failover_forgets_the_last_commits_and_what_rests_on_them_is_void",
    ),
    Mutant(
        "a charged hand-back",
        "jobs/settle.py",
        "attempt = job.attempt - (taken.kind in ('handed_back', 'snoozed'))::integer",
        "attempt = job.attempt",
        SETTLE,
    ),
    Mutant(
        "a locked row that holds up the others",
        "jobs/source.py",
        "isinstance(error.__cause__, psycopg.errors.LockNotAvailable)",
        "False",
        "tests/chaos/test_faults_of_transactions.py",
    ),
    Mutant(
        "an outcome that cannot be stored and ends the worker",
        "jobs/source.py",
        "            return [outcome]\n",
        "            raise error\n",
        "tests/chaos/test_faults_of_transactions.py",
    ),
    Mutant(
        "bodies that wait for each other's connections",
        "jobs/worker.py",
        ", transactions=transactions, notes=self._notes)",
        ", notes=self._notes)",
        RUNNING,
    ),
    Mutant(
        "reports through the user's pool",
        "jobs/worker.py",
        "(self._apart, database) if database.is_users else (database, self._apart)",
        "(database, database) if database.is_users else (database, self._apart)",
        RUNNING,
    ),
    Mutant(
        "what may begin once handed back by a stop",
        "jobs/source.py",
        "if not self._only_once(job.task):",
        "if True:",
        "tests/flows/test_signal_to_exit.py",
    ),
    Mutant(
        "what may begin once rescued",
        "jobs/rescue.py",
        "coalesce(job.lost_limit, %(lost_limit)s)",
        "%(lost_limit)s",
        "tests/flows/test_signal_to_exit.py",
    ),
    Mutant(
        "what may begin once begun by who knows better",
        "jobs/worker.py",
        "if limit is not None and job.losses >= limit:",
        "if False:",
        "tests/flows/test_signal_to_exit.py",
    ),
]
