"""The pages there are, and the menu that leads to them."""

from __future__ import annotations

from dataclasses import dataclass

from rota.dashboard.page import Page
from rota.dashboard.pages import job, jobs, now

__all__ = ["MENU", "PAGES", "Entry"]

PAGES: tuple[Page, ...] = (now.PAGE, jobs.PAGE, job.PAGE)


@dataclass(frozen=True)
class Entry:
    """`key` goes there, after a g."""

    name: str
    path: str
    title: str
    key: str


MENU = tuple(Entry(page.name, page.path, page.title, key) for page, key in ((now.PAGE, "n"), (jobs.PAGE, "j")))
