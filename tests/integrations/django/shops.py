"""A Django project with real commands and real workers. Django is set up once per process, so everything runs in its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rota.testing import WorkerProcess

PROJECT = Path(__file__).parent / "project"
SETTINGS = "site_of_a_shop.settings"


class Project:
    """The project in `project/` on a database; `settings` are said otherwise than there."""

    def __init__(self, dsn: str, **settings: Any) -> None:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "PG", "DATABASE_URL"))
        }
        self.env = {**kept, "SHOP_DSN": dsn, "SHOP_SETTINGS": json.dumps(settings)}

    def manage(self, *args: str, fails: int = 0, cwd: Path = PROJECT) -> str:
        """What `manage.py` says, on both streams."""
        return self._said([str(PROJECT / "manage.py"), *args], fails, cwd, self.env)

    def run(self, code: str) -> Any:
        """What the code leaves in `answer`, run as a script of the project."""
        script = f"import django, json\ndjango.setup()\n{code}\nprint(json.dumps(answer))"
        said = self._said(["-c", script], 0, PROJECT, {**self.env, "DJANGO_SETTINGS_MODULE": SETTINGS})
        return json.loads(said.splitlines()[-1])

    def drain(self) -> None:
        self.manage("rota", "worker", "--drain")

    def _said(self, args: list[str], fails: int, cwd: Path, env: dict[str, str]) -> str:
        ran = subprocess.run(
            [sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        said = ran.stdout + ran.stderr if fails or args[0] != "-c" else ran.stdout
        assert ran.returncode == fails, f"{args} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
        return said


class ManagedWorker(WorkerProcess):
    """`manage.py rota worker`, or another command that stays."""

    def __init__(self, project: Project, *args: str, command: str = "worker", cwd: Path = PROJECT) -> None:
        super().__init__("", env=project.env, cwd=cwd)
        self._command = [sys.executable, str(PROJECT / "manage.py"), "rota", command, *args]
