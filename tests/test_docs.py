"""The documentation keeps its word: every example runs, every link leads somewhere, and the reference is what the code says."""

from __future__ import annotations

import functools
import os
import re
import runpy
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from rota.testing import DatabaseServer
from tests.docs_examples import Reader, blocks, compare

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_EXAMPLES = [
    page for page in PAGES if any(block.language in ("python", "console", "sql") for block in blocks(page))
]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture
def no_role_left(page: Path, rota_database: str) -> Iterator[None]:
    """Roles belong to the whole server: those of the one page that makes some would outlive its database."""
    yield
    if "--roles" not in page.read_text("utf-8"):
        return
    with psycopg.connect(rota_database, autocommit=True) as connection:
        for (role,) in connection.execute(
            "select rolname from pg_roles where starts_with(rolname, 'shop_')"
        ).fetchall():
            connection.execute(SQL("drop owned by {0}; drop role {0}").format(Identifier(role)), prepare=False)


@pytest.mark.one_server
@pytest.mark.usefixtures("no_role_left")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page.parent == ROOT else [pytest.mark.long]) for page in WITH_EXAMPLES],
    ids=_name,
)
def test_every_example_runs(
    page: Path, tmp_path: Path, rota_server: DatabaseServer, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking := _lacking(page):
        pytest.skip(lacking)
    embedded = "<!-- database: embedded -->" in page.read_text("utf-8")
    for name in [name for name in os.environ if name.startswith(("ROTA_", "PG", "DATABASE_URL"))]:
        monkeypatch.delenv(name)
    if not embedded:
        monkeypatch.setenv("ROTA_DATABASE_URL", rota_database)
        monkeypatch.setenv("ROTA_TEST_DATABASE_URL", rota_server.url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    try:
        Reader(page, tmp_path, rota_database, os.environ).follow()
    finally:
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.parametrize(
    ("shown", "said"), [("one\n", "two\n"), ("one\ntwo\n", "two\none\n"), ("job … failed\n", "job 7 succeeded\n")]
)
def test_what_a_page_shows_and_nobody_said_is_found(shown: str, said: str) -> None:
    compare("job …\n…\n", "job 7\n\n")

    with pytest.raises(AssertionError, match="the page shows"):
        compare(shown, said)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page))
        if not link.startswith(("https://", "http://")) and not _leads_somewhere(page, link)
    ]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text("utf-8"))

    missing = [(file, test) for file, test in named if f"def {test}" not in _text(ROOT / file)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)

    assert set(re.findall(r"(?:^|`)make ([\w-]+)", page.read_text("utf-8"), re.M)) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_page_can_be_reached_from_the_readme(page: Path) -> None:
    assert page in _reached_from_the_readme()


@functools.cache
def _reached_from_the_readme() -> set[Path]:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        links = {(at.parent / link.partition("#")[0]).resolve() for at in new for link in _links(at)}
        new = {link for link in links if link.suffix == ".md"} - reached
    return reached


def test_the_reference_is_what_the_code_says() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["pages"]()

    there = {file.name: file.read_text("utf-8") for file in (ROOT / "docs" / "reference").glob("*.md")}
    assert sorted(there) == sorted(made)
    stale = [name for name in made if made[name] != there[name]]
    assert stale == [], "run `make docs`"


def _lacking(page: Path) -> str | None:
    """What this environment has not and the page needs, with the target that has it."""
    needed = re.search(r"<!-- needs: (\w+) (\d+) -->", page.read_text("utf-8"))
    if needed is None or int(version(needed[1]).partition(".")[0]) >= int(needed[2]):
        return None
    return f"{needed[1]} {version(needed[1])} is older than {needed[2]}: `make {needed[1].lower()}` runs this page"


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)


def _links(page: Path) -> list[str]:
    return [
        link for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)) if "://" not in link and not link.startswith("#")
    ]


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """Headings as they are linked to: lower case, spaces as hyphens, nothing but letters, digits, `_` and `-`."""
    titles = re.findall(r"^#+ (.*)$", _prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _text(file: Path) -> str:
    return file.read_text("utf-8") if file.exists() else ""
