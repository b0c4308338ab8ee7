"""The examples of a page of documentation: found in its Markdown, and run as a reader would.

What a block is, its language says:

    python      run, the blocks of a page one after the other in one namespace; `await` may stand at the top level
    output      what the python block before it printed
    console     `$ ` begins a command, which is run and must end with 0; what follows is what it said
    sql         run in the page's database
    sh          not run: installing, make and variables; make targets must exist
    text, toml  shown only
    yaml        shown, and can be read as such

A first line such as `# tasks.py` or `-- grants.sql` also makes a file of the block, in the folder that the page's commands
run in. Output is compared line by line, in order; `…` stands for anything, also for whole lines. A comment before a block
says what cannot be seen in it:

    <!-- interrupt after: TEXT -->    the last command runs until it has said TEXT, then gets Ctrl-C
    <!-- only a file -->              the block is written and not run, for others to import
    <!-- needs: Django 6 -->          anywhere in the page: it is left out where there is only an older one
    <!-- database: embedded -->       anywhere in the page: its commands find no database and start the embedded one
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import psycopg
import yaml

from rota import Rota
from rota.testing import until_sync

LANGUAGES = ("python", "output", "console", "sql", "sh", "text", "toml", "yaml")
NEVER_RUN = ("pip", "make", "export", "git")  # what an sh block may hold; a rota command belongs into a console block

_BLOCK = re.compile(
    r"(?:^<!-- (?:interrupt after: (?P<until>.+?)|(?P<only>only a file)) -->\n+)?^```(?P<language>\S*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_FILE = re.compile(r"(?:#|--) ([\w./-]+\.(?:py|toml|sql|yaml))\n")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    until: str | None
    is_run: bool = True

    @property
    def file(self) -> str | None:
        named = _FILE.match(self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            found["language"],
            found["text"],
            text.count("\n", 0, found.start("text")),
            found["until"],
            not found["only"],
        )
        for found in _BLOCK.finditer(text)
    ]


class Reader:
    """Follows one page from top to bottom, in a folder of its own."""

    def __init__(self, page: Path, folder: Path, database: str, environment: Mapping[str, str]) -> None:
        self._page = page
        self._folder = folder
        self._database = database
        self._environment = environment
        # a module that can be found: dataclasses look up theirs
        self._module = sys.modules["example"] = ModuleType("example")
        self._namespace = vars(self._module)
        self._printed = ""
        self._runner = asyncio.Runner()

    def follow(self) -> None:
        try:
            with _fresh_logging():
                for block in blocks(self._page):
                    with _located(f"{self._page.name}:{block.line}"):
                        self._follow(block)
        finally:
            for app in {id(value): value for value in self._namespace.values() if isinstance(value, Rota)}.values():
                self._runner.run(app.close())
            self._runner.close()
            del sys.modules["example"]

    def _follow(self, block: Block) -> None:
        assert block.language in LANGUAGES, f"a block is one of {', '.join(LANGUAGES)}, not {block.language!r}"
        if block.file is not None:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        match block.language:
            case _ if not block.is_run:
                assert block.file is not None, "a block that is only a file says which, in its first line"
            case "python":
                self._run_python(block)
            case "output":
                compare(block.text, self._printed)
            case "console":
                self._run_commands(block)
            case "sql":
                with psycopg.connect(self._database) as connection:
                    connection.execute(block.text.encode(), prepare=False)
            case "yaml":
                yaml.safe_load(block.text)
            case "sh":
                strange = [line for line in block.text.splitlines() if line.split()[0] not in NEVER_RUN]
                assert not strange, f"an sh block is never run, so it may not hold {strange}"

    def _run_python(self, block: Block) -> None:
        name = str(self._folder / block.file) if block.file is not None else f"{self._page.name}:{block.line}"
        code = compile(block.text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(eval(code, self._namespace))
            else:
                exec(code, self._namespace)
        self._printed = printed.getvalue()

    def _run_commands(self, block: Block) -> None:
        commands = [part for part in re.split(r"^\$ ", block.text, flags=re.M) if part]
        for place, part in enumerate(commands):
            command, _, expected = part.partition("\n")
            until = block.until if place == len(commands) - 1 else None
            compare(expected, self._said_by(command, until))

    def _said_by(self, command: str, until: str | None) -> str:
        output = self._folder / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                # without the shell in between, which a Ctrl-C would end as well
                ["/bin/sh", "-c", command if until is None else f"exec {command}"],
                cwd=self._folder,
                env={
                    **self._environment,
                    "COLUMNS": "120",
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                },
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if until is not None:
                until_sync(lambda: until in output.read_text() or process.poll() is not None, 30, f"{command}: {until}")
                os.killpg(process.pid, signal.SIGINT)
            code = process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said = output.read_text()
        assert code == 0, f"`{command}` ended with {code} and said:\n{said}"
        return said


def compare(shown: str, said: str) -> None:
    """Every line that is shown was said, in that order; spaces count once, and `…` is anything."""
    rest = [" ".join(line.split()) for line in said.splitlines()]
    for line in shown.splitlines():
        wanted = " ".join(line.split())
        pattern = re.compile(".*".join(map(re.escape, re.split(r" ?… ?", wanted))))
        place = next((number for number, each in enumerate(rest) if pattern.fullmatch(each)), None)
        assert place is not None or not wanted, f"the page shows {line!r}, and this was said:\n{said}"
        rest = rest[place + 1 :] if place is not None else rest


@contextlib.contextmanager
def _fresh_logging() -> Iterator[None]:
    """Logging as in a process that has just begun: `basicConfig` does nothing where pytest, or anyone else, has a handler."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@contextlib.contextmanager
def _located(place: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the block at {place}")
        raise
