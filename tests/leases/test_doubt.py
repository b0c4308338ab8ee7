"""What a process that leads believes while its control thread gets no turn: no less than what is so, and no more."""

# ruff: noqa: PT012 - what is raised at the end of a block is raised after its statements

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from rota import DatabaseUnavailable, LeadershipLost, Rota, Term
from rota.clock import boottime
from rota.leases import control, session
from rota.leases.bell import Bell
from rota.leases.control import Control
from rota.leases.hearing import Hearing
from rota.leases.members import hold_lock
from rota.leases.session import ControlSession
from rota.leases.terms import confirm_term
from rota.postgres.ask import ask_sync
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.testing import until

pytestmark = pytest.mark.one_server

Db = psycopg.Connection[Any]
Starved = Callable[[Term], contextlib.AbstractContextManager[None]]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> Starved:
    """Keeps the control thread from its next look, and lets the last one be older than a suspicion has to stand."""

    @contextlib.contextmanager
    def starve(term: Term) -> Iterator[None]:
        rest, waits, may_go_on = ControlSession.rest, threading.Event(), threading.Event()

        def stand_still(self: ControlSession, seconds: float, hand_on: Any) -> None:
            waits.set()
            may_go_on.wait(30)
            rest(self, seconds, hand_on)

        with monkeypatch.context() as patch:
            patch.setattr(ControlSession, "rest", stand_still)
            term.control._bell.ring()
            assert waits.wait(10)
            patch.setattr(control, "boottime", lambda: boottime() + 1)
            try:
                yield
            finally:
                may_go_on.set()

    return starve


def cut_control_session(db: Db) -> None:
    db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name like 'rota:control%'"
    )


async def test_a_term_is_valid_although_the_control_thread_gets_no_turn(rota_database: str, starved: Starved) -> None:
    """As when a body holds the interpreter for a second."""
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        with starved(term):
            assert term.valid


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="cannot be told from a goodbye here")
async def test_an_answer_that_nobody_has_read_yet_does_not_make_it_invalid(
    rota_database: str, starved: Starved, db: Db
) -> None:
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        with starved(term):
            db.execute("select rota.announce('indexer')")
            connection = term.control._session.connection
            assert connection is not None
            assert select.select([connection.fileno()], [], [], 10)[0]
            assert term.valid


async def test_a_session_that_was_cut_meanwhile_is_not_trusted(rota_database: str, starved: Starved, db: Db) -> None:
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        with starved(term):
            cut_control_session(db)
            await until(lambda: not term.valid, what="it is in doubt")
        await until(lambda: term.valid, what="it is attached again")


async def test_nor_is_one_after_the_machine_was_asleep(
    rota_database: str, starved: Starved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said to it meanwhile is on its way again, and not there yet."""
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        asleep = session._asleep
        with starved(term):
            monkeypatch.setattr(session, "_asleep", lambda: asleep() + 5)
            assert not term.valid
        await until(lambda: term.valid, what="the database has answered")


async def test_confirming_believes_the_database(rota_database: str, starved: Starved) -> None:
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        with starved(term):
            asked = term.control.ask(confirm_term(term.name, term.epoch, term.member))
        assert asked.result(10)
        await term.confirm()


@pytest.mark.parametrize("error", [LeadershipLost, DatabaseUnavailable])
async def test_confirming_says_whether_it_is_over_or_cannot_be_told(
    rota_database: str, monkeypatch: pytest.MonkeyPatch, db: Db, error: type[Exception]
) -> None:
    async with Rota(rota_database) as app:
        with contextlib.suppress(LeadershipLost):
            async with app.leadership("indexer") as term:
                monkeypatch.setattr(Control, "trusts", lambda *_: False)
                if error is LeadershipLost:
                    db.execute("update rota.leases set epoch = epoch + 1")
                with pytest.raises(error):
                    await term.confirm()
        monkeypatch.undo()


def test_a_block_that_ends_in_a_moment_of_doubt_raises_nothing_if_nothing_was_lost(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False])
    with Rota(rota_database) as app, app.leadership("indexer"):
        monkeypatch.setattr(Control, "trusts", lambda *_: next(answers, True))
    assert list(answers) == []


@pytest.mark.parametrize("says", [False, DatabaseUnavailable("away")])
@pytest.mark.long
def test_and_raises_if_it_was_or_nobody_can_tell(
    rota_database: str, monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    with Rota(rota_database) as app, pytest.raises(LeadershipLost), app.leadership("indexer") as term:
        answer: Future[Any] = Future()
        answer.set_result(says) if says is False else answer.set_exception(says)
        monkeypatch.setattr(Control, "trusts", lambda *_: False)
        monkeypatch.setattr(term.control, "ask", lambda query: answer)


async def test_a_question_that_meets_the_end_of_the_session_is_told_that_the_database_is_away(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is cut while the thread rests, and it is asked in the same moment."""
    rest = Bell.rest
    asked: list[Future[bool]] = []

    def cut(self: Bell, seconds: float, *also: int) -> bool:
        if also and not asked:
            with socket.socket(fileno=os.dup(also[0])) as line:
                line.shutdown(socket.SHUT_RDWR)
            asked.append(term.control._questions.put(confirm_term(term.name, term.epoch, term.member)))
        return rest(self, seconds, *also)

    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        monkeypatch.setattr(Bell, "rest", cut)
        await until(lambda: asked and asked[0].done(), what="it is answered")
        assert isinstance(asked[0].exception(), DatabaseUnavailable)
        await until(lambda: term.valid, what="it is attached again")


async def test_a_session_that_ends_as_it_begins_to_listen_is_a_database_that_is_away(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(self: Hearing, connection: psycopg.Connection[Any]) -> None:
        connection.pgconn.finish()
        connection.execute("select 1")

    monkeypatch.setattr(Hearing, "listen", cut)
    async with Rota(rota_database) as app:
        with pytest.raises(DatabaseUnavailable):
            async with app.leadership("indexer"):
                pass


@pytest.mark.long
async def test_a_flood_of_questions_holds_up_neither_the_beat_nor_the_look(rota_database: str, db: Db) -> None:
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        over = threading.Event()

        def ask_again(answered: Future[bool] | None = None) -> None:
            if not over.is_set():
                term.control.ask(confirm_term(term.name, term.epoch, term.member)).add_done_callback(ask_again)

        for _ in range(3):
            ask_again()
        try:
            since = boottime()
            await until(lambda: (term.control._session.well_at or 0) > since, what="an answer was a look")
            for _ in range(2):
                beats = db.execute("select renewed_at from rota.members").fetchall()
                await until(
                    lambda b=beats: db.execute("select renewed_at from rota.members").fetchall() != b, what="a beat"
                )  # type: ignore[misc]
        finally:
            over.set()


def test_an_answer_that_is_heard_late_tells_of_when_it_was_asked_for(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was cut off while the answer lay there may be suspected since then."""
    answered_at: list[float] = []

    def frozen_before_it_is_heard(*question: Any) -> Any:
        answer = ask_sync(*question)
        answered_at.append(boottime())
        monkeypatch.setattr(session, "boottime", lambda: boottime() + 5)
        return answer

    with (
        contextlib.closing(Bell()) as bell,
        contextlib.closing(ControlSession(Connector(Dsn(rota_database), "control"), "rota", bell)) as own,
    ):
        own.open()
        opened_at = own.well_at
        monkeypatch.setattr(session, "ask_sync", frozen_before_it_is_heard)
        own.ask(hold_lock(42))

        assert opened_at is not None
        assert own.well_at is not None
        assert opened_at < own.well_at < answered_at[0]
