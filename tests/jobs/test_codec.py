"""A codec that does not keep its word: refused when the app is made, told at enqueue, and one failed job when it is read."""

from __future__ import annotations

from typing import Any

import pytest

from rota import ConfigurationError, InvalidArguments, Rota, current_job
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")


class Plain:
    """A codec that works, until one of its ways is changed."""

    def __init__(self, encode: Any = None, decode: Any = None) -> None:
        self._encode, self._decode = encode, decode

    def encode(self, text: str) -> Any:
        return self._encode(text) if self._encode else text[::-1]

    def decode(self, text: str) -> Any:
        return self._decode(text) if self._decode else text[::-1]


class Broken(Exception):
    pass


def raising(text: str) -> str:
    raise Broken("the key service is away")


class Halved:
    def encode(self, text: str) -> str:
        return text


class Async:
    async def encode(self, text: str) -> str:
        return text

    async def decode(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        ("base64", "codec cannot be 'base64': it has no decode\\(text\\)"),
        (Halved(), "it has no decode\\(text\\)"),
        (Async(), "its encode is async"),
        (Plain, "it is a class: pass one of its instances"),
    ],
)
def test_what_cannot_be_a_codec_is_refused_when_the_app_is_made(codec: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Rota("dbname=nowhere", codec=codec)


@pytest.fixture
def codec() -> Plain:
    return Plain()


@pytest.fixture
def app(rota_app: TestRota, codec: Plain) -> TestRota:
    """The app, with a codec that a test may break."""
    rota_app.codec = codec
    rota_app._use(rota_app.settings)
    return rota_app


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (raising, "the codec Plain could not encode it \\(Broken: the key service is away\\). Nothing was stored."),
        (
            lambda text: text.encode(),
            "the codec Plain returned something of type bytes, and text is what can be stored",
        ),
        (lambda text: "\udc80", "the codec Plain returned text with NUL or a lone surrogate"),
        (lambda text: None, "the codec Plain returned None"),
    ],
)
async def test_a_codec_that_fails_is_told_to_whoever_enqueues(
    app: TestRota, codec: Plain, broken: Any, says: str
) -> None:
    echo = app.task(name="echo")(lambda word: word)
    codec._encode = broken

    with pytest.raises(InvalidArguments, match=f"Task 'echo' was not enqueued: {says}"):
        await echo.enqueue("x")
    with pytest.raises(InvalidArguments, match=f"Task 'echo' was not enqueued: {says}"):
        await app.enqueue_many([echo.bind("x")])
    with pytest.raises(InvalidArguments, match=f"Task 'echo' was not enqueued: {says}"):
        echo.using(unique="k").enqueue_sync("x")
    assert app.enqueued() == []


async def test_what_a_codec_says_of_secrets_is_not_repeated(app: TestRota, codec: Plain) -> None:
    def quoting(text: str) -> str:
        raise Broken(f"cannot encode {text}")

    log_in = app.task(name="log_in", redact=["password"])(lambda password: None)
    codec._encode = quoting

    with pytest.raises(InvalidArguments, match=r"could not encode it \(Broken\)") as refused:
        await log_in.enqueue("open sesame")
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (raising, "The codec Plain could not read a stored payload (Broken: the key service is away)."),
        (lambda text: "no JSON", "The codec Plain made of a stored payload what is no JSON text but other text."),
        (lambda text: 7, "The codec Plain made of a stored payload what is no JSON text but something of type int."),
        (lambda text: None, "The codec Plain made of a stored payload what is no JSON text but None."),
    ],
)
async def test_a_codec_that_fails_on_reading_fails_that_one_job(
    app: TestRota, codec: Plain, broken: Any, says: str
) -> None:
    def breaking(text: str) -> Any:
        return broken(text) if "bad" in text[::-1] else text[::-1]

    echo = app.task(name="echo", retry=None)(lambda word: word)
    codec._decode = breaking
    bad, good = await echo.enqueue("bad"), await echo.enqueue("good")
    await app.drain()

    assert await good.wait() == "good"
    dead = await bad.refresh()
    assert (dead.state, dead.errors[0].type) == ("dead", "InvalidArguments")
    assert (dead.errors[0].message or "").startswith(says)
    assert dead.args.keys() == {"rota:coded"}  # shown as it is stored


async def test_a_result_or_checkpoint_that_the_codec_cannot_encode_fails_the_attempt(
    app: TestRota, codec: Plain
) -> None:
    @app.task(name="late", retry=None)
    async def late(word: str) -> str:
        codec._encode = raising
        if word == "checkpoint":
            await current_job().checkpoint(1)
        if word == "transaction":
            async with current_job().transaction() as tx:
                tx.result = word
        return word

    errors = {}
    for word in ("result", "checkpoint", "transaction"):
        codec._encode = None
        job = await late.enqueue(word)
        await app.drain()
        errors[word] = (await job.refresh()).errors[0].message

    failed = (
        "was not stored: the codec Plain could not encode it (Broken: the key service is away). Nothing was stored."
    )
    assert errors == {
        "result": f"The result of task 'late' {failed}",
        "checkpoint": f"The checkpoint of task 'late' {failed}",
        "transaction": f"The result of task 'late' {failed}",
    }
