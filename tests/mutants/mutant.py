"""A guard that is left out, and the tests that must fail then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGE", "Mutant"]

PACKAGE = Path(__file__).parent.parent.parent / "src" / "rota"


@dataclass(frozen=True)
class Mutant:
    """A copy of the package in which one text is replaced: the one of this number, where there are several."""

    what: str
    file: str
    old: str
    new: str
    tests: str
    occurrence: int = 0

    def text(self) -> str:
        """The file without the guard."""
        parts = (PACKAGE / self.file).read_text().split(self.old)
        cut = self.occurrence + 1
        assert len(parts) > cut, f"{self.what}: the guard is not in {self.file} any more"
        return self.old.join(parts[:cut]) + self.new + self.old.join(parts[cut:])
