"""The hook: one for the process, before the server's handlers, and gone afterwards."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from rota.integrations.asgi import signals
from rota.integrations.asgi.signals import SignalHook, Unhooked
from rota.service.ending import Ending
from rota.testing import until


class FakeServer:
    """What uvicorn is to the hook: a handler that is a method, and a configuration."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.config = type("Config", (), {"reload": False})()

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        self.told.append(number)


@pytest.fixture
def ending() -> Ending:
    return Ending()


@pytest.fixture
def hook(ending: Ending) -> SignalHook:
    return SignalHook(ending)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    yield server
    for number, handler in before.items():
        signal.signal(number, handler)


def seconds(value: float) -> Callable[[], float]:
    return lambda: value


async def test_the_first_signal_begins_the_end_and_the_server_hears_of_it_when_the_window_is_over(
    hook: SignalHook, ending: Ending, server: FakeServer
) -> None:
    hook.enter(seconds(0.2))

    signal.raise_signal(signal.SIGTERM)

    assert (ending.begun, ending.hurried, ending.reason, server.told) == (True, False, "SIGTERM", [])
    await until(lambda: server.told == [signal.SIGTERM])


async def test_the_second_signal_hurries_and_is_handed_on_at_once(
    hook: SignalHook, ending: Ending, server: FakeServer
) -> None:
    leave = hook.enter(seconds(60))
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0)

    signal.raise_signal(signal.SIGTERM)

    assert (ending.hurried, server.told) == (True, [signal.SIGTERM])
    signal.raise_signal(signal.SIGINT)
    assert server.told == [signal.SIGTERM, signal.SIGINT]
    leave()


async def test_the_window_counts_from_the_begin_of_the_end_also_when_that_was_no_signal(
    hook: SignalHook, ending: Ending, server: FakeServer
) -> None:
    hook.enter(seconds(0.05))
    ending.begin("the drain endpoint")
    await asyncio.sleep(0.1)

    signal.raise_signal(signal.SIGTERM)

    assert (ending.hurried, server.told) == (False, [signal.SIGTERM])


async def test_while_the_application_starts_there_is_no_window(
    hook: SignalHook, ending: Ending, server: FakeServer
) -> None:
    hook.enter(seconds(0))

    signal.raise_signal(signal.SIGTERM)

    assert (ending.begun, server.told) == (True, [signal.SIGTERM])


async def test_under_a_reloader_nothing_is_waited_for(hook: SignalHook, ending: Ending, server: FakeServer) -> None:
    server.config.reload = True
    hook.enter(seconds(60))

    signal.raise_signal(signal.SIGTERM)

    assert (ending.hurried, server.told) == (True, [signal.SIGTERM])


async def test_several_applications_share_one_hook_with_the_longest_window_and_the_last_takes_it_away(
    hook: SignalHook, ending: Ending, server: FakeServer
) -> None:
    leave_first, leave_second = hook.enter(seconds(0.01)), hook.enter(seconds(60))
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert server.told == []

    leave_first()
    leave_first()
    assert signal.getsignal(signal.SIGTERM) != server.handle_exit
    leave_second()

    assert signal.getsignal(signal.SIGTERM) == server.handle_exit
    assert signal.getsignal(signal.SIGINT) == server.handle_exit


async def test_a_handler_that_was_set_later_stays_and_reaches_the_server_through_us(
    hook: SignalHook, ending: Ending, server: FakeServer
) -> None:
    leave = hook.enter(seconds(0))
    heard: list[int] = []
    ours: Any = signal.getsignal(signal.SIGTERM)

    def theirs(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        ours(number, frame)

    signal.signal(signal.SIGTERM, theirs)
    signal.raise_signal(signal.SIGTERM)
    assert (heard, ending.begun, server.told) == ([signal.SIGTERM], True, [signal.SIGTERM])

    leave()

    assert signal.getsignal(signal.SIGTERM) is theirs
    signal.raise_signal(signal.SIGTERM)
    assert server.told == [signal.SIGTERM] * 2


async def test_handlers_of_the_event_loop_are_taken_and_given_back(hook: SignalHook, ending: Ending) -> None:
    loop, told = asyncio.get_running_loop(), list[str]()
    loop.add_signal_handler(signal.SIGTERM, told.append, "the server")
    try:
        leave = hook.enter(seconds(0.1))
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: ending.begun)
        assert told == []
        await until(lambda: told == ["the server"])

        leave()

        signal.raise_signal(signal.SIGTERM)
        await until(lambda: told == ["the server"] * 2)
        assert not ending.hurried
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_where_no_server_handles_signals_there_is_nothing_to_take(hook: SignalHook) -> None:
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(Unhooked, match="nothing to hand it on to"):
        hook.enter(seconds(1))

    assert signal.getsignal(signal.SIGINT) is before


async def test_in_another_thread_there_is_no_hook_and_that_is_said(hook: SignalHook, server: FakeServer) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        with pytest.raises(Unhooked, match="not the main thread") as error:
            asyncio.run(enter())
        raised.append(error.value)

    async def enter() -> None:
        hook.enter(seconds(1))

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join)

    assert len(raised) == 1
    assert signal.getsignal(signal.SIGTERM) == server.handle_exit


async def test_ctrl_c_at_a_terminal_is_handed_on_at_once_and_sigterm_is_not(
    hook: SignalHook, ending: Ending, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals.os, "isatty", lambda _: True)
    leave = hook.enter(seconds(60))

    signal.raise_signal(signal.SIGINT)

    assert (ending.begun, ending.hurried, server.told) == (True, False, [signal.SIGINT])
    leave()
    ending.reset()
    leave = hook.enter(seconds(60))
    signal.raise_signal(signal.SIGTERM)
    assert server.told == [signal.SIGINT]
    leave()


async def test_who_is_told_by_the_parent_as_well_has_been_told_once(
    hook: SignalHook, ending: Ending, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "is_watched", lambda: True)
    leave = hook.enter(seconds(60))
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert (ending.begun, ending.hurried, server.told) == (True, False, [])

    signal.raise_signal(signal.SIGINT)

    assert (ending.hurried, server.told) == (True, [signal.SIGINT])
    leave()
