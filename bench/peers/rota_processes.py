"""An app whose body runs in processes of its own: they import this module, which finds its database in the environment."""

from __future__ import annotations

from rota import Rota

app = Rota()


@app.task(name="noop", executor="process")
def noop(i: int) -> None: ...
