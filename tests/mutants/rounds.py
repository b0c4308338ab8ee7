"""Guards of the scheduler's rounds: what waits, what is made up for, what holds up nobody."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

HINDRANCES = "tests/schedules/test_hindrances.py"
OVERLAP = "tests/schedules/test_overlap.py"
RELEASE = "tests/schedules/test_release.py"
PUT = "tests/schedules/test_put.py"
SCHEDULER = "tests/schedules/test_scheduler.py"
PREFIX = "tests/schedules/test_prefix.py"
TRIGGERS = "tests/schedules/test_triggers.py"
ROLES = "tests/postgres/test_roles.py"

MUTANTS = [
    Mutant(
        "a leader that judges what it cannot read",
        "schedules/scheduler.py",
        " or is_coded(due.args)",
        "",
        HINDRANCES,
    ),
    Mutant(
        "an outage not made up for behind a run",
        "postgres/migrations/0005_schedules.sql",
        "else cardinality(plan.slots) - plan.made_up",
        "else cardinality(plan.slots)",
        SCHEDULER,
    ),
    Mutant(
        "one make-up run after the other",
        "postgres/migrations/0005_schedules.sql",
        "when busy.waits and known.misfire = 'once' then cardinality(plan.slots)",
        "when false then 0",
        SCHEDULER,
    ),
    Mutant(
        "a child beside its own run",
        "postgres/migrations/0005_schedules.sql",
        """child.overlap = 'skip' and (
                eats.turn > 1""",
        """false and (
                eats.turn > 1""",
        OVERLAP,
    ),
    Mutant(
        "an event beside its own run",
        "postgres/migrations/0005_schedules.sql",
        """where known.kind = 'event'
          and known.overlap = 'skip'""",
        "where false",
        OVERLAP,
    ),
    Mutant(
        "conclusions that wait behind a locked schedule",
        "postgres/migrations/0005_schedules.sql",
        "        without := without || held;",
        "        return;",
        HINDRANCES,
    ),
    Mutant(
        "a round without an end",
        "schedules/scheduler.py",
        "self._plans(session, until)",
        "self._plans(session, self._until)",
        HINDRANCES,
    ),
    Mutant(
        "one conclusion per round",
        "schedules/scheduler.py",
        "if not concluded.taken or boottime() > until:",
        "if True:",
        HINDRANCES,
    ),
    Mutant(
        "ends that anyone may forge",
        "postgres/migrations/0005_schedules.sql",
        """revoke execute on function {schema}.note_schedule_end() from public;
""",
        "",
        ROLES,
    ),
    Mutant(
        "pollers that anyone may wake",
        "postgres/migrations/0006_pollers.sql",
        """revoke execute on function {schema}.wake_poller() from public;
""",
        "",
        ROLES,
    ),
    Mutant(
        "successes that pile up",
        "postgres/migrations/0005_schedules.sql",
        """          and feed.job_id <= pile.last
""",
        """          and false
""",
        OVERLAP,
    ),
    Mutant(
        "a row that cannot be read",
        "schedules/store.py",
        """    except (ValueError, RecursionError):
        return""",
        """    except KeyError:
        return""",
        PUT,
    ),
    Mutant(
        "a pause before the run that waits",
        "postgres/migrations/0005_schedules.sql",
        "where waits.schedule = ended.schedule and waits.job_id is null)\n                then",
        "where false)\n                then",
        RELEASE,
    ),
    Mutant(
        "a run that is younger than who asks",
        "postgres/migrations/0005_schedules.sql",
        "greatest({schema}.now(), live.created_at)",
        "{schema}.now()",
        RELEASE,
    ),
    Mutant(
        "a leader that looks as it likes",
        "schedules/scheduler.py",
        "pause = self._poll or _POLL_SECONDS",
        "pause = _POLL_SECONDS",
        RELEASE,
    ),
    Mutant(
        "a waiting run that is not released by an end",
        "postgres/migrations/0005_schedules.sql",
        """    skipped := skipped || {schema}.release_slots(ours, most);
""",
        "",
        RELEASE,
    ),
    Mutant(
        "a resume that nobody is told of",
        "postgres/migrations/0005_schedules.sql",
        "(old.paused_at is not null and new.paused_at is null)",
        "false",
        RELEASE,
    ),
    Mutant(
        "an overlap that becomes allowed",
        "postgres/migrations/0005_schedules.sql",
        "(old.overlap <> 'allow' and new.overlap = 'allow')",
        "false",
        RELEASE,
    ),
    Mutant(
        "a paused schedule whose waiting runs begin",
        "schedules/due.py",
        """        where known.paused_at is null
          and (known.overlap""",
        "        where (known.overlap",
        RELEASE,
    ),
    Mutant(
        "names in the order of the database",
        "postgres/migrations/0005_schedules.sql",
        '    name text collate "C" primary key',
        "    name text primary key",
        PREFIX,
    ),
    Mutant(
        "two triggers at the same moment",
        "postgres/migrations/0005_schedules.sql",
        "else job.due_at <= greatest(clock, job.created_at)",
        "else job.due_at <= clock",
        TRIGGERS,
    ),
]
