"""On a machine with nothing set up, a plain script just works: the embedded server, its tables, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rota.embedded import status
from rota.testing import until_sync

SCRIPT = """
from rota import Rota

app = Rota()

@app.task
def add(a: int, b: int) -> int:
    return a + b

if __name__ == "__main__":
    job = add.enqueue_sync(2, 3)
    app.work_sync(drain=True)
    print(job.id, job.wait_sync(timeout=10))
"""


def test_a_script_without_any_configuration_enqueues_works_and_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "ROTA_", "DATABASE_URL"))}

    def run() -> str:
        ran = subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            env=bare,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    assert run() == "1 5"
    assert run() == "2 5"  # the data of the first run is still there
    home = tmp_path / ".rota" / "postgres"
    until_sync(lambda: not status(home).running, what="the server has stopped")
    assert (tmp_path / ".rota" / ".gitignore").read_text().strip() == "*"
