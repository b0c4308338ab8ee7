"""Trying all mutants takes long: that is `make teeth`. Here, that each still is one, so that none is forgotten meanwhile."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, PACKAGE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_every_mutant_removes_a_guard_that_is_there_and_names_tests_that_are(mutant: Mutant) -> None:
    assert mutant.text() != (PACKAGE / mutant.file).read_text()
    for test in mutant.tests.split():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (PACKAGE.parent.parent / file).read_text()
