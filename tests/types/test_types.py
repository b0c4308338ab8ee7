"""Type checkers see the API as it is meant: they accept every call of right.py and reject every marked line of wrong.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
RIGHT = HERE / "right.py"
WRONG = HERE / "wrong.py"

MARK = "  # wrong: "
# A line that is rejected because a name does not exist says nothing about the call, unless that is what is wrong.
MISSING = ("has no attribute", "Cannot access attribute", "is not a known attribute")


@dataclass(frozen=True)
class Complaint:
    """What a checker says about a line."""

    path: Path
    line: int
    rule: str
    message: str

    @property
    def is_about_a_missing_name(self) -> bool:
        return any(words in self.message for words in MISSING)

    def __str__(self) -> str:
        code = self.path.read_text("utf-8").splitlines()[self.line - 1].strip()
        return f"{self.path.name}:{self.line}: {code}\n    {self.message} [{self.rule}]"


def mypy(cache: Path) -> list[Complaint]:
    output = _output("mypy", "--config-file", HERE / "mypy.ini", "--cache-dir", cache, "--output", "json", RIGHT, WRONG)
    said = [json.loads(line) for line in output.splitlines()]
    return [
        Complaint(HERE / one["file"], one["line"], one["code"], one["message"])
        for one in said
        if one["severity"] == "error"
    ]


def pyright(cache: Path) -> list[Complaint]:
    output = _output("pyright", "--project", HERE, "--pythonpath", sys.executable, "--outputjson")
    said = json.loads(output)["generalDiagnostics"]
    return [
        Complaint(Path(one["file"]), one["range"]["start"]["line"] + 1, one.get("rule", "syntax"), one["message"])
        for one in said
        if one["severity"] == "error"
    ]


def _output(checker: str, *args: str | Path) -> str:
    # another version that someone asked for in their shell would be downloaded
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MYPY", "PYRIGHT_"))}
    ran = subprocess.run(
        [sys.executable, "-m", checker, *args],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    # 0: nothing to complain about, 1: complaints; anything else: it could not look
    assert ran.returncode in (0, 1), f"{checker} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Complaint]:
    """What one checker says about both files."""
    checker: Callable[[Path], list[Complaint]] = request.param
    return checker(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def marked() -> dict[int, str]:
    """What is wrong with which line of wrong.py."""
    lines = enumerate(WRONG.read_text("utf-8").splitlines(), start=1)
    return {number: line.split(MARK)[1] for number, line in lines if MARK in line}


def test_right_calls_are_accepted(complaints: list[Complaint]) -> None:
    refused = [complaint for complaint in complaints if complaint.path != WRONG]

    assert not refused, _list("These should be accepted", refused)


def test_wrong_calls_are_rejected(complaints: list[Complaint], marked: dict[int, str]) -> None:
    rejected = {
        complaint.line
        for complaint in complaints
        if complaint.path == WRONG
        and (marked.get(complaint.line, "").startswith("no such") or not complaint.is_about_a_missing_name)
    }
    code = WRONG.read_text("utf-8").splitlines()
    accepted = [f"{WRONG.name}:{line}: {code[line - 1].strip()}" for line in marked if line not in rejected]

    assert marked
    assert not accepted, _list("These should be rejected", accepted)


def test_nothing_but_the_wrong_calls_is_rejected(complaints: list[Complaint], marked: dict[int, str]) -> None:
    refused = [complaint for complaint in complaints if complaint.path == WRONG and complaint.line not in marked]

    assert not refused, _list("These are not marked as wrong", refused)


def _list(what: str, lines: list[Complaint] | list[str]) -> str:
    return "\n".join([f"{what}:", *map(str, lines)])
