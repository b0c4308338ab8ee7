"""Trying all mutants takes long: that is `make teeth`. Here, that each still is one, so that none is forgotten meanwhile."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tests.mutants import MUTANTS, PACKAGE, Mutant


def test_every_mutant_removes_a_guard_that_is_there() -> None:
    assert [mutant.what for mutant in MUTANTS if _removed(mutant) == _text(PACKAGE / mutant.file)] == []


def test_no_mutant_changes_a_function_that_a_later_migration_has() -> None:
    assert [mutant.what for mutant in MUTANTS if _is_replaced(mutant)] == []


def test_every_mutant_names_tests_that_are_there() -> None:
    named = {(mutant.what, *test.partition("::")[::2]) for mutant in MUTANTS for test in mutant.tests.split()}

    gone = [
        (what, test)
        for what, file, test in named
        if f"def {test.partition('[')[0]}" not in _text(PACKAGE.parent.parent / file)
    ]
    assert gone == []


@functools.cache
def _text(file: Path) -> str:
    return file.read_text()


def _removed(mutant: Mutant) -> str:
    """The file without the guard; as it is, where that is not there."""
    try:
        return mutant.text()
    except AssertionError:
        return _text(PACKAGE / mutant.file)


def _is_replaced(mutant: Mutant) -> bool:
    """Whether it changes a function of the database that a later migration defines anew, and so changes nothing."""
    file = PACKAGE / mutant.file
    if file.suffix != ".sql":
        return False
    before = file.read_text().split(mutant.old)[0]
    functions = re.findall(r"^create (?:or replace )?function (\S+?)\(", before, re.M)
    # what stands behind the end of a function is in none
    if not functions or before.rstrip().endswith((";", "$;")):
        return False
    defined = re.compile(rf"^create (?:or replace )?function {re.escape(functions[-1])}\(", re.M)
    return any(defined.search(later.read_text()) for later in file.parent.glob("*.sql") if later.name > file.name)
