"""The order of events, and the versions of streams."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

APPEND = "postgres/migrations/0011_events.sql"
ORDER = "tests/events/test_order_of_events.py"
TABLE = "tests/events/test_event_table.py"
CONCURRENT = "tests/events/test_concurrent_appends.py"

MUTANTS = [
    Mutant(
        "events: one event after that of a younger transaction",
        APPEND,
        "order_xid = greatest(head.order_xid, own)",
        "order_xid = own",
        f"{ORDER}::test_a_transaction_that_began_earlier_and_appends_later_comes_after",
    ),
    Mutant(
        "events: several events after that of a younger transaction",
        APPEND,
        "order_xids || greatest(head.order_xid, own)",
        "order_xids || own",
        f"{ORDER}::test_of_many_streams_each_keeps_its_own_order",
    ),
    Mutant(
        "events: what a stream with several new events says to the next",
        APPEND,
        "order_xid = greatest(order_xid, own)",
        "order_xid = own",
        f"{ORDER}::test_whatever_writers_do_each_committed_event_is_seen_once_and_streams_are_in_order",
    ),
    Mutant(
        "events: the horizon",
        "events/read.py",
        "      and event.order_xid < pg_snapshot_xmin(pg_current_snapshot())\n",
        "",
        f"{ORDER}::test_what_is_committed_late_with_a_lower_position_is_seen_in_its_place",
    ),
    Mutant(
        "events: going on by the pair",
        "events/read.py",
        "and (event.order_xid, event.position) > (%(order_xid)s::text::xid8, %(position)s::bigint)",
        "and %(order_xid)s::text is not null and event.position > %(position)s::bigint",
        f"{ORDER}::test_whatever_writers_do_each_committed_event_is_seen_once_and_streams_are_in_order",
    ),
    Mutant(
        "events: the order of the pair",
        "events/read.py",
        "order by event.order_xid, event.position",
        "order by event.position",
        f"{ORDER}::test_whatever_writers_do_each_committed_event_is_seen_once_and_streams_are_in_order",
    ),
    Mutant(
        "events: the lock on the streams of many events",
        APPEND,
        "            for update;\n            exit when",
        "            ;\n            exit when",
        f"{CONCURRENT}::test_writers_that_expect_nothing_all_go_through_without_gaps",
    ),
    Mutant(
        "events: the order in which streams are locked",
        APPEND,
        'order by event.stream collate "C"\n    loop',
        "order by random()\n    loop",
        f"{CONCURRENT}::test_writers_that_expect_nothing_all_go_through_without_gaps",
    ),
    Mutant(
        "events: the expected version of one event",
        APPEND,
        "where expected is null or head.version = expected",
        "where true",
        f"{CONCURRENT}::test_writers_that_expect_a_version_lose_and_double_nothing",
    ),
    Mutant(
        "events: a stream that is said to be there and is not",
        APPEND,
        "where coalesce(expected, 0) = 0 or exists (",
        "where true or exists (",
        "tests/events/test_append.py::test_a_stream_that_is_not_there_is_at_no_version",
    ),
    Mutant(
        "events: the expected versions of many events",
        APPEND,
        "if asked.expected <> coalesce(head.version, 0) then",
        "if false then",
        "tests/events/test_append.py::test_of_many_none_is_appended_where_one_stream_is_at_another_version",
    ),
    Mutant(
        "events: what was begun by an append that is refused",
        APPEND,
        "        delete from {schema}.streams where log = append_events.log and stream = any (begun);\n",
        "",
        "tests/events/test_append.py::test_of_many_none_is_appended_where_one_stream_is_at_another_version",
    ),
    Mutant(
        "events: positions in the order given",
        APPEND,
        "        order by new.place\n",
        "        order by new.place desc\n",
        "tests/events/test_append.py::test_many_are_appended_to_many_streams_in_the_order_given",
    ),
    Mutant(
        "events: the word to projections",
        APPEND,
        "    if found then\n        if wake then\n",
        "    if found then\n        if false then\n",
        "tests/events/test_append.py::test_who_listens_hears_of_an_append_when_it_is_committed",
    ),
    Mutant(
        "events: the horizon of a table",
        "events/table.py",
        "              and event.{order_xid} < pg_snapshot_xmin(pg_current_snapshot())\n",
        "",
        f"{TABLE}::test_what_is_committed_late_with_a_lower_position_is_seen_in_its_place_in_a_table_too",
    ),
    Mutant(
        "events: history read once",
        "events/table.py",
        "              and %(order_xid)s::text = '0'\n",
        "",
        f"{TABLE}::test_history_is_not_read_again_after_a_row_with_a_lower_position",
    ),
    Mutant(
        "events: a column that is added without its default",
        "events/table.py",
        "add column {identifier(xid)} xid8, ",
        "add column {identifier(xid)} xid8 default pg_current_xact_id(), ",
        f"{TABLE}::test_the_column_is_added_without_rewriting_the_table",
    ),
    Mutant(
        "events: one of newer code",
        "events/types.py",
        "if shape > now and (",
        "if False and (",
        "tests/events/test_typed_events.py::test_an_event_of_newer_code_is_not_taken_for_something_else",
    ),
    Mutant(
        "events: plain data that do not fit their type",
        "events/types.py",
        "            known.converter.decode(read_json(text))\n",
        "            read_json(text)\n",
        "tests/events/test_typed_events.py::test_what_does_not_fit_its_type_is_refused_in_words",
    ),
    Mutant(
        "events: those who relied on a word that never came",
        "postgres/notify.py",
        '        if now - self._sent.get(queue, float("-inf")) <= self._window * _STILL_AWAKE:\n            return False\n',
        "        return False\n",
        "tests/events/test_append.py::test_who_relied_on_the_word_of_an_append_that_never_came_speaks_itself "
        "tests/events/test_append.py::test_an_append_that_was_left_out_and_took_long_speaks_itself",
    ),
    Mutant(
        "events: each that was left out speaks",
        "postgres/notify.py",
        "        self._sent[queue] = now\n",
        "",
        "tests/postgres/test_notify.py",
    ),
    Mutant(
        "events: a NUL character in short data",
        "conversion/shorthand.py",
        ' and "\\\\u0000" not in text',
        "",
        "tests/events/test_plain_json.py",
    ),
    Mutant(
        "events: a table with rows of another moment or server",
        "events/columns.py",
        "    if there.unfit:\n",
        "    if False:\n",
        "tests/events/test_event_table.py::test_what_has_rows_of_another_moment_or_server_is_refused",
    ),
    Mutant(
        "events: what a test declares is kept",
        "testing/app.py",
        "            app.projections._projections.clear()\n",
        "",
        "tests/testing/test_app.py::test_an_app_under_test_forgets_what_the_test_has_declared_of_events_and_who_leads",
    ),
]
