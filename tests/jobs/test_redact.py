"""Redacted arguments: nobody who looks at jobs, letters, errors, facts or logs gets to see them."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import Discard, InvalidArguments, JobExists, Unique
from rota.blot import MASK, blotted, forms
from rota.cli.target import find_app
from rota.facts import Fact, JobFailed, JobRaisedAfterSuccess
from rota.integrations.logging import log_facts
from rota.jobs.redact import texts_in
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

SECRET = "open sesame, said the fortieth thief to the rock, and waited a long while for an answer from within"


class Colour(Enum):
    RED = "crimson tide"


class Struct(msgspec.Struct):
    inner: str


class Model(pydantic.BaseModel):
    inner: pydantic.SecretStr


@dataclass
class Card:
    number: str
    codes: list[int]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("hidden", ["hidden"]),
        (None, []),
        (True, []),
        (12345, ["12345"]),
        (b"\xffhidden", [r"\xffhidden", "\ufffdhidden"]),
        ({"key": ["one", ("two", {"three"})]}, ["one", "two", "three"]),
        (Card("4111", [77777]), ["4111", "77777"]),
        (Struct("four"), ["four"]),
        (Model(inner=pydantic.SecretStr("five")), ["five"]),
        (Colour.RED, ["crimson tide"]),
        (datetime(2030, 1, 31, tzinfo=UTC), ["2030-01-31 00:00:00+00:00"]),
    ],
)
def test_every_text_within_a_value_is_found(value: Any, texts: list[str]) -> None:
    assert list(texts_in(value)) == texts


@pytest.mark.parametrize(
    "quoted",
    [
        f"not {SECRET}.",
        f"not {SECRET!r}",
        f"input_value='{SECRET[:25]}...{SECRET[-24:]}', input_type=str",
        f"'{SECRET[:36]}…{SECRET[-36:]}' (str)",
        f"it was {SECRET[:90]}…",
        f"…{SECRET[4:]} was its end",
    ],
)
def test_a_secret_is_blotted_out_whole_and_in_pieces(quoted: str) -> None:
    shown = blotted(quoted, forms([SECRET]))

    assert MASK in shown
    assert not any(SECRET[n : n + 4] in shown for n in range(len(SECRET) - 3))


@pytest.mark.parametrize("secret", ['it\'s "quoted"', "two\nlines of it", "tab\there", "grüße", "back\\slash"])
def test_a_secret_is_found_in_every_way_of_quoting_it(secret: str) -> None:
    for quoted in (secret, repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        assert blotted(f"<{quoted}>", forms([secret])).strip("<>'\"") == MASK


def test_a_secret_of_several_lines_is_found_where_a_margin_divides_them() -> None:
    shown = blotted("  | -----BEGIN KEY-----\n  | MIIEvQIBADANBg\n", forms(["-----BEGIN KEY-----\nMIIEvQIBADANBg\n"]))

    assert shown == f"  | {MASK}\n  | {MASK}\n"


@given(st.text(), st.text(min_size=4).filter(lambda text: len(text.strip()) >= 4), st.text())
@pytest.mark.long
def test_whatever_surrounds_it_a_secret_is_gone(before: str, secret: str, after: str) -> None:
    assert secret not in blotted(before + secret + after, forms([secret])).replace(MASK, "")


def test_what_stands_beside_an_ellipsis_by_chance_stays() -> None:
    assert blotted("opening… the door... in the rock", forms([SECRET])) == "opening… the door... in the rock"


class Login(msgspec.Struct):
    user: str
    password: str


class Strict(pydantic.BaseModel):
    password: int


RAISED = [
    pytest.param(lambda login: PermissionError(f"not with {login}"), id="the value"),
    pytest.param(lambda login: PermissionError(f"not with {login.password!r}"), id="a field of it"),
    pytest.param(lambda login: PermissionError(f"not with {login.password[:20]}..."), id="a piece"),
    pytest.param(lambda login: KeyError(login.password), id="a key"),
    pytest.param(lambda login: ExceptionGroup("several", [ValueError(login.password)]), id="in a group"),
    pytest.param(lambda login: SystemExit(f"no {login.password}"), id="no Exception"),
]


@pytest.mark.parametrize("made", RAISED)
@pytest.mark.parametrize("codec", [pytest.param(False, marks=pytest.mark.long), True])
async def test_no_error_tells_a_secret(
    rota_app: TestRota, caplog: pytest.LogCaptureFixture, made: Any, codec: bool
) -> None:
    if codec:
        rota_app.codec = Backwards()
        rota_app._use(rota_app.settings)

    @rota_app.task(redact=["login"], retry=None)
    def log_in(login: Login) -> None:
        try:
            raise made(login)
        except Exception as error:
            raise RuntimeError(f"at last: {error}") from error

    caplog.set_level(logging.DEBUG, logger="rota")
    unsubscribe = log_facts(rota_app.facts)
    job = await log_in.enqueue(Login("ada", SECRET))
    with rota_app.facts.recorded(Fact) as facts:
        await rota_app.drain()
    unsubscribe()

    dead = await job.refresh()
    letter = await rota_app.dead.get(job.id)
    explained = await rota_app.jobs.explain(job.id)
    assert dead.state == "dead"
    for told in (dead, letter, explained, str(explained), facts, caplog.text, *facts):
        assert SECRET[:12] not in str(told) + repr(told)
    (failed,) = [each for each in facts if isinstance(each, JobFailed)]
    assert SECRET[:12] not in "".join(getattr(failed.error, "__notes__", ()))
    assert failed.error is not None
    assert failed.error.__cause__ is None


class Backwards:
    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


async def test_arguments_that_do_not_fit_are_refused_without_a_word_on_the_secret(
    rota_app: TestRota, rota_database: str
) -> None:
    @rota_app.task(name="log_in", redact=["password", "login"], retry=None)
    def log_in(user: str, password: int = 0, login: Strict | None = None) -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        await log_in.enqueue("ada", SECRET)  # type: ignore[arg-type]
    assert "argument password is redacted (its value is not shown), expected int" in str(refused.value)
    with psycopg.connect(rota_database, autocommit=True) as db:
        for args in (
            {"user": "ada", "password": SECRET},
            {"user": "ada", "login": {"password": SECRET}},
            {"user": "ada", "pasword": SECRET},
        ):
            db.execute("select rota.enqueue('log_in', %s)", [json.dumps(args)])
    await rota_app.drain()

    letters = await rota_app.dead.list()
    assert [letter.error_type for letter in letters] == ["InvalidArguments"] * 3
    assert SECRET[:12] not in str([(letter.error_message, letter.error_trace) for letter in letters])
    assert "password is redacted (its value is not shown), expected an integer" in (letters[2].error_message or "")


async def test_the_secret_of_an_older_version_is_one_under_its_old_name(rota_app: TestRota) -> None:
    @rota_app.task(name="log_in", redact=["pw"])
    def old(pw: str) -> None: ...

    job = await old.enqueue(SECRET)
    del rota_app.tasks._tasks["log_in"]

    @rota_app.task(name="log_in", version=2, redact=["password"], retry=None)
    def log_in(password: str) -> None: ...

    @log_in.upgrade
    def upgrade(args: dict[str, Any], version: int) -> dict[str, Any]:
        raise ValueError(f"cannot upgrade {args}")

    await rota_app.drain()

    dead = await job.refresh()
    assert dead.args == {"pw": MASK}
    assert dead.errors[0].message == f"cannot upgrade {{'pw': '{MASK}'}}"


async def test_what_sql_enqueued_is_masked_by_the_task_that_the_app_knows(
    rota_app: TestRota, rota_database: str
) -> None:
    @rota_app.task(name="log_in", redact=["password"], retry=None)
    def log_in(user: str, password: str) -> None:
        raise PermissionError(f"not with {password}")

    with psycopg.connect(rota_database, autocommit=True) as db:
        row = db.execute(
            "select rota.enqueue('log_in', %s)", [json.dumps({"user": "ada", "password": SECRET})]
        ).fetchone()
    assert row is not None
    shown = {"user": "ada", "password": MASK}
    assert (await rota_app.jobs.get(row[0])).args == shown
    assert [job.args for job in await rota_app.jobs.list()] == [shown]
    await rota_app.drain()

    assert (await rota_app.jobs.get(row[0])).args == shown
    assert (await rota_app.dead.get(row[0])).args == shown
    assert [letter.args for letter in await rota_app.dead.list()] == [shown]
    assert (await rota_app.jobs.explain(row[0])).job.args == shown
    assert (await rota_app.dead.acknowledge(row[0])).args == shown


LATE = """
from rota import Rota, current_job

app = Rota("postgresql://nobody@127.0.0.1:1/nowhere")

def late(password: str) -> None:
    with current_job().transaction():
        pass
    raise PermissionError(f"not with {password}")

in_a_thread = app.task(name="in_a_thread", redact=["password"])(late)
in_a_process = app.task(name="in_a_process", redact=["password"], executor="process")(late)
"""


@pytest.mark.parametrize("name", ["in_a_thread", pytest.param("in_a_process", marks=pytest.mark.long)])
async def test_what_is_raised_after_success_tells_no_secret(rota_database: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "late_tasks.py").write_text(LATE)
    app = TestRota(rota_database, of=find_app(str(tmp_path / "late_tasks.py")))

    job = await app.enqueue(app.tasks[name].bind(SECRET))
    with app.facts.recorded(JobRaisedAfterSuccess) as raised:
        await app.drain()

    assert (await job.refresh()).state == "succeeded"
    assert [str(each.error) for each in raised] == [f"not with {MASK}"]
    assert SECRET[:12] not in "".join(raised[0].error.__notes__)


async def test_a_reason_to_discard_tells_no_secret(rota_app: TestRota) -> None:
    @rota_app.task(redact=["password"])
    async def log_in(password: str) -> None:
        raise Discard(f"{password} is no password")

    job = await log_in.enqueue(SECRET)
    with rota_app.facts.recorded(Fact) as facts:
        await rota_app.drain()

    assert (await job.refresh()).reason == f"{MASK} is no password"
    assert SECRET not in str(facts)


async def test_a_job_that_exists_tells_no_secret(rota_app: TestRota) -> None:
    @rota_app.task(redact=["password"], unique=Unique(conflict="raise"))
    async def log_in(password: str) -> None: ...

    await log_in.enqueue(SECRET)
    with pytest.raises(JobExists) as exists:
        await log_in.enqueue(SECRET)
    with pytest.raises(JobExists) as twins:
        await rota_app.enqueue_many([log_in.bind(SECRET), log_in.bind(SECRET)])

    assert SECRET not in str(exists.value) + repr(exists.value.job) + str(twins.value)


async def test_a_job_from_plain_sql_that_exists_tells_no_secret(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task(name="log_in", redact=["password"], unique="once")
    async def log_in(user: str, password: str) -> None: ...

    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "select rota.enqueue('log_in', jsonb_build_object('user', 'ali', 'password', %s::text), unique_key => 'once')",
            [SECRET],
        )

    there = await log_in.enqueue("ali", "another")
    with pytest.raises(JobExists) as exists:
        await log_in.using(unique=Unique(by="once", conflict="raise")).enqueue("ali", "another")

    assert there.args == exists.value.job.args == {"user": "ali", "password": MASK}
    assert SECRET not in repr(there) + repr(exists.value.job)


async def test_edited_arguments_that_are_refused_tell_no_secret(rota_app: TestRota) -> None:
    @rota_app.task(name="log_in", redact=["password"], retry=None)
    async def log_in(password: str) -> None:
        raise PermissionError

    job = await log_in.enqueue(SECRET)
    await rota_app.drain()
    for args in ({"password": [SECRET]}, {"password": {SECRET}}):
        with pytest.raises(InvalidArguments, match=f"Letter {job.id} was not retried, and stays: ") as refused:
            await rota_app.dead.retry(job.id, args)
        assert SECRET[:12] not in str(refused.value)
