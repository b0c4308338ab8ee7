"""The rows of one poller as a worker's consumer meets them: what it owes, what it knows, and when it looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.jobs.statements import join
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, claims, make_feeds, stamped, taken

from rota.errors import DatabaseUnavailable
from rota.facts import RowClaimLost, RowPolled
from rota.failure import describe
from rota.pollers.claim import new_token
from rota.pollers.execute import Executor, FailedPoll, Polled
from rota.pollers.plan import plan_of
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Finish
from rota.pollers.source import PollSource
from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        make_feeds(connection, 3)
        connection.execute("insert into rota.pollers (name) values ('fetch')")
        yield connection


@dataclass
class Member:
    """Who we are, in place of a control thread."""

    member: UUID = field(default_factory=uuid4)
    may_act: bool = True


@dataclass
class Parts:
    source: PollSource
    sessions: Sessions
    control: Member


@pytest.fixture
async def parts(rota_app: TestRota, db: Db) -> AsyncIterator[Parts]:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None: ...

    control = Member(join(db))
    sessions = Sessions(rota_app.database, pollers=3, handlers=1)
    plan = await plan_of(sessions.looking, fetch.definition)
    finish = Finish(plan)
    executor = Executor(plan, finish, transactions=sessions.transactions, stopping=lambda: False, facts=rota_app.facts)
    source = PollSource(
        plan,
        finish,
        sessions,
        control=lambda: control,  # type: ignore[arg-type, return-value]
        failed=executor.failed,
        facts=rota_app.facts,
    )
    yield Parts(source, sessions, control)
    await sessions.close()


async def test_while_it_may_not_act_it_lets_others_have_their_turn_though_more_is_due(parts: Parts) -> None:
    await parts.source.claim(1)
    parts.control.may_act = False
    parts.source.wake()
    turns: list[int] = []

    asyncio.get_running_loop().call_soon(turns.append, 1)
    assert await parts.source.claim(1) == []
    await parts.source.wait_for_more()

    assert turns == [1]


async def test_what_comes_too_late_to_be_started_is_given_back_by_the_next_look(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = parts.sessions.looking.run

    async def run_and_lose_control(query: Any) -> Any:
        answer = await run(query)
        parts.control.may_act = False
        return answer

    monkeypatch.setattr(parts.sessions.looking, "run", run_and_lose_control)
    assert await parts.source.claim(10) == []
    assert taken(db) == [1, 2, 3]

    monkeypatch.setattr(parts.sessions.looking, "run", run)
    parts.control.may_act = True
    rows = await parts.source.claim(2)

    assert [row.key for row in rows] == [[1], [2]]
    assert taken(db) == [1, 2]


async def test_handing_back_leaves_a_claim_alone_whose_answer_is_on_its_way(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, committed, answered = parts.sessions.looking.run, asyncio.Event(), asyncio.Event()

    async def run_slowly(query: Any) -> Any:
        answer = await run(query)
        committed.set()
        await answered.wait()
        return answer

    (first,) = await parts.source.claim(1)
    monkeypatch.setattr(parts.sessions.looking, "run", run_slowly)
    claiming = asyncio.create_task(parts.source.claim(10))
    await committed.wait()
    await parts.source.hand_back([first])
    for _ in range(3):
        await parts.source.give_back_unknown([])
    answered.set()

    assert [row.key for row in await claiming] == [[2], [3]]
    assert taken(db) == [2, 3]


@pytest.mark.parametrize("how", ["cancelled", "unanswered"])
async def test_a_claim_that_was_cut_off_is_given_back_when_it_stops(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run, committed = parts.sessions.looking.run, asyncio.Event()

    async def run_and_never_answer(query: Any) -> Any:
        await run(query)
        committed.set()
        if how == "unanswered":
            raise DatabaseUnavailable("no answer")
        await asyncio.Event().wait()

    monkeypatch.setattr(parts.sessions.looking, "run", run_and_never_answer)
    claiming = asyncio.create_task(parts.source.claim(10))
    await committed.wait()
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    assert taken(db) == [1, 2, 3]

    await parts.source.hand_back([])

    assert claims(db) == {}


async def test_a_claim_that_was_committed_after_it_was_given_back_is_found_and_one_of_others_is_not_touched(
    parts: Parts, db: Db
) -> None:
    (known,) = await parts.source.claim(1)
    for key, token in ((2, new_token(parts.source._mark)), (3, new_token(parts.source._mark + 1))):
        db.execute(
            "insert into rota.poll_claims (poller, key, member, token, claimed_at) values ('fetch', %s::text::jsonb, %s, %s, now())",
            [f"[{key}]", parts.control.member, token],
        )

    await parts.source.give_back_unknown([known])
    assert taken(db) == [1, 2, 3]  # it may be changing hands
    await parts.source.give_back_unknown([known])

    assert taken(db) == [1, 3]


async def test_an_outcome_that_is_refused_as_lost_is_told_as_lost_though_the_row_was_locked_before(
    parts: Parts, rota_app: TestRota, rota_database: str, db: Db
) -> None:
    (row,) = await parts.source.claim(1)
    outcome = Polled(row, changed=False, seconds=0.0)
    with psycopg.connect(rota_database) as application, rota_app.facts.recorded(RowPolled, RowClaimLost) as told:
        application.execute("select from feeds where id = 1 for update")
        assert await parts.source.settle([outcome]) == [outcome]
        db.execute("delete from rota.poll_claims")
        application.rollback()
        assert await parts.source.settle([outcome]) == []

    assert ([type(f) for f in told], stamped(db)) == ([RowClaimLost], [])


async def test_a_stamp_whose_answer_was_lost_is_done_though_it_was_refused_together_with_others_later(
    parts: Parts, rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Polled(row, changed=False, seconds=0.0) for row in await parts.source.claim(2))
    run = parts.sessions.stamping.run

    async def run_and_lose_the_answer(query: Any) -> Any:
        await run(query)
        raise DatabaseUnavailable("no answer")

    monkeypatch.setattr(parts.sessions.stamping, "run", run_and_lose_the_answer)
    with pytest.raises(DatabaseUnavailable):
        await parts.source.settle([first])
    monkeypatch.setattr(parts.sessions.stamping, "run", run)
    db.execute("alter table feeds add check (id = 1 or fetched_at is null)")
    with rota_app.facts.recorded(RowPolled, RowClaimLost) as told:
        assert await parts.source.settle([first, second]) == []

    assert [(type(each), each.key) for each in told] == [(RowPolled, [1])]


async def test_what_is_remembered_of_outcomes_ends_with_them(parts: Parts) -> None:
    rows = await parts.source.claim(10)

    await parts.source.settle([Polled(row, changed=False, seconds=0.0) for row in rows])

    source, settler = parts.source, parts.source._settler
    assert [*source._owed, *source._under_way] == []
    assert [*settler._asked, *settler._told, *settler._told_locked, *settler._turned, *settler._pieces._room] == []


async def pauses_of(source: PollSource, count: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long it would rest after each of so many looks that find nothing."""
    pauses: list[float] = []

    async def rest(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(source, "_rest", rest)
    while len(pauses) < count:
        assert await source.claim(10) == []
        await source.wait_for_more()
    return pauses


async def test_while_nothing_is_due_it_looks_ever_less_often(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("delete from feeds")

    pauses = await pauses_of(parts.source, 10, monkeypatch)

    assert pauses[0] <= 0.25
    assert all(after > 1.5 * before for before, after in pairwise(pauses[:6]))
    assert all(8 <= pause <= 10 for pause in pauses[6:])


@pytest.mark.parametrize("what", ["due", "retry"])
async def test_it_looks_when_the_next_row_is_due_or_may_be_tried_again(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    db.execute("update feeds set fetched_at = now()")
    if what == "due":
        db.execute("update feeds set fetched_at = now() - interval '5 minutes' + interval '5 seconds' where id = 2")
    else:
        db.execute(
            "insert into rota.poll_claims (poller, key, retry_at) values ('fetch', '[1]', now() + interval '5 seconds')"
        )

    pauses = await pauses_of(parts.source, 9, monkeypatch)

    assert all(4 < pause <= 5 for pause in pauses[6:])


async def test_a_parked_row_is_not_waited_for(parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    db.execute("update feeds set fetched_at = now()")
    db.execute(
        "insert into rota.poll_claims (poller, key, retry_at, parked_at) values ('fetch', '[1]', now() + interval '1s', now())"
    )

    assert (await pauses_of(parts.source, 9, monkeypatch))[-1] > 5


async def test_what_is_expected_while_it_asks_for_the_next_time_is_not_forgotten(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await parts.source.claim(10)
    monkeypatch.setattr("rota.pollers.source._FIRST_PAUSE", 3600.0)
    parts.source._definition = replace(parts.source._definition, idle=3600.0)
    asked = parts.source._ask_for_next

    async def ask_and_be_late() -> float:
        answer = await asked()
        await parts.source.settle([FailedPoll(rows[0], describe(ValueError()), 0.05, 0.0)])
        return answer

    monkeypatch.setattr(parts.source, "_ask_for_next", ask_and_be_late)
    for _ in range(2):
        assert await parts.source.claim(10) == []
        async with asyncio.timeout(5):
            await parts.source.wait_for_more()


async def test_what_becomes_due_between_the_look_and_the_next_time_is_not_overlooked(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.pollers.source._FIRST_PAUSE", 3600.0)
    parts.source._definition = replace(parts.source._definition, idle=3600.0)
    db.execute("update feeds set fetched_at = now()")
    asked = parts.source._ask_for_next

    async def ask_and_become_due() -> float:
        answer = await asked()
        db.execute("update feeds set fetched_at = now() - interval '1 day' where id = 1")
        return answer

    assert await parts.source.claim(10) == []
    await parts.source.wait_for_more()
    monkeypatch.setattr(parts.source, "_ask_for_next", ask_and_become_due)

    assert [row.key for row in await parts.source.claim(10)] == [[1]]


async def test_what_was_expected_before_a_look_does_not_make_it_look_again(
    parts: Parts, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("delete from feeds")
    monkeypatch.setattr("rota.pollers.source._FIRST_PAUSE", 3600.0)
    parts.source._definition = replace(parts.source._definition, idle=3600.0)
    assert await parts.source.claim(10) == []
    await parts.source.wait_for_more()
    parts.source._expect(0)
    assert await parts.source.claim(10) == []

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await parts.source.wait_for_more()
