"""Guards of reading rows of the user's."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROWS = "tests/pollers/test_rows.py"
MAPPED = "tests/pollers/test_mapped_rows.py"

MUTANTS = [
    Mutant(
        "a column that the table lacks",
        "pollers/rows.py",
        "        elif name not in reader.optional:",
        "        else:",
        ROWS,
    ),
    Mutant(
        "columns in the order of the table",
        "pollers/rows.py",
        "return tuple(column for column in columns if column in chosen)",
        "return tuple(sorted(chosen))",
        ROWS,
    ),
    Mutant(
        "a handler that needs more than a row",
        "pollers/rows.py",
        "    if others:",
        "    if False:",
        ROWS,
    ),
    Mutant(
        "a field taken by its name beside its alias",
        "pollers/rows.py",
        "if by_name or not names:",
        "if True:",
        ROWS,
    ),
    Mutant(
        "a struct that guesses",
        "pollers/rows.py",
        "strict=True)",
        "strict=False)",
        ROWS,
    ),
    Mutant(
        "a key that is not required",
        "pollers/rows.py",
        "if typing.NotRequired in marks(hint):",
        "if False:",
        ROWS,
    ),
    Mutant(
        "values as SQLAlchemy reads them",
        "pollers/rows.py",
        "values[name] = convert(values[name])",
        "pass",
        MAPPED,
    ),
    Mutant(
        "a row of another class",
        "pollers/rows.py",
        "if mapper is None or not mapper.isa(self._mapper):",
        "if mapper is None:",
        MAPPED,
    ),
]
