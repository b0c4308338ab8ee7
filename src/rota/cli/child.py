"""`python -m rota.cli.child ARGUMENTS`: the `rota` command as a child that ends with the process that started it."""

from __future__ import annotations

import sys

from rota.cli.main import main
from rota.runtime.lifeline import hold_lifeline

if __name__ == "__main__":
    private = hold_lifeline()
    main([*sys.argv[1:], *private])
