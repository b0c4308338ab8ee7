"""The pages there are, and the menu that leads to them."""

from __future__ import annotations

from dataclasses import dataclass

from rota.dashboard.page import Page
from rota.dashboard.pages import (
    about,
    audit,
    bulk,
    database,
    dead,
    job,
    jobs,
    members,
    now,
    poller,
    pollers,
    projection,
    projections,
    queues,
    schedules,
)

__all__ = ["MENU", "PAGES", "Entry"]

PAGES: tuple[Page, ...] = (
    now.PAGE,
    jobs.PAGE,
    job.PAGE,
    queues.PAGE,
    dead.PAGE,
    bulk.LIST,
    bulk.NEW,
    bulk.ONE,
    schedules.LIST,
    schedules.ONE,
    schedules.EDIT,
    members.PAGE,
    pollers.PAGE,
    poller.PAGE,
    projections.PAGE,
    projection.PAGE,
    database.PAGE,
    audit.PAGE,
    about.PAGE,
)


@dataclass(frozen=True)
class Entry:
    """`key` goes there, after a g."""

    name: str
    path: str
    title: str
    key: str


_KEYS = {
    "now": "n",
    "jobs": "j",
    "queues": "q",
    "dead": "d",
    "bulk": "k",
    "schedules": "s",
    "members": "m",
    "pollers": "p",
    "projections": "e",
    "database": "b",
    "audit": "u",
    "about": "a",
}
MENU = tuple(Entry(page.name, page.path, page.title, _KEYS[page.name]) for page in PAGES if page.name in _KEYS)
