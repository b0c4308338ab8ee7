"""Guards of the scheduler: one run per slot, overlap, what follows from what."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TABLES = "postgres/migrations/0005_schedules.sql"
SCHEDULER = "tests/schedules/test_scheduler.py"
HINDRANCES = "tests/schedules/test_hindrances.py"

MUTANTS = [
    Mutant(
        "a plan for a schedule that was changed since",
        TABLES,
        "on plan.name = known.name and plan.revision = known.revision and plan.next_at = known.next_at",
        "on plan.name = known.name and plan.next_at = known.next_at",
        SCHEDULER,
    ),
    Mutant(
        "a plan for a slot that was given out since",
        TABLES,
        "on plan.name = known.name and plan.revision = known.revision and plan.next_at = known.next_at",
        "on plan.name = known.name and plan.revision = known.revision",
        SCHEDULER,
    ),
    Mutant(
        "a plan carried out early",
        TABLES,
        """        where known.next_at <= clock
          and known.paused_at is null
        order by known.name
        for no key update of known skip locked""",
        """        where known.paused_at is null
        order by known.name
        for no key update of known skip locked""",
        SCHEDULER,
    ),
    Mutant(
        "a paused schedule given out",
        TABLES,
        """        where known.next_at <= clock
          and known.paused_at is null
        order by known.name
        for no key update of known skip locked""",
        """        where known.next_at <= clock
        order by known.name
        for no key update of known skip locked""",
        SCHEDULER,
    ),
    Mutant(
        "one slot twice",
        TABLES,
        "create unique index slots_once on {schema}.slots (schedule, slot_at) where cause in ('due', 'backfill');",
        "create unique index slots_once on {schema}.slots (schedule, slot_at, id) where cause in ('due', 'backfill');",
        SCHEDULER,
    ),
    Mutant(
        "a run beside another",
        TABLES,
        "when not (busy.live or busy.waits) then 0",
        "when true then 0",
        SCHEDULER,
    ),
    Mutant(
        "slots that come together, all at once",
        TABLES,
        "case when plan.beside or (given.turn = 1 and not plan.busy) then nextval(ids) end",
        "nextval(ids)",
        SCHEDULER,
    ),
    Mutant(
        "a child of a run that failed",
        TABLES,
        "    where ended.outcome = 'succeeded'\n      and child.paused_at is null",
        "    where child.paused_at is null",
        SCHEDULER,
    ),
    Mutant(
        "a child that waits for one of its parents only",
        TABLES,
        "select counted.child, min(counted.turns) as turns",
        "select counted.child, max(counted.turns) as turns",
        SCHEDULER,
    ),
    Mutant(
        "a pause that never begins",
        TABLES,
        "                then max(ended.ended_at)\n",
        "                then null\n",
        SCHEDULER,
    ),
    Mutant(
        "a broken schedule that stops the others",
        "schedules/plan.py",
        "    except RotaError as error:\n        problem = str(error)\n",
        "",
        SCHEDULER,
    ),
    Mutant(
        "arguments that are not looked at",
        "schedules/scheduler.py",
        "make_plan(each, self._check)",
        "make_plan(each, lambda due: None)",
        SCHEDULER,
    ),
    Mutant(
        "a drain that gives out nothing",
        "jobs/worker.py",
        "                await self._scheduler.catch_up()\n",
        "                pass\n",
        SCHEDULER,
    ),
    Mutant(
        "one row that stops every other",
        "schedules/plan.py",
        "    except Exception as error:",
        "    except ValueError as error:",
        HINDRANCES,
    ),
    Mutant(
        "a refusal that stops every other",
        "schedules/scheduler.py",
        "            if not is_about_data(error.__cause__):\n                raise\n",
        "            raise\n",
        HINDRANCES,
    ),
    Mutant(
        "a slot of the year one counted from",
        "schedules/plan.py",
        "    if first < due.now - _FARTHEST:",
        "    if False:",
        HINDRANCES,
    ),
    Mutant(
        "a drain without end", "schedules/scheduler.py", "self._until = self._until or horizon.now", "pass", HINDRANCES
    ),
    Mutant(
        "all slots in one statement", "schedules/scheduler.py", "if slots >= _BATCH_SLOTS:", "if False:", HINDRANCES
    ),
    Mutant(
        "locked rows that hide the others",
        "schedules/scheduler.py",
        "find_due(_BATCH, due[-1], until)",
        "find_due(_BATCH, None, until)",
        HINDRANCES,
    ),
    Mutant(
        "locked rows asked for all the time",
        "schedules/scheduler.py",
        "_LOCKED_SECONDS if horizon.due_in <= 0 else 0.0",
        "0.0",
        HINDRANCES,
    ),
    Mutant(
        "conclusions that wait for a lock",
        "postgres/migrations/0005_schedules.sql",
        "            order by known.name\n            for no key update skip locked\n",
        "            order by known.name\n            for no key update\n",
        HINDRANCES,
    ),
    Mutant(
        "a run for later in the way",
        "postgres/migrations/0005_schedules.sql",
        "          and (live.state <> 'queued' or live.attempt > 0 "
        "or live.due_at <= greatest({schema}.now(), live.created_at))\n    );",
        "    );",
        HINDRANCES,
    ),
    Mutant(
        "an end before the last run",
        "schedules/plan.py",
        "        slots = slots[: max(0, due.max_runs - due.runs)]\n",
        "        slots = slots[: max(0, due.max_runs - due.runs)]\n"
        "        then = None if len(slots) + due.runs >= due.max_runs else then\n",
        HINDRANCES,
    ),
    Mutant(
        "a task that nobody knows, untold",
        "schedules/scheduler.py",
        "if due.task not in self._tasks and",
        "if False and",
        HINDRANCES,
    ),
    Mutant(
        "an older leader that knows better",
        "schedules/scheduler.py",
        "or due.is_checked or due.version != task.version or",
        "or due.is_checked or",
        HINDRANCES,
    ),
    Mutant(
        "a leader that judges what others have checked",
        "schedules/scheduler.py",
        "if task is None or due.is_checked or",
        "if task is None or",
        HINDRANCES,
    ),
    Mutant(
        "events that anyone may emit",
        "postgres/migrations/0005_schedules.sql",
        "revoke execute on function {schema}.emit(text, jsonb, jsonb) from public;\n",
        "",
        "tests/postgres/test_roles.py",
    ),
    Mutant(
        "code that leaves broken what it declares",
        "schedules/declare.py",
        " or (starts and old.is_broken and old.owner == CODE)",
        "",
        "tests/schedules/test_declare.py",
    ),
    Mutant(
        "a look that brings back what was deleted",
        "schedules/declare.py",
        "        return starts\n",
        "        return True\n",
        "tests/schedules/test_declare.py",
    ),
    Mutant(
        "a look that ends with the first error",
        "schedules/declare.py",
        "except Exception as error:",
        "except DatabaseUnavailable as error:",
        "tests/schedules/test_declare.py",
    ),
    Mutant("broken words resumed", "schedules/operate.py", "        check(row)\n", "", "tests/schedules/test_verbs.py"),
    Mutant(
        "a skip of what is past",
        "schedules/operate.py",
        "slot = row.next_slot if row.paused_at is None else _resumed_slot(row)",
        "slot = row.next_slot",
        "tests/schedules/test_verbs.py",
    ),
    Mutant(
        "a trigger doubled by a salt",
        "schedules/arguments.py",
        "if _plain(codec, each) == merged:",
        "if each == merged:",
        "tests/schedules/test_triggers.py",
    ),
    Mutant(
        "a dormant schedule that runs too often",
        "postgres/migrations/0005_schedules.sql",
        "known.runs >= known.max_runs or clock < known.start_at",
        "clock < known.start_at",
        "tests/schedules/test_activate.py",
    ),
    Mutant(
        "a dormant schedule outside of its time",
        "postgres/migrations/0005_schedules.sql",
        " or clock < known.start_at or clock >= known.end_at then",
        " then",
        "tests/schedules/test_activate.py",
    ),
    Mutant(
        "parents that have given, waited for",
        "schedules/view.py",
        'if not parent["fed"]] or',
        "] or",
        "tests/schedules/test_dependents.py",
    ),
    Mutant(
        "gaps that count a run by hand for a slot",
        "schedules/backfill.py",
        "          and known.cause in ('due', 'backfill')\n    )\n    order by",
        "    )\n    order by",
        "tests/schedules/test_backfill.py",
    ),
    Mutant(
        "a preview of a schedule that puts it",
        "schedules/schedules.py",
        "self._foreseen(self._putting(definition, None), n), dry_run=True",
        "self._foreseen(self._putting(definition, None), n)",
        "tests/schedules/test_change.py",
        occurrence=1,
    ),
]
