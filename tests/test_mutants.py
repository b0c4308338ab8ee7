"""Trying all mutants takes long: that is `make teeth`. Here, that each still is one, so that none is forgotten meanwhile."""

from __future__ import annotations

import re

import pytest

from tests.mutants import MUTANTS, PACKAGE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_every_mutant_removes_a_guard_that_is_there_and_names_tests_that_are(mutant: Mutant) -> None:
    assert mutant.text() != (PACKAGE / mutant.file).read_text()
    assert not _is_replaced(mutant), f"{mutant.file} is not where that function stands now: a later migration has it"
    for test in mutant.tests.split():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (PACKAGE.parent.parent / file).read_text()


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
