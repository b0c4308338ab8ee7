"""Guards of leadership: who may lead, until when, and whose work counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MEMBERS = "tests/leases/test_members.py"
DEADLINE = "tests/leases/test_deadline.py"
LEADERSHIP = "tests/leases/test_leadership.py"
CUT_OFF = "tests/chaos/test_leadership_cut_off.py"
HANDOVER = "tests/chaos/test_leadership_handover.py"
SERVER = "tests/chaos/test_leadership_server.py"

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
]
