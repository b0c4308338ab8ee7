"""Dead letters by what they died of, and how a group is tried with a few of them first."""

from __future__ import annotations

from typing import Any

import pytest

from rota import ConfigurationError, NotPossible
from rota.jobs.fingerprint import fingerprint, normalised, own_frame
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

TRACE = """Traceback (most recent call last):
  File "/srv/shop/app/mail.py", line {line}, in send
    client.post(url)
  File "/usr/lib/python3/dist-packages/httpx/_client.py", line 1, in post
    raise ConnectError(message)
  File "/usr/lib/python3.12/socket.py", line 12, in connect
    raise OSError
httpx.ConnectError: refused
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no user 17", "no user 4"),
        ("order 0198f3a2-0c1e-7d3a-9f40-aaaaaaaaaaaa is gone", "order 1198f3a2-0c1e-7d3a-9f40-bbbbbbbbbbbb is gone"),
        ("<Object at 0x7f00ab>", "<Object at 0x7f11cd>"),
        ("key 'ann' is missing", "key 'bo' is missing"),
        ('no "a" here\nand more', 'no "b" here\nand less'),
        ("ann@example.com bounced", "bo.b@mail.example.org bounced"),
        ("took 1.5 s until 12:30:01", "took 20 s until 9:01:59"),
        ("commit deadbeef00112233 failed", "commit 0123456789abcdef failed"),
    ],
)
def test_what_differs_each_time_is_left_out_of_a_message(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_what_a_message_says_is_left_in_it() -> None:
    assert normalised("can't connect to host") != normalised("can't connect to port")
    assert normalised("it isn't there, and that's all") == "it isn't there, and that's all"
    assert normalised("effaced decade") == "effaced decade"  # letters of hex alone are words
    assert len(normalised("x " * 5000)) <= 200


def test_the_place_is_the_innermost_frame_of_ones_own_code_whatever_its_line() -> None:
    assert own_frame(TRACE.format(line=7)) == "app/mail.py in send"
    assert own_frame("no trace") == ""
    first, second = (fingerprint("failed", "E", "no 1", TRACE.format(line=line)) for line in (7, 8))
    assert first == second
    assert first != fingerprint("failed", "E", "no 1", TRACE.format(line=7).replace("in send", "in take"))
    assert first != fingerprint("failed", "F", "no 1", TRACE.format(line=7))
    assert fingerprint("lost", None, None, None).error_type == "lost"


def failing(app: TestRota) -> dict[str, bool]:
    """A task that fails while this says so, for two reasons."""
    broken = {"is": True}

    @app.task(name="send", queue="mail", retry=None)
    def send(to: str, kind: str = "refused") -> None:
        if broken["is"]:
            raise ConnectionError(f"{kind}: {to!r}")

    return broken


async def test_letters_are_grouped_by_what_they_died_of(rota_app: TestRota) -> None:
    failing(rota_app)
    send = rota_app.tasks["send"]
    for n in range(5):
        await send.enqueue(f"user{n}")
    await send.enqueue("ann", "full")
    await rota_app.drain()

    told = await rota_app.dead.groups()

    assert told == rota_app.dead.groups_sync(queue="mail", task=send)
    assert (told.letters, told.exact) == (6, True)
    assert [(group.letters, group.error_type, group.message) for group in told.groups] == [
        (5, "ConnectionError", "refused: '…'"),
        (1, "ConnectionError", "full: '…'"),
    ]
    (group, _) = told.groups
    assert group.frame == "jobs/test_groups.py in send"
    assert (group.tasks, group.queues, group.days[-1], sum(group.days)) == ({"send": 5}, {"mail": 5}, 5, 5)
    assert group.last_message == "refused: 'user4'"
    assert list(group.releases.values()) == [5]
    assert group.first_at <= group.last_at
    assert (await rota_app.dead.groups(task="nothing")).groups == ()
    few = await rota_app.dead.groups(most=3)
    assert (few.letters, few.exact) == (3, False)


async def test_a_group_is_tried_with_canaries_and_then_as_a_whole(rota_app: TestRota) -> None:
    broken = failing(rota_app)
    send = rota_app.tasks["send"]
    for n in range(5):
        await send.enqueue(f"user{n}")
    await send.enqueue("ann", "full")
    await rota_app.drain()
    (group, other) = (await rota_app.dead.groups()).groups

    assert len(await rota_app.dead.retry_group(group.id, canary=2, dry_run=True)) == 2
    assert (await rota_app.dead.groups()).letters == 6
    canaries = await rota_app.dead.retry_group(group.id, canary=2, by="ana")
    (waiting, _) = (await rota_app.dead.groups()).groups
    await rota_app.drain()
    failed_again = (await rota_app.dead.groups()).groups[0]
    broken["is"] = False
    (third,) = rota_app.dead.retry_group_sync(group.id, canary=1)
    await rota_app.drain()
    fared = (await rota_app.dead.groups()).groups[0]
    rest = await rota_app.dead.retry_group(group.id)
    await rota_app.drain()

    assert len(canaries) == 2
    assert (waiting.id, waiting.letters, waiting.retried) == (group.id, 3, {"queued": 2})
    assert (failed_again.letters, failed_again.retried) == (5, {"dead": 2})
    assert (fared.letters, fared.retried) == (4, {"dead": 2, "succeeded": 1})
    assert len(rest) == 4
    assert (await rota_app.jobs.get(third)).state == "succeeded"
    assert [left.id for left in (await rota_app.dead.groups()).groups] == [other.id]


async def test_a_group_is_put_away_and_only_that(rota_app: TestRota) -> None:
    failing(rota_app)
    send = rota_app.tasks["send"]
    for kind in ("refused", "full", "refused"):
        await send.enqueue("ann", kind)
    await rota_app.drain()
    (group, other) = (await rota_app.dead.groups()).groups

    assert await rota_app.dead.acknowledge_group(group.id, "known", by="ana", dry_run=True) == 2
    assert rota_app.dead.acknowledge_group_sync(group.id, "known", by="ana") == 2

    assert [left.id for left in (await rota_app.dead.groups()).groups] == [other.id]
    assert {letter.note for letter in await rota_app.dead.list(resolved=True)} == {"known"}
    with pytest.raises(NotPossible, match="No open letter is in the group"):
        await rota_app.dead.acknowledge_group(group.id)
    with pytest.raises(NotPossible, match="No open letter is in the group"):
        await rota_app.dead.retry_group("nothing")


@pytest.mark.parametrize("wrong", [0, -1, "2", True])
async def test_a_canary_is_at_least_one_letter(rota_app: TestRota, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="canary cannot be"):
        await rota_app.dead.retry_group("any", canary=wrong)
