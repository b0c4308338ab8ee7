"""What is on record of changes by hand, and how it is found."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from rota import ConfigurationError, Rota
from rota.postgres.audit import record
from rota.testing import TestRota


async def test_entries_are_found_by_who_what_about_and_when(rota_app: TestRota) -> None:
    for actor, action, details in (
        ("ana", "retry", {"job": 7}),
        ("bo", "cancel", {"job": 8}),
        ("ana", "pause", {"queue": "Mail"}),
    ):
        await rota_app.database.run(record(actor, action, details))

    async def found(**filters: Any) -> list[str]:
        page = await rota_app.audit.list(**filters)
        assert page == rota_app.audit.list_sync(**filters)
        assert (page.after, page.searched_to) == (None, None)
        return [f"{entry.actor} {entry.action}" for entry in page.entries]

    assert await found() == ["ana pause", "bo cancel", "ana retry"]
    assert await found(actor="ana") == ["ana pause", "ana retry"]
    assert await found(action="cancel") == ["bo cancel"]
    assert await found(about="mail") == ["ana pause"]
    assert await found(since="1h") == ["ana pause", "bo cancel", "ana retry"]
    assert await found(until="1h") == []
    assert await found(actor="nobody") == []
    assert (await rota_app.audit.list(action="retry")).entries[0].details == {"job": 7}


async def test_pages_go_on_where_they_ended_and_a_walk_where_its_reach_did(rota_app: TestRota) -> None:
    for number in range(7):
        await rota_app.database.run(record("ana", "retry" if number else "first", {"job": number}))

    page = await rota_app.audit.list(limit=3)
    rest = await rota_app.audit.list(after=page.after)
    short = await rota_app.audit.list(action="first", reach=5)
    further = await rota_app.audit.list(action="first", reach=5, after=short.after)

    assert [entry.details["job"] for entry in (*page.entries, *rest.entries)] == [6, 5, 4, 3, 2, 1, 0]
    assert rest.after is None
    assert (short.entries, short.after is not None, short.searched_to is not None) == ((), True, True)
    assert [entry.action for entry in further.entries] == ["first"]
    assert further.after is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"actor": 7}, "actor cannot be 7"),
        ({"limit": 0}, "limit cannot be 0"),
        ({"after": "x"}, "after cannot be 'x'"),
        ({"since": datetime(2020, 1, 1)}, "since cannot be"),
    ],
)
def test_what_nothing_can_be_found_by_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Rota("dbname=nowhere").audit.list_sync(**wrong)
