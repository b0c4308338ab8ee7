from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from tests.integrations.django.shops import ManagedWorker, Project


@pytest.fixture
def project(rota_database: str) -> Project:
    project = Project(rota_database)
    project.manage("migrate", "shop")
    return project


@pytest.fixture
def worker(project: Project) -> Iterator[Callable[..., ManagedWorker]]:
    started: list[ManagedWorker] = []

    def start(*args: str) -> ManagedWorker:
        started.append(ManagedWorker(project, *args))
        started[-1].start()
        return started[-1].wait_until_working()

    yield start
    for each in started:
        sys.stderr.write(f"{each.report()}\n")
        each.reap()
