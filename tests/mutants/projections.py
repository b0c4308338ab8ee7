"""Guards of projections: the horizon, the order of the pair, the checkpoint's compare-and-swap, and what is never passed over."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FEED = "tests/projections/test_feed.py"
TROUBLE = "tests/projections/test_trouble.py"
PROJECTOR = "tests/projections/test_projector.py"
REBUILD = "tests/projections/test_rebuild.py"
REBASE = "tests/projections/test_rebase.py"
PARTITIONS = "tests/projections/test_partitions.py"
BUILDS = "tests/projections/test_builds.py"
GAP = f"{FEED}::test_an_event_that_commits_late_with_a_smaller_position_is_read_once_and_first"
PASSED = f"{FEED}::test_an_event_with_a_smaller_position_than_one_that_was_read_is_not_passed_over"
STALE = f"{FEED}::test_the_checkpoint_of_a_stale_owner_is_refused_and_never_goes_back"
APPENDED_SINCE = f"{REBASE}::test_what_was_appended_since_the_restore_comes_behind_what_was_restored_and_is_read_once"
UNCLEAR = f"{REBASE}::test_where_it_cannot_be_told_what_was_appended_since_nothing_is_changed_before_someone_says_so"
MOVED = f"{FEED}::test_a_checkpoint_that_was_moved_meanwhile_is_not_overwritten"

HUNG = f"{PROJECTOR}::test_a_handler_that_does_not_end_with_its_process_is_not_waited_for_and_writes_nothing_afterwards"

MUTANTS = [
    Mutant(
        "events above the horizon are read",
        "projections/feed.py",
        "where {log}event.{order_xid} < (select horizon.xmin from horizon)",
        "where {log}true",
        GAP,
    ),
    Mutant(
        "events are read by position alone",
        "projections/feed.py",
        """          and (event.{order_xid}, event.{position}) > ((select at.order_xid from at), (select at.position from at))
        order by event.{order_xid}, event.{position}
""",
        """          and event.{position} > (select at.position from at)
        order by event.{position}
""",
        PASSED,
    ),
    Mutant(
        "pages of events are cut by position",
        "projections/feed.py",
        """ > ((select at.order_xid from at), (select at.position from at))
        order by event.{order_xid}, event.{position}
        limit""",
        """ > ((select at.order_xid from at), (select at.position from at))
        order by event.{position}
        limit""",
        f"{FEED}::test_pages_are_cut_in_the_order_of_the_pair",
    ),
    Mutant(
        "history is read again",
        "projections/feed.py",
        "          and (select at.order_xid from at) = '0'\n",
        "",
        f"{FEED}::test_rows_older_than_the_column_are_history_and_read_first",
    ),
    Mutant(
        "a full page is walked past",
        "projections/feed.py",
        "        where (select count(*) from found) < %%(batch)s\n",
        "",
        f"{FEED}::test_a_page_that_is_full_is_not_walked_past",
    ),
    Mutant(
        "a checkpoint of an old term",
        "projections/checkpoint.py",
        "      and epoch = %(epoch)s::bigint\n",
        "",
        STALE,
    ),
    Mutant(
        "a term that takes a projection from a later one",
        "projections/checkpoint.py",
        "      and epoch <= %(epoch)s\n",
        "",
        STALE,
    ),
    Mutant(
        "a checkpoint that is overwritten",
        "projections/checkpoint.py",
        """      and order_xid = %(order_xid)s::text::xid8
      and position = %(position)s::bigint
      and epoch = %(epoch)s::bigint
""",
        """      and epoch = %(epoch)s::bigint
""",
        MOVED,
    ),
    Mutant(
        "a refused move that nobody notices",
        "projections/checkpoint.py",
        "    if not rows:\n        raise CheckpointMoved(",
        "    if False:\n        raise CheckpointMoved(",
        f"{STALE} {MOVED}",
    ),
    Mutant(
        "a stale owner that stops a projection",
        "projections/checkpoint.py",
        """      and position = %(position)s
      and epoch = %(epoch)s
""",
        """      and position = %(position)s
""",
        f"{FEED}::test_a_stale_owner_does_not_stop_the_projection_either",
    ),
    Mutant(
        "a lost connection counts as a failure of the event",
        "projections/apply.py",
        "    return lost and batch.is_cut_off\n",
        "    return False\n",
        f"{TROUBLE}::test_a_connection_that_is_lost_is_no_fault_of_the_event",
    ),
    Mutant(
        "readers are given what has taken in nothing yet",
        "projections/projector.py",
        " and not (found.pending and found.at == START)",
        "",
        "tests/projections/test_rebuild.py::test_readers_are_given_nothing_while_all_there_is_waits_for_an_older_transaction",
    ),
    Mutant(
        "a full disk counts as a failure of the event",
        "projections/apply.py",
        '(each.sqlstate or "").startswith("53")',
        "each.sqlstate is None",
        "tests/projections/test_trouble.py::test_a_server_that_has_no_more_to_give_is_waited_for_and_no_event_is_blamed",
    ),
    Mutant(
        "a lost connection that a handler has words for counts as a failure of the event",
        "projections/apply.py",
        "    causes = list(_causes(error))\n",
        "    causes = [error]\n",
        f"{TROUBLE}::test_a_connection_that_is_lost_is_no_fault_of_the_event_whatever_the_handler_raises",
    ),
    Mutant(
        "an event that cannot be decoded is dropped",
        "projections/projector.py",
        "                if parks:\n                    unfit.append(failed)\n                    continue\n",
        "                if parks:\n                    continue\n",
        f"{TROUBLE}::test_a_thousand_that_cannot_be_decoded_do_not_hide_the_one_behind_them",
    ),
    Mutant(
        "what comes before the event at fault is not committed",
        "projections/projector.py",
        "            self._sizes = deque([1] * len(rows) if at is None else [at, 1] if at else [1])\n            return\n",
        "            pass\n",
        f"{TROUBLE}::test_it_stops_at_an_event_with_all_before_it_committed_and_goes_on_when_resumed",
    ),
    Mutant(
        "a replay that leaves its event on the list",
        "projections/apply.py",
        "if batch.replay and not await on.run(take_parked(owned, batch.to), schema):",
        "if batch.replay and False:",
        f"{TROUBLE}::test_what_is_replayed_leaves_the_list_in_the_transaction_that_takes_it_in",
    ),
    Mutant(
        "a stop that does not end between two events",
        "projections/apply.py",
        "                if batch.stopping and index:\n                    break\n",
        "",
        f"{PROJECTOR}::test_a_stop_ends_between_two_events_with_what_was_done_committed_and_the_term_resigned",
    ),
    Mutant(
        "a switch to a version that is behind",
        "projections/rebuild.py",
        "            where (other.order_xid, other.position) > (mine.order_xid, mine.position)\n",
        "            where false\n",
        f"{REBUILD}::test_readers_are_not_given_a_version_that_is_behind",
    ),
    Mutant(
        "a switch to a build that is just given up",
        "projections/rebuild.py",
        "        for update\n    ), mine as materialized (",
        "    ), mine as materialized (",
        f"{BUILDS}::test_readers_are_not_given_a_build_that_is_just_given_up",
    ),
    Mutant(
        "a rebuild that asks nobody to wait",
        "projections/operate.py",
        '    yield HOLD.query({"name": found.name, "version": found.version}, read=nothing)\n',
        "",
        f"{BUILDS}::test_rebuilds_that_are_asked_for_at_once_come_one_after_another",
    ),
    Mutant(
        "events of another server are read as if they were ours",
        "projections/rebase.py",
        "    if not ahead.events and not ahead.checkpoint:\n        return\n",
        "    return\n",
        f"{REBASE}::test_a_worker_refuses_events_of_another_server_and_says_what_to_do",
    ),
    Mutant(
        "a rebase that forgets who overtook whom",
        "projections/rebase.py",
        "sum(walked.back::int)",
        "sum(0)",
        f"{REBASE}::test_after_a_rebase_it_goes_on_where_it_was_and_nothing_is_missing_or_repeated",
    ),
    Mutant(
        "an append that wakes nobody",
        "leases/control.py",
        "                event_channel(schema): self._reactions.on_event,\n",
        "",
        f"{PROJECTOR}::test_an_append_wakes_it_at_once",
    ),
    Mutant(
        "history that is left behind when live events are walked",
        "projections/feed.py",
        "        order by event.rota_xid, event.rota_position\n        limit %%(window)s",
        "",
        "tests/projections/test_feed.py",
    ),
    Mutant(
        "a paused or retired projection that moves",
        "projections/checkpoint.py",
        "      and state = 'running'\n    returning position",
        "    returning position",
        "tests/projections/test_feed.py",
    ),
    Mutant(
        "a paused or retired projection that stops",
        "projections/checkpoint.py",
        "      and state = 'running'\n    returning failures",
        "    returning failures",
        "tests/projections/test_feed.py",
    ),
    Mutant(
        "what was appended since the restore lies behind checkpoints",
        "projections/rebase.py",
        "when %(restored_to)s::bigint is null then age(event.xmin) < given.age",
        "when %(restored_to)s::bigint is null then false",
        APPENDED_SINCE,
    ),
    Mutant(
        "a checkpoint that is put behind what was appended since the restore",
        "projections/rebase.py",
        "              and not numbered.is_late\n",
        "",
        f"{REBASE}::test_a_checkpoint_before_the_first_event_stays_there_whatever_was_appended_since",
    ),
    Mutant(
        "a rebase that guesses what was restored",
        "projections/rebase.py",
        "        _check_clear(logs)\n",
        "        pass\n",
        UNCLEAR,
    ),
    Mutant(
        "a rebase that takes what came one by one for appended",
        "projections/rebase.py",
        "                      event.order_xid >= pg_snapshot_xmax(pg_current_snapshot())\n                      and not exists (",
        "                      false and not exists (",
        UNCLEAR,
    ),
    Mutant(
        "a rebase that takes what was read for appended since",
        "projections/rebase.py",
        "                            and projection.position = event.position\n",
        "                            and false\n",
        f"{REBASE}::test_an_event_that_a_checkpoint_stands_at_was_not_appended_since",
    ),
    Mutant(
        "a rebase that takes a table for a log",
        "projections/rebase.py",
        "          and projection.definition ->> 'kind' is distinct from 'table'\n    ), parked as (",
        "    ), parked as (",
        f"{REBASE}::test_a_table_that_is_called_like_a_log_is_left_alone_and_so_is_a_log_of_this_server",
    ),
    Mutant(
        "a rebase of what is this server's own",
        "projections/rebase.py",
        "        having bool_or(event.order_xid >= pg_snapshot_xmax(pg_current_snapshot()))\n",
        "",
        f"{REBASE}::test_a_table_that_is_called_like_a_log_is_left_alone_and_so_is_a_log_of_this_server",
    ),
    Mutant(
        "a rebase with a deadline",
        "projections/rebase.py",
        "set_config('statement_timeout', '0', true)",
        "null",
        f"{REBASE}::test_it_may_take_longer_than_any_other_statement_and_says_who_is_in_the_way",
    ),
    Mutant(
        "numbers that this server has yet to give out",
        "projections/rebase.py",
        "    if horizon <= last and not dry_run:\n",
        "    if False:\n",
        "tests/projections/test_rebase_of_a_young_server.py",
    ),
    Mutant(
        "what was appended without a word waits for a poll",
        "projections/projector.py",
        "        pause = min(self._again, self._poll)\n",
        "        pause = self._poll\n",
        f"{PROJECTOR}::test_what_was_appended_without_a_word_right_after_another_is_found_soon",
    ),
    Mutant(
        "what was appended without a word waits for what is passed over",
        "projections/projector.py",
        "self._sleep(min(self._pause(), _PASS_SECONDS) if is_soon else self._pause())",
        "self._sleep(_PASS_SECONDS if is_soon else self._pause())",
        f"{PROJECTOR}::test_what_was_appended_without_a_word_behind_what_concerns_nobody_is_found_soon",
    ),
    Mutant(
        "an idle projection that goes on asking",
        "projections/projector.py",
        "        self._again = pause * _AGAIN_FACTOR\n",
        "",
        "tests/projections/test_cost.py",
    ),
    Mutant(
        "a checkpoint of another server",
        "projections/rebase.py",
        "    if not ahead.events and not ahead.checkpoint:\n        return\n",
        "    if not ahead.events:\n        return\n",
        f"{REBASE}::test_a_worker_refuses_a_checkpoint_of_another_server_whose_table_was_made_history",
    ),
    Mutant(
        "who waits takes what was not counted for nothing",
        "projections/projection.py",
        "            if lag.events or lag.more:\n",
        "            if lag.events:\n",
        f"{PROJECTOR}::test_who_waits_for_one_that_is_far_behind_waits_although_none_of_the_next_events_concern_it",
    ),
    Mutant(
        "a count that walks the log",
        "projections/feed.py",
        "        window = max(most, _COUNTED) if self._filters else most\n",
        "        window = 2**62 if self._filters else most\n",
        f"{FEED}::test_what_waits_is_counted_as_far_as_one_look_goes_and_it_is_said_that_there_may_be_more",
    ),
    Mutant(
        "a position that is looked for in the whole log",
        "postgres/migrations/0013_event_positions.sql",
        "create index events_position on {schema}.events using brin (position) with (pages_per_range = 16, autosummarize = on)",
        "select 1",
        f"{FEED}::test_one_event_of_a_long_log_is_found_without_walking_it",
    ),
    Mutant(
        "an event of history that is not found again",
        "projections/feed.py",
        "        found = self._one if pair.order_xid else self._one_of_history\n",
        "        found = self._one\n",
        f"{FEED}::test_rows_older_than_the_column_are_history_and_read_first",
    ),
    Mutant(
        "a lock that others hold stops a projection",
        "projections/hooks.py",
        "            if isinstance(error, _IN_THE_WAY):\n",
        "            if False:\n",
        f"{REBUILD}::test_a_lock_that_others_hold_is_told_of_as_what_it_is_and_waited_for",
    ),
    Mutant(
        "a lost connection stops a projection that is prepared",
        "projections/hooks.py",
        '(error.sqlstate or "08").startswith(_AWAY)',
        "False",
        f"{REBUILD}::test_a_connection_that_is_lost_is_no_fault_of_a_hook",
    ),
    Mutant(
        "tables that are made anew in mid-life",
        "projections/rebuild.py",
        "          and not exists (select from held where held.position > %(start)s::bigint)\n",
        "",
        f"{REBUILD}::test_tables_are_not_made_when_the_first_event_was_taken_in_meanwhile",
    ),
    Mutant(
        "a projection that is prepared in mid-life",
        "projections/projector.py",
        "elif not found.prepared and found.at == START and self.definition.prepare is not None:",
        "elif not found.prepared and self.definition.prepare is not None:",
        f"{REBUILD}::test_one_that_has_taken_in_events_without_a_prepare_is_given_none_unless_it_begins_anew",
    ),
    Mutant(
        "a handler that hangs keeps its session",
        "projections/projector.py",
        "                await self._looking.run(evict(term.name, term.epoch, self._looking.schema))\n",
        "                pass\n",
        HUNG,
    ),
    Mutant(
        "a handler that hangs in a thread is not noticed",
        "projections/apply.py",
        "return self._in_thread is not None and not self._in_thread.done()",
        "return False",
        HUNG,
    ),
    Mutant(
        "events wait behind a thread that hangs",
        "projections/projector.py",
        "        self._applier.leave()\n        # where",
        "        # where",
        f"{PROJECTOR}::test_whoever_leads_again_after_a_handler_hung_in_a_thread_has_another_thread",
    ),
    Mutant(
        "a process waits for a projection that hangs in a thread",
        "runtime/process.py",
        '"rota-poll", "rota-project")',
        '"rota-poll")',
        f"{PROJECTOR}::test_a_handler_that_hangs_in_a_thread_does_not_keep_its_process_beyond_the_grace",
    ),
    Mutant(
        "history that is walked as a whole for each page",
        "projections/feed.py",
        """is believed to be history
        order by event.{order_xid}, event.{position}
""",
        """is believed to be history
        order by event.{position}
""",
        "tests/projections/test_feed_plans.py",
    ),
    Mutant(
        "a partition that reads the events of others",
        "projections/feed.py",
        '        wanted += _WANTED_PARTITION if partitions > 1 else ""\n',
        "",
        f"{PARTITIONS}::test_events_of_a_stream_are_seen_once_and_in_order_whichever_partition_they_are_in",
    ),
    Mutant(
        "streams that move between partitions",
        "postgres/migrations/0012_projections.sql",
        "sha256(convert_to(coalesce(stream, ''), 'UTF8'))",
        "sha256(convert_to(coalesce(stream, '') || '!', 'UTF8'))",
        f"{PARTITIONS}::test_the_partition_of_a_stream_is_the_same_on_every_server_for_ever",
    ),
    Mutant(
        "another number of partitions that nobody refuses",
        "projections/checkpoint.py",
        "    if known != partitions:\n",
        "    if False:\n",
        f"{PARTITIONS}::test_another_number_of_partitions_is_refused_and_said_what_to_do",
    ),
    Mutant(
        "a race in which two numbers of partitions are declared",
        "projections/checkpoint.py",
        "        where first.partitions = %(partitions)s\n",
        "",
        f"{PARTITIONS}::test_who_declares_it_at_the_same_moment_with_another_number_is_refused_as_well",
    ),
    Mutant(
        "a move of the checkpoints of all partitions",
        "projections/checkpoint.py",
        """      and partition = %(partition)s::int
      -- where""",
        """      -- where""",
        f"{PARTITIONS}::test_a_checkpoint_is_that_of_one_partition",
    ),
    Mutant(
        "a term that takes all partitions",
        "projections/checkpoint.py",
        """      and partition = %(partition)s
      and epoch <=""",
        """      and epoch <=""",
        f"{PARTITIONS}::test_a_checkpoint_is_that_of_one_partition",
    ),
    Mutant(
        "a switch before all partitions are as far",
        "projections/rebuild.py",
        "        when exists (select from behind) then null\n",
        "",
        f"{PARTITIONS}::test_readers_are_given_a_version_when_all_its_partitions_are_as_far_as_all_of_the_old",
    ),
    Mutant(
        "two builds of code that writes into one table",
        "projections/projections.py",
        "takes_build=definition.takes_build)",
        "takes_build=True)",
        "tests/cli/test_projection_commands.py::test_the_command_begins_a_build_or_says_what_to_change",
    ),
    Mutant(
        "a build that is given up and read on",
        "projections/builds.py",
        """        set state = 'retired',
            state_at = {schema}.now(),
            state_by = null
        where name""",
        """        set state_by = null
        where name""",
        f"{BUILDS}::test_a_rebuild_that_is_begun_again_or_cancelled_leaves_the_live_one_alone",
    ),
    Mutant(
        "a rebuild that gives up what readers use",
        "projections/builds.py",
        "          and live_at is null\n          and state <> 'retired'\n",
        "          and state <> 'retired'\n",
        BUILDS,
    ),
    Mutant(
        "a rewind to a time that passes over an event which was stored out of turn",
        "projections/feed.py",
        "            order by walked.rota_xid, walked.rota_position\n            limit 1\n        ),",
        "            order by walked.rota_created_at\n            limit 1\n        ),",
        "tests/projections/test_rewind.py",
    ),
    Mutant(
        "a preview of a rewind that counts what is still to come",
        "projections/rewind.py",
        ".between(to, each.pair, _MOST_COUNTED)",
        ".lag(_MOST_COUNTED)",
        "tests/projections/test_rewind.py",
    ),
]
