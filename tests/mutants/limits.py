"""Guards of lines, of limits and rates, and of what someone has said about a queue."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FLOW = "postgres/migrations/0008_flow.sql"
LINES = "tests/limits/test_lines.py"
ISOLATION = "tests/limits/test_limits_isolation.py"
MODEL = "tests/limits/test_limits_model.py"
QUEUES = "tests/limits/test_limited_queues.py"
RATES = "tests/limits/test_rates.py"
RULES = "tests/limits/test_queue_rules.py"
PLANS = "tests/limits/test_limits_plans.py"
RETURNING = "tests/limits/test_returning.py"

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
        FLOW,
        "                    limit room\n                    for update skip locked\n",
        "                    limit room\n",
        f"{ISOLATION}::test_a_claim_that_is_under_way_has_its_line_for_itself",
    ),
    Mutant(
        "jobs taken from a line in no order",
        FLOW,
        "            order by job.place\n            limit greatest(0, least(",
        "            order by job.place desc\n            limit greatest(0, least(",
        f"{LINES}::test_jobs_of_a_key_begin_in_the_order_in_which_their_transactions_committed",
    ),
    Mutant(
        "a line that tells of its last job",
        FLOW,
        "                order by job.place\n                limit 1\n",
        "                order by job.place desc\n                limit 1\n",
        MODEL,
    ),
    Mutant(
        "limits of queues without the lock of the queue",
        FLOW,
        "        for update of queue\n    loop",
        "    loop",
        f"{ISOLATION}::test_two_claims_of_a_limited_queue_take_no_more_than_may_begin",
    ),
    Mutant(
        "what a queue runs counted by the statement that locks it",
        FLOW,
        _GATES,
        _reckoned(
            "queue.running_limit - ("
            "select count(*) from {schema}.jobs as job where job.state = 'running' and queue.name in ('', job.queue)) as room"
        ),
        f"{ISOLATION}::test_two_claims_of_a_limited_queue_take_no_more_than_may_begin[pg18-running]",
    ),
    Mutant(
        "the rate of a queue reckoned by the statement that locks it",
        FLOW,
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
        FLOW,
        "perform {schema}.refresh_lines(served, served, ",
        "perform {schema}.refresh_lines(served, '{}', ",
        f"{ISOLATION}::test_a_line_that_was_served_is_behind_the_others",
    ),
    Mutant(
        "a line that is full and still ready",
        FLOW,
        "            update {schema}.lines as line set ready_at = null where line.id = any (filled);\n",
        "",
        f"{ISOLATION}::test_two_claims_of_one_line_take_no_more_than_may_run_and_none_waits",
    ),
    Mutant(
        "places before the first that are never looked at again",
        FLOW,
        "least(coalesce(line.first, touched.lowest, 0), touched.lowest)",
        "coalesce(line.first, 0)",
        f"{ISOLATION}::test_what_comes_back_to_a_place_that_was_left_behind_is_first_again",
    ),
    Mutant(
        "a line that is walked from its start for every job",
        FLOW,
        "least(coalesce(line.first, touched.lowest, 0), touched.lowest)",
        "0",
        "tests/limits/test_limits_plans.py::test_a_long_line_is_not_walked_from_its_start_again",
    ),
    Mutant(
        "a claim that walks what was taken before",
        FLOW,
        " and job.place >= coalesce(waiting.first, 0)\n",
        "\n",
        "tests/limits/test_limits_plans.py::test_a_long_line_is_not_walked_from_its_start_again",
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
        FLOW,
        "            bool_and(heads.fit and free.id is not null)\n"
        "                over (partition by heads.line order by heads.place rows unbounded preceding) as may",
        "            free.id is not null and bool_and(heads.fit)\n"
        "                over (partition by heads.line order by heads.place rows unbounded preceding) as may",
        f"{ISOLATION}::test_what_is_behind_a_locked_job_waits_with_it_and_other_lines_do_not",
    ),
    Mutant(
        "a locked job that holds up other lines",
        FLOW,
        "                exit when ids is not null or cardinality(chosen) < room;\n",
        "                exit;\n",
        f"{ISOLATION}::test_what_is_behind_a_locked_job_waits_with_it_and_other_lines_do_not",
    ),
    Mutant(
        "lines written down without their lock",
        FLOW,
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
        FLOW,
        "      and (line.not_before is null or line.not_before <= clock)\n",
        "",
        f"{RATES}::test_what_began_counts_though_the_line_was_empty_since",
    ),
    Mutant(
        "lines that nobody takes away",
        FLOW,
        "            limit 2 * cardinality(which)\n",
        "            limit 0\n",
        f"{RATES}::test_lines_that_a_rate_no_longer_remembers_are_taken_away",
    ),
    Mutant(
        "a raised rate that is not believed",
        FLOW,
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
        FLOW,
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
        FLOW,
        "          and (of_lines[lane] or job.task <> all (limited))\n",
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
        FLOW,
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
    Mutant(
        "lines that follow nothing once a claim was in the transaction",
        FLOW,
        "        perform set_config('rota.claiming', '', true);\n",
        "",
        f"{ISOLATION}::test_what_follows_a_claim_in_its_transaction_is_told_to_the_line",
    ),
    Mutant(
        "a claim whose lines are written down twice",
        FLOW,
        "when (current_setting('rota.claiming', true) is distinct from 'yes')",
        "",
        f"{PLANS}::test_a_claim_from_lines_reads_what_it_takes",
    ),
    Mutant(
        "a line with room that is taken for full",
        FLOW,
        "coalesce(row_number() over turns = held.room, false) as fills",
        "true as fills",
        f"{ISOLATION}::test_a_job_that_comes_while_the_last_one_goes_is_in_a_line_that_is_there",
    ),
    Mutant(
        "lines that are told nothing of a claim that fills none",
        FLOW,
        "where filled is null or each.line <> all (filled)",
        "where each.line <> all (filled)",
        f"{ISOLATION}::test_a_line_that_was_served_is_behind_the_others",
    ),
    Mutant(
        "a refresh that believes what the line says",
        FLOW,
        "    if lowest is null then\n",
        "    if false then\n",
        f"{ISOLATION}::test_a_line_that_is_refreshed_by_someone_is_looked_at_from_its_start",
    ),
    Mutant(
        "a line walked from its start for every job that ends",
        FLOW,
        "coalesce(lowest, array_fill(null::bigint, array[cardinality(touched)]))",
        "lowest",
        f"{PLANS}::test_a_long_line_is_not_walked_from_its_start_again",
    ),
    Mutant(
        "a line that is gone while one of it runs",
        FLOW,
        "            and rule.running is not null\n            and exists",
        "            and false\n            and exists",
        ISOLATION,
    ),
    Mutant(
        "those who settle wait for a line that they free nothing in",
        FLOW,
        "          and (changed.state <> 'running' or rule.running is not null)",
        "",
        f"{ISOLATION}::test_those_who_settle_jobs_of_one_line_wait_for_nobody_where_any_number_may_run",
    ),
    Mutant(
        "those who say how far they are wait for their line",
        FLOW,
        "              and (changed.state <> 'running' or present.state <> 'running')\n",
        "",
        f"{ISOLATION}::test_those_who_run_say_how_far_they_are_and_wait_for_nobody_in_line",
    ),
    Mutant(
        "a pause that a claim from lines does not ask for",
        FLOW,
        "              or queue.paused_at is not null and coalesce(queue.paused_until > clock, true)\n",
        "",
        f"{RULES}::test_a_worker_that_returns_to_a_line_finds_it_paused",
    ),
    Mutant(
        "a pause of a limited queue that is never over",
        FLOW,
        "coalesce(gate.paused_until > clock, true) then 0",
        "true then 0",
        f"{RULES}::test_a_pause_ends_when_its_time_is_over",
    ),
    Mutant(
        "limits of queues that the claimer does not remember",
        "jobs/claimer.py",
        "        self._limited_queues |= {",
        "        _ = {",
        f"{RETURNING}::test_a_queue_is_known_to_be_limited_until_it_is_seen_that_it_is_not",
    ),
    Mutant(
        "a queue whose limit is gone and that is looked at for every job of a line",
        "jobs/claimer.py",
        "        self._limited_queues -= {",
        "        _ = {",
        f"{RETURNING}::test_a_queue_is_known_to_be_limited_until_it_is_seen_that_it_is_not",
    ),
    Mutant(
        "a line that is not returned to",
        "jobs/source.py",
        "self._claimer.return_to_lines({",
        "set({",
        f"{RETURNING}::test_a_worker_returns_to_the_line_of_a_job_that_has_ended",
    ),
    Mutant(
        "a line that the last look has not found is not returned to",
        "jobs/claimer.py",
        "for queue, priority in set(lanes) - known]",
        "for queue, priority in set(lanes) & known]",
        f"{RETURNING}::test_the_next_of_a_line_is_taken_without_a_look_though_other_lanes_have_more",
    ),
    Mutant(
        "a line that is returned to before what is more urgent",
        "jobs/claimer.py",
        "self._lanes = sorted([*found, *self._lanes], key=lambda entry: -entry[0].priority)",
        "self._lanes = [*found, *self._lanes]",
        f"{RETURNING}::test_what_is_more_urgent_comes_before_a_line_that_is_returned_to",
    ),
    Mutant(
        "a line that is returned to and does not tell when it has room",
        "jobs/claimer.py",
        "if not taken and not looked and self._returned:",
        "if False:",
        f"{RETURNING}::test_returning_to_a_line_that_waits_for_its_rate_tells_when_that_has_room",
    ),
    Mutant(
        "a wake-up that has nobody look",
        "jobs/source.py",
        "        self._look_anew = True\n",
        "",
        f"{RETURNING}::test_who_is_woken_looks_at_lanes_that_the_last_look_did_not_find",
    ),
    Mutant(
        "lines that are wrongly full and that nobody mends",
        "jobs/limit.py",
        "              line.ready_at is null\n              and coalesce(",
        "              false\n              and coalesce(",
        f"{ISOLATION}::test_a_line_that_is_found_full_while_the_last_of_it_is_settled_by_the_old_rule_is_mended",
    ),
    Mutant(
        "full lines that are mended again and again",
        "jobs/limit.py",
        "coalesce(rule.running > (",
        "coalesce(0 <= (",
        f"{ISOLATION}::test_lines_that_are_right_are_not_touched_by_the_one_who_mends",
    ),
    Mutant(
        "a rule that changes and does not say that its lines are to follow",
        "jobs/limit.py",
        "declared_at = excluded.declared_at\n",
        "declared_at = rule.declared_at\n",
        f"{ISOLATION}::test_lines_of_a_rule_whose_author_died_before_they_followed_are_mended",
    ),
    Mutant(
        "a claim from lines by a member that has ended",
        FLOW,
        "    if not exists (select from {schema}.members",
        "    if false and not exists (select from {schema}.members",
        f"{ISOLATION}::test_a_member_that_has_ended_takes_nothing",
    ),
    Mutant(
        "the room of a queue taken by each of its lanes",
        FLOW,
        "(rooms ->> gate.name)::integer - taken",
        "(rooms ->> gate.name)::integer",
        f"{ISOLATION}::test_all_lanes_of_a_limited_queue_share_its_room",
    ),
    Mutant(
        "a claim that takes as many from each lane",
        FLOW,
        "        most := most - taken;\n",
        "",
        f"{ISOLATION}::test_all_lanes_of_a_limited_queue_share_its_room",
    ),
    Mutant(
        "the room of all queues that is not asked for",
        FLOW,
        "room := least(most, (rooms ->> '')::integer,",
        "room := least(most,",
        f"{ISOLATION}::test_all_lanes_of_a_limited_queue_share_its_room",
    ),
    Mutant(
        "the room of a queue that is not asked for",
        FLOW,
        ", (rooms ->> queues[lane])::integer);",
        ");",
        f"{ISOLATION}::test_all_lanes_of_a_limited_queue_share_its_room",
    ),
    Mutant(
        "a rate of a queue that nothing counts for",
        FLOW,
        "queue.rate_seconds, taken, clock,",
        "queue.rate_seconds, 0, clock,",
        f"{ISOLATION}::test_all_lanes_of_a_limited_queue_share_its_room",
    ),
    Mutant(
        "a newer version from a line",
        FLOW,
        "(job.version = 1 or job.version <= versions[array_position(tasks, job.task)])",
        "true",
        f"{ISOLATION}::test_what_may_not_be_taken_keeps_its_line_waiting",
        0,
    ),
    Mutant(
        "a newer version from a limited queue",
        FLOW,
        "(job.version = 1 or job.version <= versions[array_position(tasks, job.task)])",
        "true",
        f"{ISOLATION}::test_what_may_not_be_taken_stays_in_a_limited_queue",
        2,
    ),
    Mutant(
        "a job of a line that is to be cancelled",
        FLOW,
        "and job.cancel_requested_at is null",
        "",
        f"{ISOLATION}::test_what_may_not_be_taken_keeps_its_line_waiting",
        0,
    ),
    Mutant(
        "a job of a limited queue that is to be cancelled",
        FLOW,
        "and job.cancel_requested_at is null",
        "",
        f"{ISOLATION}::test_what_may_not_be_taken_stays_in_a_limited_queue",
        2,
    ),
    Mutant(
        "a job of a line that is due later",
        FLOW,
        "and job.due_at <= clock",
        "",
        f"{ISOLATION}::test_what_may_not_be_taken_keeps_its_line_waiting",
        0,
    ),
    Mutant(
        "suspects of a limited queue taken with the rest",
        FLOW,
        "and job.losses = 0",
        "",
        f"{ISOLATION}::test_what_may_not_be_taken_stays_in_a_limited_queue",
        0,
    ),
    Mutant(
        "what a limited queue has of others' tasks",
        FLOW,
        "and job.task = any (tasks)",
        "",
        f"{ISOLATION}::test_what_may_not_be_taken_stays_in_a_limited_queue",
        1,
    ),
    Mutant(
        "room in a line that nobody goes on with",
        "jobs/source.py",
        "for job in jobs})\n            self._woken.set()",
        "for job in jobs})",
        f"{RETURNING}::test_who_has_made_room_waits_for_nobody_to_go_on",
    ),
    Mutant(
        "room in a queue that nobody goes on with",
        "jobs/source.py",
        "            self.wake()\n        elif jobs:",
        "            pass\n        elif jobs:",
        f"{RETURNING}::test_who_has_made_room_waits_for_nobody_to_go_on",
    ),
]
