"""The demo's app: tasks such as a shop has, one of them on a schedule. `rota worker rota.runtime.demo.tasks:app` runs them."""

from __future__ import annotations

import asyncio
import hashlib

from rota import Retry, Rota, current_job

app = Rota()


@app.task(queue="mail")
async def send_welcome(user_id: int) -> str:
    """Waits for a mail server: an async body, many at once in one worker."""
    await asyncio.sleep(0.2 + user_id % 10 / 20)
    return f"welcome, user {user_id}"


@app.task
def resize_image(path: str, width: int = 320) -> str:
    """Keeps a processor busy for a few milliseconds: a sync body, in a thread."""
    return hashlib.pbkdf2_hmac("sha256", path.encode(), b"pixels", 10 * width).hex()[:12]


@app.task(retry=Retry(attempts=5, base=0.5))
async def charge_card(order_id: int) -> str:
    """Fails on purpose: every tenth order meets a busy bank at its first attempt, and succeeds in a later one."""
    await asyncio.sleep(0.05)
    if order_id % 10 == 0 and current_job().attempt == 1:
        raise TimeoutError("bank busy")
    return f"order {order_id} is paid"


# None is left out, whoever is killed: what could not be given out in time is made up for.
@app.every("1s", overlap="allow", misfire="all", misfire_limit=10_000)
async def take_stock() -> None:
    """Comes by itself: one run for each second, given out by whichever worker leads."""


@app.task(retry=Retry(attempts=2, base=0.5))
def import_row(line: int) -> None:
    """Fails always: it ends among the dead letters, where someone will look at it."""
    raise ValueError(f"no date in line {line}")
