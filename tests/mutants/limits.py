"""Guards of lines, of limits and rates, and of what someone has said about a queue."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FLOW = "postgres/migrations/0008_flow.sql"
ROOMY = "postgres/migrations/0019_roomy_lines.sql"
LINES = "tests/limits/test_lines.py"
ISOLATION = "tests/limits/test_limits_isolation.py"
MODEL = "tests/limits/test_limits_model.py"
QUEUES = "tests/limits/test_limited_queues.py"
RATES = "tests/limits/test_rates.py"
PLANS = "tests/limits/test_limits_plans.py"

_GATES = "where queue.name = any (array[''] || queues)"


def _reckoned(room: str, joined: str = "") -> str:
    """The loop over the rows of queues as one whose room is told by the statement that locks them, as it was before the wait."""
    return f"""where false
    loop
    end loop;
    for gate in
        select queue.name, {room}
        from {{schema}}.queues as queue {joined}
        {_GATES} and (queue.running_limit is not null or queue.rate_count is not null)
        order by queue.name
        for update of queue
    loop
        rooms := rooms || jsonb_build_object(gate.name, least(most, gate.room));
    end loop;
    for gate in
        select queue.*
        from {{schema}}.queues as queue
        where false"""


MUTANTS = [
    Mutant(
        "lines taken from without their lock",
        ROOMY,
        "                    limit room\n                    for update skip locked\n",
        "                    limit room\n",
        f"{ISOLATION}::test_a_claim_that_is_under_way_has_its_line_for_itself",
    ),
    Mutant(
        "jobs taken from a line in no order",
        ROOMY,
        "                order by job.place\n                -- and who",
        "                order by job.place desc\n                -- and who",
        f"{LINES}::test_jobs_of_a_key_begin_in_the_order_in_which_their_transactions_committed",
    ),
    Mutant(
        "a line that tells of its last job",
        ROOMY,
        "                order by job.place\n                limit 1\n",
        "                order by job.place desc\n                limit 1\n",
        MODEL,
    ),
    Mutant(
        "limits of queues without the lock of the queue",
        ROOMY,
        "        for update of queue\n    loop",
        "    loop",
        f"{ISOLATION}::test_two_claims_of_a_limited_queue_take_no_more_than_may_begin",
    ),
    Mutant(
        "what a queue runs counted by the statement that locks it",
        ROOMY,
        _GATES,
        _reckoned(
            "queue.running_limit - ("
            "select count(*) from {schema}.jobs as job where job.state = 'running' and queue.name in ('', job.queue)) as room"
        ),
        f"{ISOLATION}::test_two_claims_of_a_limited_queue_take_no_more_than_may_begin[pg18-running]",
    ),
    Mutant(
        "the rate of a queue reckoned by the statement that locks it",
        ROOMY,
        _GATES,
        _reckoned(
            "rate.room",
            "cross join lateral {schema}.rate_after("
            "queue.rate_count, queue.rate_seconds, 0, clock, queue.spent, queue.spent_slot) as rate",
        ),
        f"{ISOLATION}::test_two_claims_of_a_limited_queue_take_no_more_than_may_begin[pg18-rate]",
    ),
    Mutant(
        "lines that take no turns",
        ROOMY,
        "ready_at = greatest(asked_at, turn.due_at),",
        "ready_at = greatest(line.ready_at, turn.due_at),",
        f"{ISOLATION}::test_a_line_that_was_served_is_behind_the_others",
    ),
    Mutant(
        "a line that is full and still ready",
        ROOMY,
        "            update {schema}.lines as line set ready_at = null where line.id = any (filled);\n",
        "",
        f"{ISOLATION}::test_two_claims_of_one_line_take_no_more_than_may_run_and_none_waits",
    ),
    Mutant(
        "places before the first that are never looked at again",
        ROOMY,
        "least(coalesce(line.first, touched.lowest, 0), touched.lowest)",
        "coalesce(line.first, 0)",
        f"{ISOLATION}::test_what_comes_back_to_a_place_that_was_left_behind_is_first_again",
    ),
    Mutant(
        "a line that is walked from its start for every job",
        ROOMY,
        "least(coalesce(line.first, touched.lowest, 0), touched.lowest)",
        "0",
        f"{PLANS}::test_a_long_line_is_not_walked_from_its_start_again",
    ),
    Mutant(
        "a claim that walks what was taken before",
        ROOMY,
        " and job.place >= coalesce(waiting.first, 0)\n",
        "\n",
        f"{PLANS}::test_a_long_line_is_not_walked_from_its_start_again",
    ),
    Mutant(
        "places given at the insert",
        FLOW,
        "    deferrable initially deferred\n",
        "    deferrable initially immediate\n",
        f"{ISOLATION}::test_jobs_are_in_line_in_the_order_of_the_commits",
    ),
    Mutant(
        "a locked job that is passed by",
        ROOMY,
        "each.id = free.ids[each.number]",
        "each.number <= cardinality(free.ids)",
        f"{ISOLATION}::test_what_is_behind_a_locked_job_waits_with_it_and_other_lines_do_not",
    ),
    Mutant(
        "a locked job that holds up other lines",
        ROOMY,
        "                exit when ids is not null or cardinality(chosen) < room;\n",
        "                exit;\n",
        f"{ISOLATION}::test_what_is_behind_a_locked_job_waits_with_it_and_other_lines_do_not",
    ),
    Mutant(
        "lines written down without their lock",
        ROOMY,
        "    perform from {schema}.lines as line where line.id = any (which) order by line.id for update;\n",
        "",
        ISOLATION,
    ),
    Mutant(
        "retries that never hold the line",
        "jobs/settle.py",
        "                  or taken.kind = 'retried' and (select rule.hold from {schema}.limits as rule where rule.task = job.task)\n",
        "",
        f"{LINES}::test_a_retry_holds_the_line_where_that_is_asked_for",
    ),
    Mutant(
        "a lost job that goes to the end of its line",
        "jobs/settle.py",
        "when taken.kind in ('handed_back', 'lost')\n",
        "when taken.kind = 'handed_back'\n",
        f"{LINES}::test_the_slot_of_a_holder_that_died_is_free_when_its_member_has_ended",
    ),
    Mutant(
        "a job handed back to the end of its line",
        "jobs/settle.py",
        "when taken.kind in ('handed_back', 'lost')\n",
        "when taken.kind = 'lost'\n",
        f"{LINES}::test_what_is_handed_back_is_first_again",
    ),
    Mutant(
        "a rate that forgets a slot too early",
        FLOW,
        "cardinality(spent) <> kept or present - slot >= kept\n",
        "cardinality(spent) <> kept or present - slot >= kept - 1\n",
        f"{RATES}::test_what_began_counts_for_the_whole_period_and_a_slot_at_most_beyond",
    ),
    Mutant(
        "slots of a rate that move one too far",
        FLOW,
        "spent := spent[(present - slot + 1)::integer : kept] || array_fill(0, array[(present - slot)::integer]);",
        "spent := spent[(present - slot + 2)::integer : kept] || array_fill(0, array[(present - slot + 1)::integer]);",
        f"{RATES}::test_what_began_counts_for_the_whole_period_and_a_slot_at_most_beyond",
    ),
    Mutant(
        "a rate of another period that is never over",
        FLOW,
        "\n      or slot - present >= kept and (slot - present) * seconds / slots > 3600 then",
        " then",
        f"{RATES}::test_a_rate_of_another_period_begins_to_count_anew",
    ),
    Mutant(
        "a lowered rate that has room too early",
        FLOW,
        "            where leaves.later < count\n",
        "            where leaves.later < (select sum(each) from unnest(spent) as each)\n",
        f"{RATES}::test_a_rate_that_was_lowered_has_room_when_enough_has_left",
    ),
    Mutant(
        "a rate that forgets when its line is empty",
        ROOMY,
        "      and (line.not_before is null or line.not_before <= clock)\n",
        "",
        f"{RATES}::test_what_began_counts_though_the_line_was_empty_since",
    ),
    Mutant(
        "lines that nobody takes away",
        ROOMY,
        "            limit 2 * cardinality(which)\n",
        "            limit 0\n",
        f"{RATES}::test_lines_that_a_rate_no_longer_remembers_are_taken_away",
    ),
    Mutant(
        "a raised rate that is not believed",
        ROOMY,
        "                head.due_at, rate.not_before\n",
        "                head.due_at, line.not_before\n",
        f"{RATES}::test_a_rate_that_is_raised_counts_at_once",
    ),
    Mutant(
        "jobs put after constraints were checked that never come into line",
        FLOW,
        "    if arrived <> '' and new.id <= arrived::bigint then",
        "    if arrived <> '' then",
        f"{ISOLATION}::test_jobs_that_are_put_after_constraints_were_checked_come_into_line_as_well",
    ),
    Mutant(
        "bodies that wait for each other's lines in a circle",
        ROOMY,
        "    if exists (select from {schema}.jobs as job where job.place = own and job.place < 0) then",
        "    if false then",
        f"{ISOLATION}::test_bodies_that_end_with_their_transaction_and_enqueue_for_each_other_never_wait_in_a_circle",
    ),
    Mutant(
        "a stray in the line of a limit that is gone",
        FLOW,
        "        line = {schema}.line_of(rule.task, case when rule.by_key then named.key end),\n",
        "        line = {schema}.line_of(job.task, case when rule.by_key then named.key end),\n",
        f"{ISOLATION}::test_a_job_that_was_sent_to_a_line_of_a_limit_that_is_gone_is_an_ordinary_one_again",
    ),
    Mutant(
        "a stray taken from a plain lane",
        "jobs/claimer.py",
        "lanes=lanes, tasks=self._tasks, limited=self._limited, limit=wanted,",
        "lanes=lanes, tasks=self._tasks, limited=(), limit=wanted,",
        f"{LINES}::test_a_job_whose_caller_knows_nothing_of_the_limit_is_under_it_all_the_same",
    ),
    Mutant(
        "a stray taken from a lane of a limited queue",
        ROOMY,
        "              and (of_lines[lane] or job.task <> all (limited))\n",
        "",
        f"{QUEUES}::test_a_job_that_came_to_a_limited_queue_unaware_of_the_limit_of_its_task_is_under_both",
    ),
    Mutant(
        "suspects beyond the limit of their queue",
        "jobs/claim.py",
        "                    queue.running_limit is not null\n",
        "                    false\n",
        f"{QUEUES}::test_suspects_count_for_the_limit_of_their_queue",
    ),
    Mutant(
        "suspects of a paused queue",
        "jobs/claim.py",
        "                    or queue.paused_at is not null and coalesce(queue.paused_until > (select {schema}.now()), true)\n",
        "",
        f"{QUEUES}::test_suspects_of_a_paused_queue_wait_with_the_others",
    ),
    Mutant(
        "suspects of a limited queue that nobody takes",
        ROOMY,
        "            if most_losses > 0 then\n                -- as claim_suspect does",
        "            if false then\n                -- as claim_suspect does",
        f"{QUEUES}::test_suspects_count_for_the_limit_of_their_queue",
    ),
    Mutant(
        "a suspect from a line that leaves the gate open",
        "jobs/source.py",
        "if suspect := next((job for job in jobs if job.losses), None):",
        "if (suspect := jobs[0]).losses:",
        f"{QUEUES}::test_a_suspect_from_a_line_keeps_others_out_whatever_was_claimed_with_it",
    ),
]
