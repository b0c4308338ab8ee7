"""Guards of leadership: who may lead, until when, and whose work counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MEMBERS = "tests/leases/test_members.py"
DEADLINE = "tests/leases/test_deadline.py"
LEADERSHIP = "tests/leases/test_leadership.py"
CUT_OFF = "tests/chaos/test_leadership_cut_off.py"
HANDOVER = "tests/chaos/test_leadership_handover.py"
SERVER = "tests/chaos/test_leadership_server.py"
SINGLETONS = "tests/leases/test_singletons.py"
LOCK = "tests/leases/test_lock.py"
EXEC = "tests/cli/test_leaders.py"
ROLES = "tests/postgres/test_roles.py"
PROGRESS = "tests/leases/test_progress.py"
DOUBT = "tests/leases/test_doubt.py"
MEMBERSHIP = "tests/leases/test_membership.py"
PRUNE = "tests/leases/test_prune.py"
NEIGHBOURS = "tests/leases/test_neighbours.py"

MUTANTS = [
    Mutant(
        "a suspicion that is not counted up to the door",
        "leases/members.py",
        "peer.suspected_at < %(let_in_at)s::timestamptz - %(grace)s",
        "peer.suspected_at < statement_timestamp() - %(grace)s and %(let_in_at)s::timestamptz is not null",
        MEMBERS,
    ),
    Mutant(
        "death without knocking at the door",
        "leases/members.py",
        "%(let_in_at)s::timestamptz - %(grace)s",
        "coalesce(%(let_in_at)s::timestamptz, statement_timestamp()) - %(grace)s",
        SERVER,
    ),
    Mutant(
        "a deadline through a crash",
        "leases/trust.py",
        "min(self._lease_ends, asked_at + self._grace)",
        "self._lease_ends",
        DEADLINE,
    ),
    Mutant(
        "a deadline that comes back after it has passed",
        "leases/trust.py",
        "if self.left <= 0:",
        "if False:",
        DEADLINE,
    ),
    Mutant("nobody knocks", "leases/control.py", "self._door.knock()", "pass", HANDOVER),
    Mutant(
        "no deadline of one's own",
        "leases/control.py",
        "return self._trust.left if member == self.member else 0.0",
        "return 60.0 if member == self.member else 0.0",
        CUT_OFF,
    ),
    Mutant(
        "what is led unknowingly while waiting",
        "leases/leads.py",
        "if not self._trying else ()",
        "if not self._trying and not self._seats else ()",
        LEADERSHIP,
    ),
    Mutant(
        "stale sessions left inside",
        "leases/terms.py",
        "pg_terminate_backend(inside.pid)",
        "inside.pid",
        CUT_OFF,
    ),
    Mutant(
        "an epoch behind the clock",
        "postgres/migrations/0004_leadership.sql",
        "greatest(last + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint)",
        "last + 1",
        LEADERSHIP,
    ),
    Mutant(
        "a resignation that holds up the beat",
        "leases/terms.py",
        "the beat is behind us\n            for update skip locked",
        "the beat is behind us\n            for update",
        f"{LEADERSHIP}::test_a_resignation_waits_for_fenced_work_and_holds_up_nothing_else",
    ),
    Mutant(
        "a resignation that waits for itself",
        "leases/term.py",
        "        self._refuse_inside()\n        await",
        "        await",
        f"{LEADERSHIP}::test_a_term_is_not_resigned_inside_its_own_transaction",
    ),
    Mutant(
        "sessions that one has no right to end",
        "leases/terms.py",
        "case when inside.may_end then pg_terminate_backend(inside.pid) end",
        "pg_terminate_backend(inside.pid)",
        f"{ROLES}::test_a_session_that_one_has_no_right_to_end_is_waited_for_and_told_of_once",
    ),
    Mutant(
        "a hindrance told with every try",
        "leases/leads.py",
        "if is_news:",
        "if True:",
        f"{ROLES}::test_a_session_that_one_has_no_right_to_end_is_waited_for_and_told_of_once",
    ),
    Mutant(
        "the gone are never forgotten",
        "leases/control.py",
        "if random.random() < _PRUNE_SHARE:",
        "if False:",
        "tests/leases/test_prune.py",
    ),
    Mutant(
        "a bell that keeps who rings waiting",
        "leases/bell.py",
        "self._rope.setblocking(False)",
        "pass",
        "tests/leases/test_bell.py",
    ),
    Mutant(
        "a leader who steps down off the record",
        "leases/leaders.py",
        'yield record(actor, "resign", {"name": name, "epoch": leader.epoch, "force": force})',
        "pass",
        f"{EXEC}::test_who_had_a_leader_step_down_is_on_record",
    ),
    Mutant(
        "a singleton that is waited for although it is to be skipped",
        "leases/singletons.py",
        'if singleton.on_held == "wait":',
        "if True:",
        f"{SINGLETONS}::test_one_that_is_to_be_skipped_is_not_waited_for",
    ),
    Mutant(
        "a singleton held elsewhere that does not end its worker",
        "leases/singletons.py",
        'if singleton.on_held == "exit":',
        "if False:",
        f"{SINGLETONS}::test_a_worker_that_is_to_exit_when_another_leads_ends_with_3_and_says_who_does",
    ),
    Mutant(
        "a lost singleton that does not end its worker",
        "leases/singletons.py",
        'if singleton.on_held == "exit":',
        "if False:",
        f"{SINGLETONS}::test_a_worker_that_is_to_exit_does_so_when_its_term_is_lost_too",
        occurrence=1,
    ),
    Mutant(
        "singletons that pile up",
        "leases/singletons.py",
        "if names := [name for name in wanted if name in self._terms]:",
        "if names := wanted[:0]:",
        f"{SINGLETONS}::test_several_spread_over_the_workers_and_then_stay_where_they_are",
    ),
    Mutant(
        "singletons that never come to rest",
        "leases/terms.py",
        "where its.member = waiting.id) + 2",
        "where its.member = waiting.id) + 1",
        f"{SINGLETONS}::test_several_spread_over_the_workers_and_then_stay_where_they_are",
    ),
    Mutant(
        "a singleton that fails at an even pace",
        "leases/singletons.py",
        "_FIRST_PAUSE * 2 ** (failures - 1)",
        "_FIRST_PAUSE",
        f"{SINGLETONS}::test_one_that_fails_or_returns_is_started_again_under_its_term_after_a_growing_pause",
    ),
    Mutant(
        "a singleton whose failures are never forgiven",
        "leases/singletons.py",
        "failures = 1 if boottime() - since > _WELL_SECONDS else failures + 1",
        "failures += 1",
        f"{SINGLETONS}::test_one_that_was_well_for_long_begins_with_a_short_pause",
    ),
    Mutant(
        "a term given up before its body has ended",
        "leases/leads.py",
        "if each[0] not in known} - self._open",
        "if each[0] not in known}",
        f"{SINGLETONS}::test_nobody_else_begins_before_a_body_that_was_told_to_stop_has_ended",
    ),
    Mutant(
        "who stepped down is the first to try",
        "leases/singletons.py",
        "await asyncio.sleep(_ASIDE_SECONDS)",
        "pass",
        f"{SINGLETONS}::test_who_was_asked_to_step_down_lets_another_lead",
    ),
    Mutant(
        "a block that ends and does not resign",
        "leases/leadership.py",
        "await asyncio.shield(self._term.give_up(self._term.patience))",
        "pass",
        f"{LEADERSHIP}::test_every_term_has_a_greater_epoch_and_its_end_is_on_record",
    ),
    Mutant(
        "locks of all schemas alike",
        "leases/lock.py",
        'lock_key(database.schema, "lock", name)',
        'lock_key("", "lock", name)',
        f"{LOCK}::test_locks_are_apart_from_those_of_others_in_the_database",
    ),
    Mutant(
        "a failed section that seems committed",
        "leases/lock.py",
        "await self._own.run(PROVE.query(read=nothing), self._database.schema)",
        "pass",
        f"{LOCK}::test_a_section_in_which_a_statement_failed_does_not_end_as_if_it_were_committed",
    ),
    Mutant(
        "the limit of a wait left in the section",
        "leases/lock.py",
        "select set_config('lock_timeout', limited.usual, true) from limited, taken",
        "select limited.usual from limited, taken",
        f"{LOCK}::test_what_is_set_for_the_wait_is_not_set_for_the_section",
    ),
    Mutant(
        "a program that outlives its term",
        "runtime/led.py",
        "os.killpg(keeper.pid, number)",
        "os.kill(keeper.pid, number)",
        f"{EXEC}::test_a_program_and_what_it_has_started_end_when_the_term_is_lost",
    ),
    Mutant(
        "a program that outlives the process that leads",
        "runtime/keeper.py",
        "if not said:\n            break",
        "if not said:\n            continue",
        f"{EXEC}::test_a_program_and_what_it_has_started_die_with_the_process_that_leads",
    ),
    Mutant(
        "a keeper that believes a frozen process",
        "runtime/led.py",
        "boottime() + term.control.trusted_for(term.member) + lost",
        "boottime() + 3600",
        f"{EXEC}::test_a_program_ends_in_time_when_the_process_that_leads_is_frozen",
    ),
    Mutant(
        "a program that outlives its keeper",
        "runtime/led.py",
        "asyncio.wait([ended, stop, unkept],",
        "asyncio.wait([ended, stop],",
        f"{EXEC}::test_a_program_does_not_outlive_its_keeper",
    ),
    Mutant(
        "a hang-up that ends rota alone",
        "runtime/led.py",
        "_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}",
        "_STOPS = {signal.SIGTERM, signal.SIGINT}",
        EXEC,
    ),
    Mutant(
        "a request to whoever leads by then",
        "leases/terms.py",
        "and lease.epoch = %(epoch)s\n          and lease.member is not null",
        "and lease.member is not null",
        EXEC,
    ),
    Mutant(
        "a loss without its reason",
        "leases/terms.py",
        "lost_because = gone.end_reason",
        "lost_because = null",
        EXEC,
    ),
    Mutant(
        "a beat that waits for someone's lock",
        "leases/members.py",
        "for update of term skip locked",
        "for update of term",
        PROGRESS,
    ),
    Mutant(
        "progress as young as the beat that carries it",
        "leases/members.py",
        "statement_timestamp() - make_interval(secs => report.age) as at",
        "statement_timestamp() as at",
        PROGRESS,
    ),
    Mutant(
        "leases that expire because a clock was set",
        "leases/members.py",
        "              and not (select clock.stepped from clock)\n",
        "",
        MEMBERS,
    ),
    Mutant(
        "a step of the clock forgotten at once",
        "leases/control.py",
        "max(self._session.opened_at, self._stepped_at)",
        "max(self._session.opened_at, 0.0)",
        DEADLINE,
    ),
    Mutant(
        "a note that cannot be stored",
        "leases/progress.py",
        '_UNPRINTABLE.sub(" ", str(note)[:_LONGEST_NOTE])',
        "str(note)",
        PROGRESS,
    ),
    Mutant(
        "news that are forgotten with the old",
        "leases/progress.py",
        "if self._reports.get(report.name) is report:",
        "if report.name in self._reports:",
        PROGRESS,
    ),
    Mutant("a doubt that nobody looks into", "leases/control.py", "            or session.still_stands\n", "", DOUBT),
    Mutant(
        "a leader on a copy of the database",
        "leases/control.py",
        "        check_identity(self._session",
        "        (lambda *_: 0)(self._session",
        MEMBERSHIP,
    ),
    Mutant(
        "a fork that leads",
        "leases/control.py",
        "        check_fork(self._pid)\n",
        "",
        f"{LEADERSHIP}::test_a_forked_child_leads_nothing",
    ),
    Mutant(
        "a look at the socket that sees nothing", "leases/session.py", "return not line.poll(0) and", "return", DOUBT
    ),
    Mutant("a sleep of the machine forgotten", "leases/session.py", " or _asleep() - self._asleep > 0.1", "", DOUBT),
    Mutant(
        "an answer taken for a look at its arrival",
        "leases/session.py",
        "max(connection.well_at, asked_at)",
        "boottime()",
        DOUBT,
    ),
    Mutant(
        "an answer that is no look",
        "leases/session.py",
        "max(connection.well_at, asked_at)",
        "connection.well_at",
        DOUBT,
    ),
    Mutant(
        "questions that keep the beat waiting", "leases/questions.py", "while boottime() < until", "while True", DOUBT
    ),
    Mutant(
        "a worker that ends when it may not ask",
        "leases/singletons.py",
        "contextlib.suppress(RotaError):",
        "contextlib.suppress(DatabaseUnavailable):",
        SINGLETONS,
    ),
    Mutant(
        "a dead member joined again and again",
        "leases/membership.py",
        "self._members = [member for member in self._members if not member.gone]",
        "pass",
        MEMBERSHIP,
    ),
    Mutant(
        "a place left in threads that others use up",
        "leases/membership.py",
        "asyncio.wrap_future(_in_thread(self.leave_sync))",
        "asyncio.to_thread(self.leave_sync)",
        MEMBERSHIP,
    ),
    Mutant(
        "a word of leaving from who never stood by",
        "leases/leads.py",
        "if last and seat.stands_by_as is not None:",
        "if last:",
        MEMBERSHIP,
    ),
    Mutant("a section inside itself", "leases/lock.py", "if section in _SECTIONS", "if False", LOCK),
    Mutant(
        "locks that use up the connections of fenced work",
        "app.py",
        "Leads(self._membership, fenced,",
        "Leads(self._membership, self._held,",
        LOCK,
    ),
    Mutant(
        "a beat that waits to forget",
        "leases/prune.py",
        "for update of lease skip locked",
        "for update of lease",
        PRUNE,
    ),
    Mutant(
        "names forgotten at once",
        "leases/prune.py",
        "last.ended_at < statement_timestamp() - interval '30 days'",
        "last.ended_at is not null",
        PRUNE,
    ),
    Mutant(
        "a death next door that nobody looks into",
        "leases/control.py",
        "min(began + min(pause, self._ease.pause), self._look_at)",
        "began + min(pause, self._ease.pause)",
        NEIGHBOURS,
    ),
    Mutant(
        "a death that is told again and again",
        "leases/neighbours.py",
        "        self._dead.add(pid)\n",
        "",
        NEIGHBOURS,
    ),
]
