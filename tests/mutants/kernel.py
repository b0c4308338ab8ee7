"""Guards of the ground floor: members, sessions, the schema, the flow of work."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SETTLE = "tests/jobs/test_settle.py"
MEMBERS = "tests/leases/test_members.py"
EASE = "tests/leases/test_ease.py"
SCHEMA = "tests/postgres/test_schema.py"

MUTANTS = [
    Mutant(
        "a session replaced in silence",
        "postgres/session.py",
        "                    self._listener.ended()\n",
        "                    pass\n",
        "tests/postgres/test_listening.py",
    ),
    Mutant(
        "a token without a run",
        "postgres/migrations/0001_kernel.sql",
        "check ((state = 'running') = (token is not null)),",
        "",
        SETTLE,
    ),
    Mutant(
        "a slot given away while its body goes on",
        "service/consume.py",
        " - len(self._abandoned) - self._outlived",
        "",
        "tests/jobs/test_execute.py",
    ),
    Mutant("renewal of an ended member", "leases/members.py", "and member.ended_at is null", "", MEMBERS, 3),
    Mutant("attaching to an ended member", "leases/members.py", "and member.ended_at is null", "", MEMBERS, 0),
    Mutant(
        "renewal that keeps the suspicion", "leases/members.py", "suspected_at = null", "pid = member.pid", MEMBERS, 0
    ),
    Mutant(
        "death at first sight of a free lock",
        "leases/members.py",
        "peer.suspected_at < %(let_in_at)s::timestamptz - %(grace)s",
        "%(let_in_at)s::timestamptz is not null and %(grace)s is not null",
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
        "peer.suspected_at < %(let_in_at)s::timestamptz",
        "peer.suspected_at < coalesce(%(let_in_at)s::timestamptz, statement_timestamp())",
        MEMBERS,
    ),
    Mutant(
        "starting what came too late",
        "service/consume.py",
        " or not self._source.may_start()",
        "",
        "tests/service/test_consume.py",
    ),
    Mutant(
        "a body that cancels itself taken for ours",
        "service/consume.py",
        "return number in self._given_up or isinstance(error, KeyboardInterrupt)",
        "return isinstance(error, asyncio.CancelledError)",
        "tests/service/test_consume.py",
    ),
    *(
        Mutant(f"a session that listens {what}", file, old, new, "tests/postgres/test_listening.py")
        for what, file, old, new in (
            (
                "and misses what was read behind an answer",
                "postgres/session.py",
                "finally:\n                        if self._listener is not None:",
                "finally:\n                        if False:",
            ),
            ("behind a pooler", "postgres/session.py", " and is_direct(connection)", ""),
            ("and whose end nobody is told of", "postgres/listening.py", "self.ended()", "pass"),
            (
                "and leaves the number of its socket to the next when it ends",
                "postgres/listening.py",
                "loop.remove_reader(socket)",
                "pass",
            ),
            (
                "and leaves that to the next when it is closed",
                "postgres/connection.py",
                "asyncio.get_running_loop().remove_reader(self.pgconn.socket)",
                "pass",
            ),
            ("and listens on when it is given up", "postgres/conversation.py", "listen = None  #", "pass  #"),
            (
                "for a worker that waits for its next look when that session ends",
                "jobs/worker.py",
                "ended=lambda: self._source.wake()",
                "ended=lambda: None",
            ),
        )
    ),
    *(
        Mutant(f"a conversation {what}", f"postgres/{file}.py", old, new, "tests/postgres/test_conversation.py")
        for what, file, old, new in (
            (
                "on a connection that someone has closed",
                "conversation",
                "if connection.status == ConnStatus.BAD:",
                "if False:",
            ),
            ("that never writes on", "conversation", "if bool(wanted & Wait.W) is not writes:", "if False:"),
            ("that is left to run on the server", "connection", "await self._cut_short(gen)", "pass"),
            (
                "that keeps a prompt connection",
                "connection",
                "            if self.prompt:\n                self.pgconn.finish()",
                "            if False:\n                pass",
            ),
        )
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
        "acting past the local deadline",
        "leases/control.py",
        "return self._session.stands and self._trust.left > 0",
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
        "leaving before the work is handed back",
        "working.py",
        "await self._worker.run(control, (self._singletons, self._polling), drain=drain, grace=grace)",
        "await asyncio.gather("
        "self._worker.run(control, (self._singletons, self._polling), drain=drain, grace=grace), stages.stop())",
        "tests/flows/test_signal_to_exit.py",
    ),
    Mutant(
        "a connection the server closed",
        "postgres/loop_pool.py",
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
        "a job that was named held at ease",
        "jobs/source.py",
        "                control.take_hold()\n                return jobs\n",
        "                return jobs\n",
        EASE,
    ),
    Mutant(
        "a job held at ease",
        "jobs/source.py",
        "        if jobs:\n            control.take_hold()\n",
        "        if jobs:\n",
        EASE,
    ),
    Mutant(
        "a guest that waits for the next beat to be asked",
        "leases/membership.py",
        "                member.joined.result().take_hold()",
        "                pass",
        EASE,
    ),
    Mutant(
        "a rest that nothing ends",
        "leases/control.py",
        "        if self._ease.end():\n            self._bell.ring()\n",
        "        self._ease.end()\n",
        EASE,
    ),
    Mutant(
        "a worker at ease whatever it holds",
        "jobs/worker.py",
        "at_ease=lambda: self._consumer.idle and (self._source.waits or self._consumer.paused),",
        "at_ease=lambda: True,",
        EASE,
    ),
    Mutant(
        "a lease too short for such a rest",
        "leases/ease.py",
        "min(_LONGEST_SECONDS, lease / _BEATS_PER_LEASE)",
        "_LONGEST_SECONDS",
        EASE,
    ),
    Mutant(
        "one who hears others speaks all the same",
        "postgres/notify.py",
        "        self._last_at = boottime()\n        self._waits = False\n        began",
        "        self._waits = False\n        began",
        "tests/postgres/test_notify.py",
    ),
]
