from __future__ import annotations

import logging
from uuid import uuid4

import pytest

from rota.facts import (
    DatabaseBack,
    DatabaseLost,
    Facts,
    LeadershipEnded,
    LeadershipGained,
    MemberLeft,
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
