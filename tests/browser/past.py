"""What the shop did before one looks at it: a week in numbers, a day in jobs, with deploys, a failover and what went wrong.

Written by plain SQL, the same every time but for the hour at which it ends: nobody wants to wait for it.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg

TASKS = {
    # task: queue, jobs in an hour, seconds that one takes
    "send_receipt": ("mail", 90, 0.4),
    "charge": ("payments", 60, 1.1),
    "pack": ("warehouse", 45, 6.0),
    "import_catalog": ("media", 4, 40.0),
    "tidy_carts": ("default", 1, 2.0),
    "nightly_report": ("reports", 0, 75.0),
}
TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line {line}, in {task}
    {code}
{error}"""
DEATHS = [
    # task, how many, error, message, and the line it comes from
    ("charge", 14, "CardDeclined", "order {order}: the bank declined {amount} EUR", "await bank.debit(card, amount)"),
    ("send_receipt", 5, "TimeoutError", "smtp.example.com did not answer within 10 s", "await client.send(message)"),
    ("import_catalog", 2, "KeyError", "'price'", "return row['price']"),
]
OLD, LOST, RESIGNED = (UUID(int=0x5400 + n) for n in range(3))


def write_past(dsn: str) -> None:
    """Into a database that holds nothing yet."""
    chance = random.Random(11)
    with psycopg.connect(dsn, autocommit=True) as connection:
        now = connection.execute("select date_trunc('minute', now())").fetchall()[0][0].astimezone(UTC)
        with connection.transaction():
            _members(connection, now)
            _jobs(connection, now, chance)
            _tallies(connection, now, chance)
            _depths(connection, now, chance)
            _audit(connection, now)


def settle_schedules(dsn: str) -> None:
    """What is known of the runs of schedules, once a worker has declared them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            """
            update rota.schedules as schedule
            set runs = run.runs, succeeded_at = run.succeeded_at
            from (
                select schedule, count(*) as runs, max(finished_at) as succeeded_at
                from rota.history
                where schedule is not null
                group by schedule
            ) as run
            where run.schedule = schedule.name
            """
        )


def _members(connection: psycopg.Connection, now: datetime) -> None:
    work = json.dumps({"tasks": dict.fromkeys(TASKS, 1), "queues": None, "concurrency": 10})
    members = [
        (OLD, "web-1", "shop-a", 4110, "0.3.0", timedelta(days=2), timedelta(hours=20), "left"),
        (RESIGNED, "web-2", "shop-b", 871, "0.3.1", timedelta(hours=20), timedelta(hours=9), "left"),
        (LOST, "web-3", "shop-c", 3302, "0.3.1", timedelta(hours=9), timedelta(hours=3), "expired"),
    ]
    for id, name, host, pid, release, since, until, reason in members:
        connection.execute(
            """
            insert into rota.members (id, name, host, pid, release, started_at, attached_at, renewed_at, expires_at, ended_at,
                                      end_reason, work)
            values (%(id)s, %(name)s, %(host)s, %(pid)s, %(release)s, %(since)s, %(since)s, %(until)s, %(until)s, %(until)s,
                    %(reason)s, %(work)s)
            """,
            {
                "id": id,
                "name": name,
                "host": host,
                "pid": pid,
                "release": release,
                "since": now - since,
                "until": now - until,
                "reason": reason,
                "work": work,
            },
        )
    for name, late in (("stock-indexer", 0), ("price-feed", 12)):
        terms = [
            (OLD, "web-1", "shop-a", 4110, 40, 20, "resigned"),
            (RESIGNED, "web-2", "shop-b", 871, 19.8, 9, "resigned"),
            (LOST, "web-3", "shop-c", 3302, 8.9, 3, "lost"),
        ]
        for epoch, (member, holder, host, pid, since, until, reason) in enumerate(terms, 1):
            connection.execute(
                """
                insert into rota.terms (name, epoch, member, holder, host, pid, acquired_at, ended_at, end_reason)
                values (%s, %s, %s, %s, %s, %s, %s, %s, %s)
                """,
                [
                    *(name, epoch, member, holder, host, pid),
                    now - timedelta(hours=since, minutes=-late),
                    now - timedelta(hours=until, minutes=-late if epoch < 3 else 0),
                    reason,
                ],
            )
        connection.execute(
            "insert into rota.leases (name, epoch, member, acquired_at) values (%s, 3, null, %s)",
            [name, now - timedelta(hours=3)],
        )


def _jobs(connection: psycopg.Connection, now: datetime, chance: random.Random) -> None:
    """Of the last day, the oldest first: an id grows with time."""
    told = [
        (now - timedelta(hours=24) * chance.random(), task)
        for task, (_, each_hour, _) in TASKS.items()
        for _ in range(each_hour * 4)
    ]
    runs = [
        *((now.replace(minute=0) - timedelta(hours=hours), "tidy_carts") for hours in range(1, 24)),
        *((now.replace(hour=1, minute=0) - timedelta(days=days), "nightly_report") for days in range(1, 4)),
    ]
    for place, (at, task) in enumerate(sorted([*told, *runs]), 1):
        queue, _, seconds = TASKS[task]
        began = at + timedelta(seconds=chance.expovariate(1.2))
        ended = began + timedelta(seconds=seconds * (0.6 + chance.random()))
        schedule, slot = (task, at) if (at, task) in runs else (None, None)
        connection.execute(
            """
            insert into rota.history (id, created_at, due_at, claimed_at, started_at, finished_at, attempt, losses, priority, version,
                                      member, state, queue, task, args, result, reason, schedule, slot_at, tags)
            values (%s, %s, %s, %s, %s, %s, 1, 0, 0, 1, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
            """,
            [
                *(place, at, at, began, began, ended, LOST),
                *(("cancelled" if place % 41 == 0 and schedule is None else "succeeded"), queue, task),
                *(
                    json.dumps(_args(task, place, chance)),
                    json.dumps("done"),
                    "no longer wanted" if place % 41 == 0 else None,
                ),
                *(schedule, slot, ["vip"] if place % 17 == 0 else None),
            ],
        )
        if schedule is not None:
            connection.execute(
                "insert into rota.slots (schedule, slot_at, cause, job_id, created_at) values (%s, %s, 'due', %s, %s)",
                [schedule, slot, place, at],
            )
    _letters(connection, now, chance, len(told) + len(runs))
    connection.execute("select setval(pg_get_serial_sequence('rota.jobs', 'id'), 20000)")


def _letters(connection: psycopg.Connection, now: datetime, chance: random.Random, last: int) -> None:
    for line, (task, letters, error, words, code) in enumerate(DEATHS, 41):
        for n in range(letters):
            last += 1
            died = now - timedelta(hours=2 + 400 * (n / letters) ** 3 + chance.random())
            args = _args(task, last, chance)
            message = words.format(**args) if task == "charge" else words
            trace = TRACE.format(line=line, task=task, code=code, error=f"{error}: {message}")
            for attempt in (1, 2, 3):
                connection.execute(
                    """
                    insert into rota.attempts
                        (job_id, attempt, outcome, error_type, error_message, error_trace, started_at, finished_at)
                    values (%s, %s, 'failed', %s, %s, %s, %s, %s)
                    """,
                    [
                        *(last, attempt, error, message, trace),
                        died - timedelta(minutes=9 - 3 * attempt, seconds=20),
                        died - timedelta(minutes=9 - 3 * attempt),
                    ],
                )
            connection.execute(
                """
                insert into rota.dead (id, created_at, due_at, died_at, attempt, losses, priority, version, reason, queue, task, args,
                                       error_type, error_message, error_trace)
                values (%s, %s, %s, %s, 3, 0, 0, 1, 'failed', %s, %s, %s, %s, %s, %s)
                """,
                [
                    *(last, died - timedelta(minutes=8), died - timedelta(minutes=8), died),
                    *(TASKS[task][0], task, json.dumps(args), error, message, trace),
                ],
            )


def _args(task: str, number: int, chance: random.Random) -> dict[str, object]:
    order = 10_000 + number
    return {
        "send_receipt": {"order": order, "to": f"customer-{number}@example.com"},
        "charge": {"order": order, "amount": chance.randrange(9, 400) * 100 + 95},
        "pack": {"order": order},
        "import_catalog": {"file": f"catalog-{number % 9 + 1}.csv", "rows": 500 + number},
    }.get(task, {})


def _tallies(connection: psycopg.Connection, now: datetime, chance: random.Random) -> None:
    """Hours of a week, and minutes of the last of them; more by day than by night, and a bad hour that began two hours ago."""
    hour = now.replace(minute=0)
    spans = [
        *(("hour", hour - timedelta(hours=hours), 1.0) for hours in range(1, 24 * 7)),
        *(("minute", now - timedelta(minutes=minutes), 1 / 60) for minutes in range(1, 60 * 8)),
    ]
    with connection.cursor().copy(
        "copy rota.tallies (span, at, queue, task, succeeded, cancelled, failed, lost, dead, waits, runs) from stdin"
    ) as copy:
        for span, at, share in spans:
            tide = 0.35 + 0.65 * max(0.0, 1 - abs((at.hour + at.minute / 60) - 13) / 9)
            bad = 1 < (now - at) / timedelta(hours=1) < 2.2
            rows: dict[tuple[str, str], list[int]] = {}
            for task, (queue, each_hour, _) in TASKS.items():
                done = round(each_hour * share * tide * (0.7 + 0.6 * chance.random()) * 8)
                failed = round(done * (0.35 if bad and task == "charge" else 0.02 if task != "pack" else 0.0))
                for row in (("", ""), (queue, ""), ("", task)):
                    counts = rows.setdefault(row, [0, 0, 0, 0, 0])
                    counts[0] += done
                    counts[1] += done // 40
                    counts[2] += failed
                    counts[4] += failed // 6
            if span == "minute" and (now - at) // timedelta(minutes=1) == 180:
                rows["", ""][3] += 4
            for (queue, task), counts in rows.items():
                steps = json.dumps(_steps(counts[0], 26 if bad else 18, chance))
                copy.write_row((span, at, queue, task, *counts, steps, steps))
    connection.execute("update rota.tallied set minutes_until = %s, hours_until = %s", [now, hour])


def _steps(jobs: int, middle: int, chance: random.Random) -> dict[str, int]:
    found: dict[str, int] = {}
    for _ in range(min(jobs, 40)):
        step = str(max(0, round(chance.gauss(middle, 5))))
        found[step] = found.get(step, 0) + max(1, jobs // 40)
    return found


def _depths(connection: psycopg.Connection, now: datetime, chance: random.Random) -> None:
    for queue, usual in (
        ("mail", 30),
        ("payments", 12),
        ("warehouse", 8),
        ("media", 3),
        ("reports", 0),
        ("default", 1),
    ):
        for minutes in range(1, 60):
            due = round(usual * (1 + 0.8 * (minutes < 25)) * chance.random())
            connection.execute(
                "insert into rota.depths (at, queue, due, later, blocked, running, at_least) values (%s, %s, %s, 2, 0, 3, false)",
                [now - timedelta(minutes=minutes), queue, due],
            )


def _audit(connection: psycopg.Connection, now: datetime) -> None:
    entries = [
        (31.0, "ana", "queue.limit", {"queue": "payments", "running": 4, "rate": "100/1m"}),
        (26.5, "ana", "schedule.put", {"schedule": "stock_report"}),
        (20.1, "deploy", "resign", {"name": "stock-indexer", "epoch": 1, "force": False}),
        (9.1, "deploy", "resign", {"name": "stock-indexer", "epoch": 2, "force": False}),
        (5.4, "bob", "retry", {"letters": 5, "group": "c41f7e90aa02"}),
        (2.2, "bob", "queue.pause", {"queue": "payments", "until": None, "reason": "the bank is away"}),
        (1.9, "bob", "queue.resume", {"queue": "payments"}),
        (0.6, "ana", "acknowledge", {"letters": 3, "group": "0b6d2f8e51c7"}),
    ]
    for hours, actor, action, details in entries:
        connection.execute(
            "insert into rota.audit (at, actor, action, details) values (%s, %s, %s, %s)",
            [now - timedelta(hours=hours), actor, action, json.dumps(details)],
        )
