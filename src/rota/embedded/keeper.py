"""The keeper: a small process that owns one embedded server and outlives whoever launched it.

It promises that the server runs while anyone uses it, and not longer, without counting anybody:

- every user holds a shared lock on `users.lock`; the keeper waits for the exclusive one, and the kernel grants it when
  the last user is gone, however it went. Then the server is stopped and the keeper ends, still holding the lock, so
  that a newcomer waits until it can start a new one.
- the keeper holds `keeper.lock` for its life, so everyone can tell whether the record beside it is true.
- the server asks the kernel for a signal at its keeper's death, so `kill -9` of the keeper ends it (Linux only; the
  next start finds and stops it elsewhere).
- a server that dies is started again, in the same place; one that dies again and again is given up.

Requests are empty files named after a verb, followed by SIGUSR1: a name needs no room on a full disk and cannot be
half written. Removing the file is the answer. SIGTERM stops the server whoever uses it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from rota.embedded import cluster
from rota.embedded.home import Home, Record, explained, write_record
from rota.embedded.locks import EXCLUSIVE, open_lock, try_lock
from rota.embedded.plan import Plan
from rota.embedded.postmaster import Postmaster
from rota.embedded.privileges import become_unprivileged
from rota.embedded.strays import end_strays
from rota.errors import EmbeddedError, PostgresStartFailed

IDLE = signal.SIGALRM  # sent to ourselves by the thread that waits for the last user
REQUEST = signal.SIGUSR1
WATCHED = {signal.SIGCHLD, signal.SIGTERM, REQUEST, IDLE, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2}
VERBS = ("pin", "unpin", "restart-fast", "restart-immediate")

SETTLED = 10.0  # seconds a server must live for its next death to be a new story
DEATHS = 6  # in a row without settling, with pauses growing from 0.1 to 3.2 seconds in between
PORTS = 3  # another program may take the free port we found


def main(report_fd: int, plan_text: str) -> None:
    """Detach, keep the server, and tell the launcher through `report_fd` when it is ready or why it is not."""
    if os.fork():
        os._exit(0)  # our launcher waits for this one, and is never left with a child it did not expect
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the default discards it even when we wait for it
    plan = Plan.from_json(plan_text)
    try:
        with explained(plan.to_home()):
            Keeper(plan, report_fd).run()
    except EmbeddedError as error:
        report(report_fd, {"error": type(error).__name__, "message": str(error)})
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        if plan.ephemeral and plan.to_home().ephemeral_mark.exists():
            shutil.rmtree(plan.home, ignore_errors=True)


def report(fd: int, message: dict[str, str]) -> None:
    try:
        os.write(fd, json.dumps(message).encode())
        os.close(fd)
    except OSError:
        log(f"nobody was told: {message}")


def log(words: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC} [{os.getpid()}] KEEPER:  {words}\n")
    sys.stderr.flush()


class Keeper:
    def __init__(self, plan: Plan, report_fd: int) -> None:
        self._plan = plan
        self._home: Home = plan.to_home()
        self._report_fd = report_fd
        self._pinned = False
        self._watching = False
        self._deaths = 0
        self._postmaster: Postmaster | None = None
        self._record = Record(
            state="starting",
            keeper=os.getpid(),
            postmaster=0,
            version=plan.version,
            binaries=plan.binaries,
            origin=plan.origin,
            socket=None,
            port=0,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            pinned=False,
            ephemeral=plan.ephemeral,
        )
        # Opened while we may still be root; the locks last as long as this process.
        self._users_fd = open_lock(self._home.users_lock)
        self._keeper_fd = open_lock(self._home.keeper_lock)

    def run(self) -> None:
        self._be_the_only_one()
        become_unprivileged(self._home, self._plan.to_binaries())
        for verb in VERBS:  # asked by someone who was killed, of a keeper that was
            self._home.request(verb).unlink(missing_ok=True)
        try:
            cluster.create_cluster(self._plan)
            self._first_start()
            report(self._report_fd, {"ready": "yes"})
            self._keep()
        finally:
            self._end()

    def _be_the_only_one(self) -> None:
        deadline = time.monotonic() + 2  # someone who merely asks whether we live holds the lock for a moment
        while not try_lock(self._keeper_fd, EXCLUSIVE):
            if time.monotonic() > deadline:
                raise EmbeddedError(f"Another keeper is alive in {self._home.path}. Start again to use its server.")
            time.sleep(0.01)

    def _first_start(self) -> None:
        socket = None if self._plan.tcp else cluster.socket_folder(self._home)
        self._record = replace(self._record, socket=None if socket is None else str(socket))
        for attempt in range(1, PORTS + 1):
            self._address = cluster.tcp_address(self._home) if socket is None else cluster.socket_address(socket)
            self._record = replace(self._record, port=int(self._address["port"]))
            try:
                self._start()
                break
            except PostgresStartFailed:
                if socket is not None or attempt == PORTS:
                    raise

    def _start(self) -> None:
        self._postmaster = Postmaster(self._home, cluster.server_command(self._plan, self._address))
        try:
            self._say(state="starting", postmaster=self._postmaster.pid)
            self._postmaster.wait_ready()
            self._say(state="ready")
        except BaseException:
            self._postmaster.stop("immediate")
            raise

    def _say(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        write_record(self._home, self._record)

    def _keep(self) -> None:
        self._watch_users()
        while True:
            event = signal.sigwait(WATCHED)
            if event == signal.SIGCHLD and self._postmaster is not None and self._postmaster.has_ended:
                log("the server died and is started again")
                self._revive()
            elif event == REQUEST:
                self._answer()
            elif event == IDLE and self._pinned:
                self._watching = False
                fcntl.flock(self._users_fd, fcntl.LOCK_UN)
            elif event in (IDLE, signal.SIGTERM):
                return

    def _watch_users(self) -> None:
        if self._watching:
            return
        self._watching = True

        def wait_for_the_last() -> None:
            fcntl.flock(self._users_fd, fcntl.LOCK_EX)
            os.kill(os.getpid(), IDLE)

        threading.Thread(target=wait_for_the_last, daemon=True).start()

    def _revive(self) -> None:
        while True:
            assert self._postmaster is not None
            settled = time.monotonic() - self._postmaster.spawned_at > SETTLED
            self._deaths = 1 if settled else self._deaths + 1
            if self._deaths > DEATHS:
                raise PostgresStartFailed(f"the server died {DEATHS} times in a row: {self._postmaster.said()}")
            if self._deaths > 1:
                time.sleep(0.1 * 2 ** (self._deaths - 2))
            end_strays(self._home)
            try:
                return self._start()
            except PostgresStartFailed as error:
                log(str(error))

    def _answer(self) -> None:
        for verb in VERBS:
            if not self._home.request(verb).exists():
                continue
            if verb == "pin":
                self._pinned = True
                self._say(pinned=True)
            elif verb == "unpin" and self._pinned:
                self._pinned = False
                self._say(pinned=False)
                self._watch_users()
            elif verb.startswith("restart-") and self._postmaster is not None:
                self._say(state="starting")
                self._postmaster.stop(verb.removeprefix("restart-"))
                try:
                    self._start()
                except PostgresStartFailed as error:
                    log(str(error))
                    self._revive()
            self._home.request(verb).unlink(missing_ok=True)

    def _end(self) -> None:
        self._say_stopping()
        if self._postmaster is not None:
            self._postmaster.stop("fast")
        if self._record.socket is not None and self._record.socket != self._plan.home:
            with suppress(OSError):
                os.rmdir(self._record.socket)
        self._home.record.unlink(missing_ok=True)

    def _say_stopping(self) -> None:
        try:
            self._say(state="stopping")
        except OSError as error:  # a full disk must not keep the server from being stopped
            log(f"could not say that we stop: {error}")
