"""Who led what when, and when nobody did."""

from __future__ import annotations

import psycopg

from rota.testing import TestRota

PUT = """
    insert into rota.leases (name, epoch, acquired_at) values ('a', 3, now()), ('b', 1, now());
    insert into rota.terms (name, epoch, member, holder, host, pid, acquired_at, ended_at, end_reason)
    select given.name, given.epoch, gen_random_uuid(), 'h' || given.epoch, 'host', 1,
           now() - given.began * interval '1 hour', now() - given.ended * interval '1 hour', given.reason
    from (values
        ('a', 1, 30, 20, 'resigned'), ('a', 2, 10, 8, 'lost'), ('a', 3, 8, 3, 'taken'), ('a', 4, 2, null, null),
        ('b', 1, 60, 50, 'resigned')
    ) as given(name, epoch, began, ended, reason)
"""


async def test_lanes_have_the_terms_of_that_time_and_the_gaps_between_them(rota_app: TestRota) -> None:
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as db:
        db.execute(PUT)

    lanes = await rota_app.leaders.lanes("24h")
    (short,) = rota_app.leaders.lanes_sync("5h", deadline="10s")

    (lane,) = lanes
    assert (lane.name, [term.epoch for term in lane.terms]) == ("a", [1, 2, 3, 4])
    assert lane.terms[-1].ended_at is None
    # one followed the other at once in the middle
    assert [round((end - begin).total_seconds() / 3600) for begin, end in lane.gaps] == [10, 1]
    assert [term.epoch for term in short.terms] == [3, 4]
    assert [name.name for name in await rota_app.leaders.lanes("3d")] == ["a", "b"]
