"""Looking at an embedded server and telling its keeper what to do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rota.embedded.home import Home, Record, explained, read_record, url
from rota.embedded.locks import POLL, SHARED, is_shared, locked, open_lock, sharers, try_lock
from rota.errors import EmbeddedError

ANSWER_WITHIN = 120.0  # seconds; a fast stop may take sixty before it gets harder


@dataclass(frozen=True)
class Status:
    """What runs in a home. `users` are the processes that hold the server, where the kernel tells (Linux)."""

    home: str
    running: bool
    state: str = "stopped"  # starting, ready, stopping, stopped
    url: str | None = None
    version: str | None = None
    binaries: str | None = None
    keeper: int | None = None
    postmaster: int | None = None
    started_at: str | None = None
    pinned: bool = False
    ephemeral: bool = False
    users: tuple[int, ...] = ()


def status(home: Path | str | None = None) -> Status:
    """What runs in a home, without touching it."""
    place = Home.at(home)
    with explained(place):
        record = read_record(place)
    if record is None:
        return Status(home=str(place.path), running=False)
    return Status(
        home=str(place.path),
        running=record.state == "ready",
        state=record.state,
        url=url(place, record),
        version=record.version,
        binaries=record.binaries,
        keeper=record.keeper,
        postmaster=record.postmaster,
        started_at=record.started_at,
        pinned=record.pinned,
        ephemeral=record.ephemeral,
        users=sharers(place.users_lock),
    )


def pin(home: Path | str | None = None) -> None:
    """Keep the running server alive when its last user leaves, until `stop`. Call it while using the server."""
    ask(Home.at(home), "pin")


def stop(home: Path | str | None = None, *, force: bool = False) -> bool:
    """Stop the server and return when it is down; False when none was running.

    Raises EmbeddedError while others use it, unless `force`: their connections end, and a `start` brings it back.
    """
    place = Home.at(home)
    deadline = time.monotonic() + ANSWER_WITHIN
    with explained(place):
        if not place.is_kept:
            return False
    with explained(place), locked(place.start_lock, deadline):
        if not force and is_shared(place.users_lock):
            users = sharers(place.users_lock)
            named = f" (process {', '.join(map(str, users))})" if users else ""
            raise EmbeddedError(
                f"The server in {place.path} is in use{named}. It stops by itself when its last user leaves; "
                f"to stop it now and end their connections, use `rota postgres stop --force`."
            )
        record = wait_for_record(place, deadline)
        if record is not None:
            signal_keeper(record, signal.SIGTERM)
            wait_until_down(place, deadline)
    return True


def ask(home: Home, verb: str) -> None:
    """Have the keeper do something and return when it is done. Raises EmbeddedError when it is not alive."""
    deadline = time.monotonic() + ANSWER_WITHIN
    with explained(home), locked(home.start_lock, deadline):
        record = wait_for_record(home, deadline)
        if record is not None:
            home.request(verb).touch()
            signal_keeper(record, signal.SIGUSR1)
        while home.is_kept:
            if not home.request(verb).exists():
                return
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(POLL)
    raise EmbeddedError(f"No server is running in {home.path}, so it cannot {verb.replace('-', ' ')}. Start it first.")


def wait_for_record(home: Home, deadline: float) -> Record | None:
    """The record of a living keeper, which writes it a moment after it was born; None when none is alive."""
    while home.is_kept and time.monotonic() < deadline:
        if (record := read_record(home)) is not None and record.postmaster:
            return record
        time.sleep(POLL)
    return None


def signal_keeper(record: Record, number: signal.Signals) -> None:
    try:
        os.kill(record.keeper, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise EmbeddedError(
            f"The server belongs to another user (keeper {record.keeper}); ask as that user."
        ) from error


def wait_until_down(home: Home, deadline: float) -> None:
    while home.is_kept:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL)


def wait_until_left(home: Home, leave: Callable[[], None]) -> None:
    """Leave, and if that was the last user, return when the server is down.

    One at a time: two who leave together and look at each other's lock would each think the other stays.
    """
    deadline = time.monotonic() + ANSWER_WITHIN
    if not home.path.exists():
        return leave()
    # Opened before we leave: the keeper of an ephemeral server removes the folder, and only then lets go of this file.
    keeper_fd = open_lock(home.keeper_lock)
    try:
        with locked(home.start_lock, deadline):
            leave()
            while not try_lock(keeper_fd, SHARED):
                record = read_record(home)
                if (record is not None and record.pinned) or is_shared(home.users_lock):
                    return None
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(POLL)
    finally:
        os.close(keeper_fd)
    return None
