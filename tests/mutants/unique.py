"""Guards of unique jobs, of retrying, and of the wake-up."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

QUEUE = "postgres/migrations/0002_job_queue.sql"
PUT = "postgres/migrations/0009_collapse.sql"
RETENTION = "postgres/migrations/0003_retention.sql"
DEAD = "tests/jobs/test_dead.py"
UNIQUE = "tests/jobs/test_unique.py"

MUTANTS = [
    Mutant(
        "unique keys without their lock",
        PUT,
        "on conflict (key) do update set key = excluded.key",
        "on conflict (key) do nothing",
        UNIQUE,
    ),
    Mutant(
        "a repeated call that adds a twin",
        PUT,
        "own := coalesce(last.call = (new #>> '{unique,call}')::uuid, false);",
        "own := false;",
        UNIQUE,
    ),
    Mutant(
        "arguments shown to whoever may only enqueue",
        PUT,
        "'{saved,args,result}'",
        "'{saved}'",
        "tests/postgres/test_roles.py",
    ),
    Mutant(
        "keys of later parts not locked",
        PUT,
        "from jsonb_array_elements(jobs || later) as spec",
        "from jsonb_array_elements(jobs) as spec",
        UNIQUE,
    ),
    Mutant("a key that stays ended", PUT, ",\n                    ended = null", "", UNIQUE),
    Mutant(
        "nobody woken for jobs of a transaction",
        PUT,
        "    perform {schema}.notify('{wake_channel}', queues.queue)",
        "    perform 1",
        "tests/flows/test_in_your_transaction.py",
    ),
    Mutant(
        "a wake-up that fails the work it tells of",
        QUEUE,
        "case when pg_notification_queue_usage() < 0.9 then pg_notify(channel, payload) end",
        "pg_notify(channel, payload)",
        "tests/chaos/test_faults_of_resources.py",
    ),
    Mutant(
        "later parts not named", "jobs/enqueue.py", "later = () if added else new[len(batch) :]", "later = ()", UNIQUE
    ),
    Mutant("a twin in a later part", "jobs/enqueue.py", "enumerate(new, before)", "enumerate(new)", UNIQUE),
    Mutant(
        "a settled job retried without its key",
        "jobs/repeat.py",
        '    yield LOCK_KEY.query({"id": id}, read=nothing)\n',
        "",
        DEAD,
    ),
    Mutant(
        "a settled job retried beside its twin",
        "jobs/repeat.py",
        "          and not exists (select from {schema}.jobs as live where live.unique_key = done.unique_key)\n",
        "",
        DEAD,
    ),
    Mutant("a key that stays ended after a retry", "jobs/repeat.py", ",\n            ended = null", "", DEAD),
    Mutant("a key that stays ended after a letter", "jobs/resolve.py", ",\n            ended = null", "", DEAD),
    Mutant("history dropped before its keys are noted", RETENTION, "            noted := false;\n", "", UNIQUE),
    Mutant(
        "history dropped with keys half noted",
        RETENTION,
        "            noted := noted and not unfinished;\n",
        "",
        UNIQUE,
    ),
    Mutant(
        "keys of cancelled jobs not noted",
        RETENTION,
        "            where held.key = gone.unique_key\n              and held.job_id = gone.id",
        "            where false",
        UNIQUE,
    ),
    Mutant(
        "rows that vanish while they are moved to a new partition",
        RETENTION,
        "lock table only {schema}.history in access exclusive mode",
        "lock table only {schema}.history in share mode",
        "tests/jobs/test_retention.py",
    ),
    Mutant(
        "a replaced key forgotten before the repeat comes",
        PUT,
        "keep_until = greatest(last.keep_until, clock + interval '1 hour')",
        "keep_until = last.keep_until",
        UNIQUE,
    ),
    Mutant(
        "a repeated replacement that begins anew",
        PUT,
        "not held.own and new.job #>> '{unique,conflict}'",
        "new.job #>> '{unique,conflict}'",
        UNIQUE,
    ),
    Mutant(
        "errors of the call that was replaced",
        PUT,
        "delete from {schema}.attempts as attempt\n                where attempt.job_id = (stored ->> 'id')::bigint;",
        "perform 1;",
        UNIQUE,
    ),
    Mutant(
        "losses of the call that was replaced",
        PUT,
        "                set attempt = 0,\n                    losses = 0\n",
        "                set attempt = 0\n",
        UNIQUE,
    ),
    Mutant(
        "twins of a repeated call",
        PUT,
        "    own := own and last.turn >= (new #>> '{unique,turn}')::integer;\n",
        "",
        UNIQUE,
    ),
    Mutant(
        "parts that are committed one by one",
        "postgres/foreign.py",
        "alone = await self._commits_each()",
        "alone = False",
        "tests/flows/test_in_your_transaction.py",
    ),
    Mutant(
        "parts left behind by a refusal",
        "postgres/foreign.py",
        "await (self.rollback() if alone else self.run(ROLL_BACK.query(read=nothing), schema))",
        "pass",
        "tests/flows/test_in_your_transaction.py",
    ),
]
