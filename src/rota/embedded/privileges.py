"""Running the server as an ordinary user when we are root, which PostgreSQL refuses to be.

In order:

1. Data that belongs to an ordinary user is served as that user.
2. A user namespace in which our uid 0 carries an ordinary number. The server is then root's process without root's
   capabilities: nothing is chowned, opened up or created, and a home inside a root-only folder works.
3. Where namespaces are refused (most containers): the user `nobody`, who is made owner of the home folder.

`ROTA_POSTGRES_PRIVILEGES=namespace` or `=nobody` insists on 2 or 3 for new data; it exists for the tests.

A process under a uid without an account (`docker run -u 1234`) takes the namespace too, since initdb insists on a name.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from pathlib import Path

from rota.embedded.binaries import Binaries
from rota.embedded.home import Home
from rota.errors import DataDirectoryError, PostgresNotFound

CLONE_NEWUSER = 0x10000000
OVERFLOW_UID = 65534  # what a namespace shows for every owner it does not map; `nobody` on all systems we know

libc = ctypes.CDLL(None, use_errno=True)


def become_unprivileged(home: Home, binaries: Binaries) -> None:
    """Give up root for the rest of this process, which must have a single thread. Does nothing when we are not root.

    Raises DataDirectoryError or PostgresNotFound when home or binaries are out of reach afterwards.
    """
    if os.geteuid() == 0:
        give_up_root(home)
    elif not has_account(os.geteuid()) and can_enter_namespace():
        enter_namespace()
    check_reach(home, binaries)


def give_up_root(home: Home) -> None:
    wish = os.environ.get("ROTA_POSTGRES_PRIVILEGES", "")
    folder = (home.data if home.data.exists() else home.path).stat()
    if folder.st_uid != 0:
        become(home, folder.st_uid, folder.st_gid)
    elif wish != "nobody" and can_enter_namespace():
        enter_namespace()
    elif wish == "namespace" or home.data.exists():
        raise DataDirectoryError(
            f"{home.data} belongs to root, whom PostgreSQL refuses to serve, and user namespaces are not allowed here. "
            f"Run as an ordinary user with a folder of its own, or give the data to one: chown -R nobody {home.path}"
        )
    else:
        become(home, *nobody())


def become(home: Home, uid: int, gid: int) -> None:
    """Drop to a user for good, leaving them our files in the home and, when nothing else is in it, the home."""
    for path in home.files:
        os.chown(path, uid, gid)
    if set(home.path.iterdir()) <= set(home.files) and home.path.stat().st_uid == 0:
        os.chown(home.path, uid, gid)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def enter_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    inside_uid, inside_gid = ordinary_account()
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are not allowed")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside_uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inside_gid} {gid} 1")


def can_enter_namespace() -> bool:
    """Tried in a child: some systems allow the namespace and then refuse its mapping, which could not be undone."""
    child = os.fork()
    if child == 0:
        try:
            enter_namespace()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def ordinary_account() -> tuple[int, int]:
    """An account other than root and other than the overflow uid, as which everybody else's files appear."""
    accounts = [(entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()]
    return next((account for account in accounts if account[0] not in (0, OVERFLOW_UID)), nobody())


def nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return OVERFLOW_UID, OVERFLOW_UID
    return entry.pw_uid, entry.pw_gid


def has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def check_reach(home: Home, binaries: Binaries) -> None:
    if not os.access(home.path, os.R_OK | os.W_OK | os.X_OK):
        raise DataDirectoryError(
            f"PostgreSQL cannot run as root, and the user it runs as instead (uid {os.geteuid()}) may not work in "
            f"{home.path}: {blocked_at(home.path)}. Name a folder this user can reach, or run as an ordinary user."
        )
    if not os.access(binaries.postgres, os.X_OK):
        raise PostgresNotFound(
            f"PostgreSQL cannot run as root, and the user it runs as instead (uid {os.geteuid()}) may not execute "
            f"{binaries.postgres}: {blocked_at(binaries.postgres)}. Run as an ordinary user, or install PostgreSQL "
            f"where everyone can reach it and name its folder in ROTA_POSTGRES_BIN."
        )


def blocked_at(path: Path) -> str:
    closed = [folder for folder in reversed(path.parents) if not os.access(folder, os.X_OK)]
    return f"{closed[0]} is closed to it" if closed else "its owner and mode do not allow it"
