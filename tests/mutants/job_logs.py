"""Guards of job logs: their bounds, what they must not show, and what they must not hold up."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOGS = "tests/jobs/test_logs.py"
RETENTION = "tests/jobs/test_log_retention.py"
RUN = "tests/jobs/test_log_run.py"

MUTANTS = [
    Mutant(
        "a log line with a secret",
        "jobs/logs/notes.py",
        "blotted(line.text, run.secrets)",
        "line.text",
        f"{LOGS}::test_redacted_arguments_are_blotted_out",
    ),
    Mutant(
        "a log line whose secrets nobody knows",
        "jobs/logs/notes.py",
        "return line._replace(text=MASK)",
        "run.secrets = ()",
        f"{LOGS}::test_where_secrets_cannot_be_told_nothing_is_shown",
    ),
    Mutant(
        "a log line that cannot be stored",
        "jobs/logs/notes.py",
        "text=storable(text, 2 * _LINE_LIMIT)",
        "text=text",
        f"{LOGS}::test_whatever_is_logged_neither_harms_the_body_nor_the_lines_of_others",
    ),
    Mutant(
        "more log lines than there is room for",
        "jobs/logs/notes.py",
        "(self._lines >= _MOST_WAITING or self._size >= _MOST_WAITING_SIZE) and not run.flooded",
        "False",
        f"{LOGS}::test_what_finds_no_room_is_dropped_and_told",
    ),
    Mutant(
        "log lines pushed out while they are written",
        "jobs/logs/run.py",
        "if self._lowest_stored is None or self._lowest_stored >= oldest:",
        "if True:",
        RUN,
    ),
    Mutant(
        "log lines that are no longer among the newest",
        "jobs/logs/write.py",
        "if unwanted := notes.unwanted(parcels):",
        "if unwanted := notes.unwanted([]):",
        f"{LOGS}::test_of_a_flood_the_first_lines_and_the_newest_are_kept",
    ),
    Mutant(
        "log lines written twice",
        "jobs/logs/write.py",
        "where not %(repeated)s::boolean",
        "where true",
        f"{LOGS}::test_a_write_that_is_repeated_as_its_reply_was_lost_adds_only_what_is_missing",
    ),
    Mutant(
        "log lines in letters the session lacks",
        "jobs/logs/write.py",
        "plain=True)",
        "plain=False)",
        f"{LOGS}::test_letters_that_the_session_does_not_have_are_escapes",
    ),
    Mutant(
        "a stop that waits for log lines",
        "jobs/logs/write.py",
        "timeout=_LAST_SECONDS",
        "timeout=None",
        f"{LOGS}::test_a_table_that_is_locked_holds_up_neither_jobs_nor_the_stop",
    ),
    Mutant(
        "a log that tells of its own writing",
        "jobs/logs/write.py",
        "context=contextvars.Context()",
        "context=None",
        f"{LOGS}::test_what_is_logged_while_lines_are_written_is_not_noted",
    ),
    Mutant(
        "records that nobody prints any more",
        "jobs/logs/capture.py",
        "            _as_without_us(record)\n",
        "            pass\n",
        f"{LOGS}::test_what_nobody_handles_is_printed_as_without_us",
    ),
    Mutant(
        "log lines of an erased job",
        "jobs/erase.py",
        "        yield LOCK_LOGS.query(read=nothing)\n",
        "",
        f"{LOGS}::test_lines_that_come_while_their_job_is_erased_wait_and_are_not_written",
    ),
    Mutant(
        "the last log lines of a child",
        "jobs/child.py",
        "                    self._sender.send()\n",
        "                    pass\n",
        f"{LOGS}::test_a_flood_in_a_process_is_bounded_there",
    ),
    Mutant(
        "the class of a log line", "jobs/logs/write.py", "line.message, job.retention", "line.message, null", RETENTION
    ),
    Mutant(
        "logs that nobody keeps",
        "jobs/rounds.py",
        "if (logs := await session.run(keep_logs(key))) is not None:",
        "if (logs := None) is not None:",
        RETENTION,
    ),
]
