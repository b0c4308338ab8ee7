"""Guards of the scheduler: one run per slot, overlap, what follows from what."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TABLES = "postgres/migrations/0005_schedules.sql"
SCHEDULER = "tests/schedules/test_scheduler.py"

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
        for update of known skip locked""",
        """        where known.paused_at is null
        order by known.name
        for update of known skip locked""",
        SCHEDULER,
    ),
    Mutant(
        "a paused schedule given out",
        TABLES,
        """        where known.next_at <= clock
          and known.paused_at is null
        order by known.name
        for update of known skip locked""",
        """        where known.next_at <= clock
        order by known.name
        for update of known skip locked""",
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
        "known.overlap = 'skip' and busy.due as skips, busy.anyhow as busy",
        "false as skips, busy.anyhow as busy",
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
        "exit when eaten.full is not true;",
        "exit when eaten.parent_job is null;",
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
]
