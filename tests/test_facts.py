from __future__ import annotations

import logging
import pickle
from uuid import uuid4

import pytest

from rota.facts import (
    DatabaseBack,
    DatabaseLost,
    Facts,
    LeadershipEnded,
    LeadershipGained,
    MemberLeft,
    PollerHindered,
    RowClaimLost,
    RowFailed,
    RowHindered,
    RowLocked,
    RowLost,
    RowPolled,
    RowRaisedAfterSuccess,
    RowsClaimed,
    RowsLeftOut,
    SingletonFailed,
    StandingBy,
    TakeoverHindered,
)
from rota.integrations.logging import log_facts


def test_a_subscriber_hears_the_kinds_it_named_until_it_stops() -> None:
    facts, heard = Facts(), []
    stop = facts.subscribe(heard.append, DatabaseLost)

    facts.emit(DatabaseLost("claim", "gone"))
    facts.emit(DatabaseBack("claim"))
    stop()
    facts.emit(DatabaseLost("claim", "again"))

    assert heard == [DatabaseLost("claim", "gone")]


def test_a_subscriber_without_kinds_hears_everything() -> None:
    facts = Facts()

    with facts.recorded() as heard:
        facts.emit(DatabaseBack("settle"))
        facts.emit(MemberLeft(uuid4()))

    assert [type(fact) for fact in heard] == [DatabaseBack, MemberLeft]


def test_a_broken_subscriber_harms_neither_the_emitter_nor_its_neighbours() -> None:
    facts, heard = Facts(), []
    facts.subscribe(lambda fact: 1 / 0)
    facts.subscribe(heard.append)

    facts.emit(DatabaseBack("claim"))

    assert heard == [DatabaseBack("claim")]


def test_facts_nobody_listens_to_need_not_be_built() -> None:
    facts = Facts()
    assert not facts.wanted(DatabaseBack)

    stop = facts.subscribe(lambda fact: None, DatabaseBack)
    assert facts.wanted(DatabaseBack)
    assert not facts.wanted(DatabaseLost)

    stop()
    assert not facts.wanted(DatabaseBack)


def test_a_fact_is_a_value_that_cannot_be_changed() -> None:
    fact = LeadershipEnded("indexer", 5, reason="it was resigned")

    assert fact == LeadershipEnded("indexer", 5, "it was resigned", kind="lost")
    assert len({fact, LeadershipEnded("indexer", 5, "it was resigned"), LeadershipEnded("indexer", 6, "")}) == 2
    assert LeadershipGained("indexer", 5) != StandingBy("indexer", 5)
    assert repr(fact) == "LeadershipEnded(name='indexer', epoch=5, reason='it was resigned', kind='lost')"
    assert pickle.loads(pickle.dumps(fact)) == fact
    with pytest.raises(AttributeError, match="cannot be changed"):
        fact.epoch = 6  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be changed"):
        del fact.epoch
    with pytest.raises(TypeError, match="LeadershipEnded needs name, epoch, reason"):
        LeadershipEnded("indexer", 5)  # type: ignore[call-arg]


def test_who_leads_is_told_in_words_and_a_singleton_that_failed_with_its_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    facts = Facts()
    stop = log_facts(facts)

    with caplog.at_level(logging.INFO, "rota"):
        facts.emit(StandingBy("indexer", "web-1:7"))
        facts.emit(LeadershipGained("indexer", 5))
        facts.emit(SingletonFailed("indexer", 5, ValueError("no such index"), 1.5))
        facts.emit(LeadershipEnded("indexer", 5, "it was resigned", "resigned"))
        facts.emit(LeadershipEnded("indexer", 5, "someone else took over", "lost"))
        facts.emit(TakeoverHindered("indexer", 5, ("ana", "bo")))
    stop()

    assert [(record.levelname, record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("INFO", "standing by for indexer, which web-1:7 leads", False),
        ("INFO", "leading indexer (epoch 5)", False),
        (
            "ERROR",
            "singleton indexer (epoch 5) failed: ValueError: no such index; it is started again in 1.5 s",
            True,
        ),
        ("INFO", "no longer leading indexer (epoch 5): it was resigned", False),
        ("WARNING", "no longer leading indexer (epoch 5): someone else took over", False),
        (
            "WARNING",
            "indexer cannot be led yet: its last leader (epoch 5) left a session inside its transaction; it is waited for, as this "
            "role may not end a session of ana, bo: log in as the same role, or grant pg_signal_backend",
            False,
        ),
    ]


def test_what_becomes_of_polled_rows_is_told_where_someone_must_know(caplog: pytest.LogCaptureFixture) -> None:
    facts, error = Facts(), ValueError("no such feed")
    stop = log_facts(facts)

    with caplog.at_level(logging.DEBUG, "rota"):
        facts.emit(RowsClaimed("fetch", 5))
        facts.emit(RowPolled("fetch", [7], 0.1, "done", True))
        facts.emit(RowPolled("fetch", [7], 0.1, "changed", False))
        facts.emit(RowPolled("fetch", [7], 0.1, "gone", False))
        facts.emit(RowFailed("fetch", [7], 1, 0.1, error, 10.0))
        facts.emit(RowFailed("fetch", ["a", 7], 10, 0.1, error, None))
        facts.emit(RowFailed("fetch", [7], 1, 0.1, "in another process", None))
        facts.emit(RowLost("fetch", [7], uuid4(), 1, False))
        facts.emit(RowLost("fetch", [7], uuid4(), 3, True))
        facts.emit(RowClaimLost("fetch", [7], 1))
        facts.emit(RowLocked("fetch", [7]))
        facts.emit(RowHindered("fetch", [7], "canceling statement due to lock timeout"))
        facts.emit(RowRaisedAfterSuccess("fetch", [7], error))
        facts.emit(PollerHindered("fetch", "column feeds.x does not exist", 2.0))
        facts.emit(RowsLeftOut("fetch", "select feeds.digest"))
    stop()

    said = [
        (record.levelname, record.message.removeprefix("poller fetch"), bool(record.exc_info))
        for record in caplog.records
    ]
    assert said == [
        ("INFO", ": row 7 was polled, and stamped although it fits where= no longer", False),
        ("INFO", ": row 7 was deleted while it was polled", False),
        ("WARNING", ": row 7 failed in attempt 1: ValueError: no such feed; next attempt in 10.0 s", False),
        (
            "ERROR",
            ': row ["a", 7] failed in attempt 10: ValueError: no such feed; it is parked, until: '
            "rota pollers release fetch '[\"a\", 7]'",
            True,
        ),
        (
            "ERROR",
            ": row 7 failed in attempt 1: in another process; it is parked, until: rota pollers release fetch 7",
            False,
        ),
        ("WARNING", ": row 7 was lost with its process (loss 1); it is tried again, apart from others", False),
        ("ERROR", ": row 7 was lost with its process; it is parked, having taken 3 with it", False),
        ("WARNING", ": the poll of row 7 ended after its claim did; its outcome changed nothing", False),
        (
            "WARNING",
            ": row 7 was polled and cannot be stamped yet: someone holds a lock on it. Look for an old transaction in "
            "pg_stat_activity (xact_start)",
            False,
        ),
        (
            "WARNING",
            ": row 7 was polled, and what became of it cannot be written yet: canceling statement due to lock timeout. Look at the "
            "triggers of its table, and at what they wait for in pg_stat_activity",
            False,
        ),
        ("ERROR", ": row 7 is polled, but its handler raised after its transaction: ValueError: no such feed", True),
        (
            "ERROR",
            " cannot look for due rows: column feeds.x does not exist; the next look is in 2 s. To see what is wrong: "
            "rota pollers check fetch --app APP",
            False,
        ),
        (
            "ERROR",
            " leaves out rows whose keys are too long to be claimed, and goes on with the others. Give the table a shorter unique key "
            "for key=... To find them: select feeds.digest",
            False,
        ),
    ]
