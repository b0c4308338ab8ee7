"""The `rota` command. Words go to stderr, data to stdout; a RotaError ends it with its message and its exit code."""

from rota.cli.main import main

__all__ = ["main"]
