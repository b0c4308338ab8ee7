"""The guards of Rota, and for each the tests that must fail without it. `make teeth` tries them: see teeth.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "rota"
SETTLE = "tests/jobs/test_settle.py"
RUNNING = "tests/jobs/test_running.py"
UNIQUE = "tests/jobs/test_unique.py"
MEMBERS = "tests/leases/test_members.py"
SCHEMA = "tests/postgres/test_schema.py"


@dataclass(frozen=True)
class Mutant:
    """A copy of the package in which one text is replaced: the one of this number, where there are several."""

    what: str
    file: str
    old: str
    new: str
    tests: str
    occurrence: int = 0

    def text(self) -> str:
        """The file without the guard."""
        parts = (PACKAGE / self.file).read_text().split(self.old)
        cut = self.occurrence + 1
        assert len(parts) > cut, f"{self.what}: the guard is not in {self.file} any more"
        return self.old.join(parts[:cut]) + self.new + self.old.join(parts[cut:])


MUTANTS = [
    Mutant("success without the token", "jobs/settle.py", "and job.token = outcome.token", "", SETTLE),
    Mutant("other outcomes without the token", "jobs/settle.py", "and outcome.token = job.token", "", SETTLE),
    Mutant(
        "a token without a run",
        "postgres/migrations/0001_kernel.sql",
        "check ((state = 'running') = (token is not null)),",
        "",
        SETTLE,
    ),
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
    Mutant(
        "a cancelled job that is rescued",
        "jobs/rescue.py",
        "when job.cancel_requested_at is not null then 'cancelled'",
        "",
        "tests/jobs/test_cancel.py",
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
    Mutant("a claim of newer versions", "jobs/claim.py", "job.version = 1\n                  or ", "true or ", SETTLE),
    Mutant("suspects claimed with the rest", "jobs/claim.py", "and job.losses = 0", "", SETTLE),
    Mutant(
        "suspects let in side by side",
        "jobs/suspects.py",
        "return 1 if self._inside else _ANY",
        "return _ANY",
        "tests/jobs/test_suspects.py",
    ),
    Mutant(
        "unique keys without their lock",
        "postgres/migrations/0002_job_queue.sql",
        "on conflict (key) do update set key = excluded.key",
        "on conflict (key) do nothing",
        UNIQUE,
    ),
    Mutant(
        "unique keys locked in any order",
        "postgres/migrations/0002_job_queue.sql",
        "    order by key\n    on conflict (key)",
        "    on conflict (key)",
        "tests/jobs/test_isolation.py",
    ),
    Mutant(
        "a repeated call that adds a twin",
        "postgres/migrations/0002_job_queue.sql",
        "own := coalesce(last.call = (new #>> '{unique,call}')::uuid, false);",
        "own := false;",
        UNIQUE,
    ),
    Mutant(
        "rows that vanish while they are moved to a new partition",
        "postgres/migrations/0003_retention.sql",
        "lock table only {schema}.history in access exclusive mode",
        "lock table only {schema}.history in share mode",
        "tests/jobs/test_retention.py",
    ),
    Mutant(
        "a slot given away while its body goes on",
        "service/consume.py",
        " - len(self._abandoned) - self._outlived",
        "",
        "tests/jobs/test_execute.py",
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
    Mutant("a claim by an ended member", "jobs/claim.py", "member.ended_at is null)", "true)", MEMBERS),
    Mutant("rescue from the living", "jobs/rescue.py", "where member.ended_at is not null", "", SETTLE),
    Mutant(
        "losses that never bury",
        "jobs/rescue.py",
        "when job.losses + 1 >= coalesce(job.lost_limit, %(lost_limit)s) then 'dead'",
        "when %(lost_limit)s < 0 then 'dead'",
        SETTLE,
    ),
    Mutant("renewal of an ended member", "leases/members.py", "and member.ended_at is null", "", MEMBERS, 0),
    Mutant("attaching to an ended member", "leases/members.py", "and member.ended_at is null", "", MEMBERS, 1),
    Mutant(
        "renewal that keeps the suspicion", "leases/members.py", "suspected_at = null", "pid = member.pid", MEMBERS, 0
    ),
    Mutant(
        "death at first sight of a free lock",
        "leases/members.py",
        "peer.suspected_at < statement_timestamp() - %(grace)s",
        "%(grace)s is not null",
        MEMBERS,
    ),
    Mutant(
        "death in spite of a lock that is held",
        "leases/members.py",
        "and peer.lock_key <> all (array(select key from held))",
        "",
        MEMBERS,
        1,
    ),
    Mutant(
        "expiry believed by a peer that was away",
        "leases/members.py",
        "and %(settled)s",
        "and %(settled)s is not null",
        MEMBERS,
    ),
    Mutant(
        "locks of another server",
        "leases/members.py",
        "and peer.server_started_at = pg_postmaster_start_time()",
        "",
        MEMBERS,
    ),
    Mutant(
        "free locks believed by a peer that was cut off",
        "leases/members.py",
        "and %(steady)s",
        "and %(steady)s is not null",
        MEMBERS,
    ),
    Mutant(
        "starting what came too late",
        "service/consume.py",
        " and self._source.may_start():",
        ":",
        "tests/service/test_consume.py",
    ),
    Mutant(
        "a body that cancels itself taken for ours",
        "service/consume.py",
        "if number in self._given_up or isinstance(error, KeyboardInterrupt):",
        "if isinstance(error, asyncio.CancelledError):",
        "tests/service/test_consume.py",
    ),
    Mutant(
        "claims nobody knows of",
        "jobs/worker.py",
        "await self._give_back_unknown()",
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
        "a thousand open files",
        "postgres/connection.py",
        "selectors.DefaultSelector()",
        "selectors.SelectSelector()",
        "tests/chaos/test_odd_moments.py",
    ),
    Mutant(
        "a due time without end",
        "postgres/migrations/0001_kernel.sql",
        "check (due_at between '0001-01-02 UTC' and '9999-12-30 UTC')",
        "check (true)",
        SETTLE,
    ),
    Mutant(
        "no timer on the next due time",
        "jobs/source.py",
        "min(self._pause, self._claimer.next_due_in)",
        "self._pause",
        "tests/postgres/test_notify.py",
    ),
    Mutant(
        "acting past the local deadline",
        "leases/control.py",
        "return self._connection is not None and boottime() < self._deadline",
        "return True",
        "tests/chaos/test_control_session.py",
    ),
    Mutant(
        "no end to a statement",
        "postgres/connection.py",
        "time.monotonic() > until",
        "False",
        "tests/chaos/test_control_session.py",
    ),
    Mutant(
        "a zombie that is not told",
        "jobs/source.py",
        "self._facts.emit(JobClaimLost(",
        "(lambda fact: None)(JobClaimLost(",
        "tests/chaos/test_frozen_worker.py",
    ),
    Mutant(
        "leaving before the work is handed back",
        "app.py",
        "await worker.run(control, drain=drain, grace=grace)",
        "await asyncio.gather(worker.run(control, drain=drain, grace=grace), asyncio.to_thread(control.stop))",
        "tests/flows/test_signal_to_exit.py",
    ),
    Mutant(
        "a charged hand-back",
        "jobs/settle.py",
        "attempt = job.attempt - (taken.kind in ('handed_back', 'snoozed'))::integer",
        "attempt = job.attempt",
        SETTLE,
    ),
    Mutant(
        "a connection the server closed",
        "postgres/pool.py",
        "check=_check,",
        "",
        "tests/postgres/test_connection.py",
    ),
    Mutant(
        "migrations side by side",
        "postgres/schema.py",
        'connection.execute("select pg_advisory_xact_lock(%s)", [lock_key(schema, "lock", "migrate")])',
        "pass",
        SCHEMA,
    ),
    Mutant(
        "a migration that makes others wait",
        "postgres/schema.py",
        "set local lock_timeout = '{_LOCK_TIMEOUT}'",
        "set local lock_timeout = 0",
        "tests/chaos/test_migrate_under_load.py",
    ),
    Mutant(
        "a copy of the database worked on",
        "app.py",
        "check_identity(await self.database.run(compare_identity()), self.settings.environment)",
        "",
        SCHEMA,
    ),
    Mutant(
        "a newer breaking schema worked on",
        "postgres/schema.py",
        "if mine is None and not done.compatible:",
        "if False:",
        SCHEMA,
    ),
    Mutant(
        "sockets shared over a fork",
        "postgres/connection.py",
        "if pid != os.getpid():",
        "if False:",
        "tests/postgres/test_connection.py",
    ),
    Mutant(
        "session settings behind a pooler",
        "postgres/connection.py",
        "case when pg_catalog.pg_backend_pid() = %(pid)s ",
        "case when %(pid)s::int is not null ",
        "tests/leases/test_pooler.py",
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
        ", transactions=transactions)",
        ")",
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
        "a wake-up that fails the work it tells of",
        "postgres/migrations/0002_job_queue.sql",
        "case when pg_notification_queue_usage() < 0.9 then pg_notify(channel, payload) end",
        "pg_notify(channel, payload)",
        "tests/chaos/test_faults_of_resources.py",
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
]
