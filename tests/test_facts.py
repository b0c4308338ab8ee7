from __future__ import annotations

from uuid import uuid4

from rota.facts import DatabaseBack, DatabaseLost, Facts, MemberLeft


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
