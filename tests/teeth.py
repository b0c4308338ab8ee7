"""Does each guard have a test that misses it? `make teeth` removes the guards one by one and expects a test to fail.

A mutant is caught when the tests named for it fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import MUTANTS, PACKAGE, Mutant

ROOT = Path(__file__).parent.parent
PYTEST = [
    sys.executable,
    *["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", "--postgres", "18", "--long"],
]


def survives(mutant: Mutant) -> bool:
    """Whether all tests named for the mutant pass although the guard is gone."""
    with tempfile.TemporaryDirectory(prefix="rota-mutant-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "rota", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "rota" / mutant.file).write_text(mutant.text())
        try:
            ran = subprocess.run(
                [*PYTEST, *mutant.tests.split()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return False  # a body that nobody ends any more keeps the process from ending
    assert ran.returncode in (0, 1), f"{mutant.what}: the tests could not run\n{ran.stdout}{ran.stderr}"
    return ran.returncode == 0


def main(wanted: list[str]) -> None:
    mutants = [mutant for mutant in MUTANTS if not wanted or any(word in mutant.what for word in wanted)]
    with ThreadPoolExecutor(2) as threads:
        survivors = []
        for mutant, lives in zip(mutants, threads.map(survives, mutants), strict=True):
            print(f"{'SURVIVED' if lives else 'caught  '}  {mutant.what}", flush=True)
            survivors += [mutant] * lives
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants caught")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main(sys.argv[1:])
