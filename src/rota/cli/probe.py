"""Looking at an app in a process of its own, so that the process that asks never holds code that may have changed.

`probe` asks; `python -m rota.cli.probe` answers: it imports the app and says on its standard output where the app's
database is and what its tasks are. What the app's code prints meanwhile goes to standard error. The question comes through
standard input, as it may hold a password.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from rota.cli.target import find_app
from rota.errors import AppNotFound, RotaError

__all__ = ["AppReport", "BrokenCode", "probe"]


@dataclass(frozen=True, slots=True)
class AppReport:
    """An app as its own code makes it. `dsn` is None where the embedded server is meant; it may hold a password."""

    path: str
    dsn: str | None
    schema: str
    tasks: tuple[str, ...]


class BrokenCode(RotaError):
    """The app's code cannot be imported as it is now; the next change may mend it."""


async def probe(paths: list[str], dsn: str | None, schema: str | None) -> AppReport:
    """The first of the paths that holds one app. Raises BrokenCode when a file fails, AppNotFound when none holds one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "rota.cli.probe",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        process_group=0,  # Ctrl-C is for the one who asks
    )
    try:
        said, _ = await process.communicate(json.dumps([paths, dsn, schema]).encode())
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    try:
        answer = json.loads(said)
    except ValueError:
        raise BrokenCode(f"{', '.join(paths)} ended the process that imported it.") from None
    if "tasks" in answer:
        return AppReport(answer["path"], answer["dsn"], answer["schema"], tuple(answer["tasks"]))
    raise (BrokenCode if answer["broken"] else AppNotFound)(answer["error"])


def _answer(paths: list[str], dsn: str | None, schema: str | None) -> dict[str, Any]:
    refused: list[str] = []
    for path in paths:
        try:
            app = find_app(path, dsn, schema)
        except AppNotFound as error:
            if error.__cause__ is not None and isinstance(error.__cause__, SyntaxError):
                return {"error": str(error), "broken": True}
            refused.append(str(error))
        except BaseException as error:  # whatever the app's code raises, also SystemExit
            return {"error": f"{path} cannot be imported:\n{_trace(error)}", "broken": True}
        else:
            address = app.settings.dsn.conninfo if app.settings.dsn is not None else None
            return asdict(AppReport(path, address, app.settings.schema, tuple(sorted(app.tasks))))
    return {"error": " ".join(refused), "broken": False}


def _trace(error: BaseException) -> str:
    """The trace from the app's own first line on."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (os.path.dirname(__file__), os.path.dirname(os.__file__), "<frozen")
    first = next((place for place, frame in enumerate(frames) if not frame.filename.startswith(ours)), 0)
    lines = [*traceback.format_list(frames[first:]), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    json.dump(_answer(*question), answers)
    answers.close()
    # what the app's code started, such as a thread, is not waited for
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
