"""Guards of changing schedules by hand: skips, changes, backfills, and what is done to many."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PUT = "tests/schedules/test_put.py"
TIMING = "tests/schedules/test_timing.py"
CHANGE = "tests/schedules/test_change.py"
BACKFILL = "tests/schedules/test_backfill.py"
RUNS = "tests/schedules/test_runs.py"
VERBS = "tests/schedules/test_verbs.py"
DEFINITION = "tests/schedules/test_definition.py"
COMMANDS = "tests/cli/test_schedules_commands.py"

MUTANTS = [
    Mutant(
        "a due slot of a changed schedule with exclusions",
        "schedules/put.py",
        "json.dumps(row.exclude))",
        "row.exclude)",
        PUT,
    ),
    Mutant(
        "a skipped slot not kept",
        "schedules/operate.py",
        "set skipped_slots = %(skipped_slots)s::timestamptz[],",
        "set skipped_slots = skipped_slots,",
        PUT,
    ),
    Mutant(
        "a second skip that forgets the first",
        "schedules/operate.py",
        "[*(each for each in row.skipped_slots if each > min(slot, row.now)), slot]",
        "[slot]",
        PUT,
    ),
    Mutant(
        "a skipped slot given out",
        "schedules/plan.py",
        """            "skipped": due.skipped_slots,
""",
        "",
        PUT,
    ),
    Mutant(
        "a skipped slot among those that are counted",
        "schedules/timing.py",
        "count -= self._count(self.trigger, each - INSTANT, each)",
        "pass",
        TIMING,
    ),
    Mutant(
        "slots of years that cannot be stored",
        "schedules/timing.py",
        "slot.year >= LATEST_YEAR or ",
        "",
        PUT,
    ),
    Mutant(
        "the first instant there is",
        "schedules/timing.py",
        "begin - INSTANT if begin > _FIRST else begin",
        "begin - INSTANT",
        TIMING,
    ),
    Mutant(
        "a time of day before the first day",
        "schedules/zones.py",
        "    except OverflowError:  # in UTC",
        "    except ZeroDivisionError:  # in UTC",
        TIMING,
    ),
    Mutant(
        "a zone that is a list",
        "schedules/zones.py",
        """        if isinstance(tz, str):
            return _zone(tz)""",
        "        return _zone(tz)",
        DEFINITION,
    ),
    Mutant(
        "a run that died and was retried",
        "schedules/history.py",
        "where letter.successor > letter.id",
        "where false",
        RUNS,
    ),
    Mutant(
        "pruning a parent of what is put",
        "schedules/put.py",
        "if followed := {",
        "if False and {",
        PUT,
    ),
    Mutant(
        "the parents of an unchanged child",
        "schedules/put.py",
        "if new.parents and new.name not in known",
        "if new.parents",
        PUT,
    ),
    Mutant(
        "a key in the audit",
        "schedules/put.py",
        'None if name == "key" else (',
        "(",
        CHANGE,
    ),
    Mutant(
        "the same pace in other words moves the grid",
        "schedules/put.py",
        "return interval_of(new.every) == interval_of(old.every)",
        "return False",
        PUT,
    ),
    Mutant(
        "who follows what is deleted",
        "schedules/operate.py",
        '**({"followed_by": children[:100]} if children else {})',
        "**{}",
        VERBS,
    ),
    Mutant(
        "a change that carries options of another kind",
        "schedules/change.py",
        "if kind in MEANINGFUL.get(option, (kind,))",
        "if True",
        CHANGE,
    ),
    Mutant(
        "a change that writes encrypted arguments back as they are",
        "schedules/change.py",
        "return row.args if codec is None else dumps(decoded(codec, row.args))",
        "return row.args",
        CHANGE,
    ),
    Mutant(
        "a backfill by words that have changed",
        "schedules/backfill.py",
        """    if (now.revision, now.anchor) != (row.revision, row.anchor):
        return None
""",
        "",
        BACKFILL,
    ),
    Mutant(
        "clearing what has begun",
        "schedules/backfill.py",
        """          and job_id is null
        returning id""",
        "        returning id",
        BACKFILL,
    ),
    Mutant(
        "a backfill worked out on the event loop",
        "schedules/schedules.py",
        "await asyncio.to_thread(asked.slots, row)",
        "asked.slots(row)",
        BACKFILL,
    ),
    Mutant(
        "all schedules for a tag",
        "cli/schedule_verbs.py",
        "if tag is None or tag in each.tags",
        "if True",
        COMMANDS,
    ),
    Mutant(
        "all schedules for an empty prefix",
        "cli/schedule_verbs.py",
        '    if prefix == "":',
        "    if False:",
        COMMANDS,
    ),
    Mutant(
        "a time that does not exist",
        "cli/changes.py",
        "if read.tzinfo is None and shown.replace(tzinfo=None) != read:",
        "if False:",
        COMMANDS,
    ),
]
