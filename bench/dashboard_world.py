"""A database of the size that the dashboard is measured with: a million settled jobs over thirty days, 100,000 that wait, 10,000
schedules, 1,000 dead letters, and what else there is to look at.

Rows are made by SQL, a set at a time; what is made of rows (lines of limits, groups, tallies, roles, declarations) is made by the
functions that make it in life.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from dashboard_tasks import QUEUES, TASKS, make_app
from rota import Rota, group
from rota.jobs.tally import COUNT, COUNT_HOURS, END, keep_tallies
from rota.pollers.declare import declare_pollers
from rota.postgres.query import nothing
from rota.projections.checkpoint import declare_projection

__all__ = ["LOOKER", "SETTLED", "seed"]

SETTLED = 1_000_000
WAITING = 100_000
DEAD = 1_000
SCHEDULES = 10_000
DAYS = 30
RUNNING = 200
MEMBERS = 20
LOOKER = "rota_looker"

# Every thousandth id died; the last fifth of the rest is settled and waiting in turns, all before it is settled.
NEWEST = (SETTLED + WAITING) // 999 * 1000 + 1000

PARTITIONS = """
do $partitions$
declare
    day date;
    line record;
begin
    update rota.retention set history = '30 days';
    for day in select generate_series(current_date - 31, current_date - 1, '1 day') loop
        for line in
            select * from (values ('history_standard'), ('attempts'), ('logs_standard')) as timeline(name)
        loop
            execute format(
                'create table if not exists rota.%%I partition of rota.%%I for values from (%%L) to (%%L)',
                line.name || to_char(day, '_YYYYMMDD'), line.name, day::timestamp at time zone 'UTC',
                (day + 1)::timestamp at time zone 'UTC'
            );
        end loop;
    end loop;
end
$partitions$
"""

IDS = """
    create table public.bench_ids as
    select id, row_number() over (order by id) as n, now() - interval '1 minute' - (%(newest)s - id) * interval '2350 ms' as at
    from generate_series(1, %(newest)s) as id
    where id %% 1000 <> 0
    order by id
    limit %(rows)s
"""

HISTORY = """
    insert into rota.history (
        id, created_at, due_at, claimed_at, started_at, finished_at, token, attempt, losses, priority, version, member,
        state, queue, task, args, result, tags, reason, schedule, slot_at
    )
    select
        id, at, at, at + wait, at + wait, at + wait + run, id, case when id %% 33 = 0 then 2 else 1 end, 0, 0, 1,
        lpad(to_hex(id %% 20), 32, '0')::uuid, case when id %% 37 = 0 then 'cancelled' else 'succeeded' end,
        split_part(task, '.', 1), task,
        jsonb_build_object(
            'order', id, 'user', jsonb_build_object('id', id %% 50000, 'name', 'user ' || id %% 50000), 'note', repeat('n', 40)
        ),
        case when id %% 3 = 0 then to_jsonb(id) end,
        case when id %% 2 = 0 then array['user:' || id %% 5000, 'region:' || id %% 7] end,
        case when id %% 37 = 0 then 'no longer wanted' end,
        case
            -- what runs every minute, and comes first on a timeline
            when id > %(newest)s - 36000 then 'busy/minutely-' || id %% 30
            when id %% 20 = 1 then 'team-' || lpad((number %% 100)::text, 2, '0') || '/report-' || number
        end,
        case when id > %(newest)s - 36000 or id %% 20 = 1 then at end
    from (
        select
            id, n, at, (%(tasks)s::text[])[(id * 7 %% 40 + 1)::int] as task, id / 20 %% (%(schedules)s - 30) + 1 as number,
            (0.01 + id %% 100 * 0.05) * interval '1 second' as wait, (0.02 + id %% 50 * 0.02) * interval '1 second' as run
        from public.bench_ids
        where n <= 900000 or n %% 2 = 0
    ) as made
"""

WAITING_JOBS = """
    insert into rota.jobs (id, created_at, due_at, queue, task, priority, args, tags)
    select
        id, at, case when id %% 4 = 0 then now() + id %% 86400 * interval '1 second' else at end,
        split_part(task, '.', 1), task, (array[0, 0, 5, -1])[id %% 4 + 1],
        jsonb_build_object(
            'order', id, 'user', jsonb_build_object('id', id %% 50000, 'name', 'user ' || id %% 50000), 'note', repeat('n', 40)
        ),
        case when id %% 2 = 0 then array['user:' || id %% 5000] end
    from (
        select id, at, (%(tasks)s::text[])[(id * 7 %% 40 + 1)::int] as task
        from public.bench_ids
        where n > 900000 and n %% 2 = 1
    ) as made
"""

RUNNING_JOBS = """
    insert into rota.jobs (token, claimed_at, member, attempt, state, created_at, due_at, queue, task, args)
    select
        n, now(), lpad(to_hex(n %% %(members)s), 32, '0')::uuid, 1, 'running', now(), now(), 'images', 'images.make',
        jsonb_build_object('order', n, 'user', '{}'::jsonb)
    from generate_series(1, %(running)s) as n
"""

ATTEMPTS = """
    insert into rota.attempts (
        job_id, attempt, token, outcome, error_type, error_message, error_trace, member, started_at, finished_at
    )
    select
        id, 1, id, case when id %% 330 = 0 then 'lost' else 'failed' end,
        (array['TimeoutError', 'ConnectionError', 'ValueError', 'KeyError'])[id %% 4 + 1],
        'no answer from 10.0.' || id %% 250 || '.7 for order ' || id, repeat('  File "shop.py", line 7, in send' || chr(10), 20),
        lpad(to_hex(id %% 20), 32, '0')::uuid, finished_at - interval '2 seconds', finished_at - interval '1 second'
    from rota.history
    where id %% 33 = 0
"""

LETTERS = """
    insert into rota.dead (
        id, created_at, due_at, died_at, token, attempt, losses, priority, version, reason, queue, task, args, tags,
        error_type, error_message, error_trace, resolved_at, resolution, resolved_by
    )
    select
        id, at, at, at + interval '1 minute', id, 2, 0, 0, 1, 'failed', split_part(task, '.', 1), task,
        jsonb_build_object('order', id, 'user', jsonb_build_object('id', id %% 50000)), array['user:' || id %% 5000],
        (array['TimeoutError', 'ConnectionError', 'ValueError', 'KeyError'])[id / 1000 %% 4 + 1],
        (array['no answer for order ', 'broken pipe at ', 'cannot read page '])[id / 1000 %% 3 + 1] || id,
        repeat('  File "shop.py", line ' || id / 1000 %% 12 || ', in send' || chr(10), 20),
        case when id <= %(newest)s - %(dead)s * 1000 then now() end,
        case when id <= %(newest)s - %(dead)s * 1000 then 'acknowledged' end,
        case when id <= %(newest)s - %(dead)s * 1000 then 'ana' end
    from (
        select id, now() - interval '1 minute' - (%(newest)s - id) * interval '2350 ms' as at,
               (%(tasks)s::text[])[(id / 1000 * 7 %% 40 + 1)::int] as task
        from generate_series(1000, %(newest)s, 1000) as id
    ) as died
"""

SCHEDULE_ROWS = """
    insert into rota.schedules (
        name, task, args, queue, kind, cron, every, tz, anchor, next_slot, next_at, last_slot, runs, paused_at, paused_by,
        problem, note
    )
    select
        'team-' || lpad((n %% 100)::text, 2, '0') || '/report-' || n, task,
        jsonb_build_object('order', n, 'user', '{}'::jsonb), split_part(task, '.', 1),
        case when n %% 10 = 0 then 'every' else 'cron' end,
        case when n %% 10 <> 0 then minute || ' ' || hour || ' * * *' end,
        case when n %% 10 = 0 then '6h' end,
        case when n %% 10 = 0 then 'UTC' else tz end, now() - interval '30 days', slot, slot, now() - interval '1 day', 30,
        case when n %% 50 = 7 then now() end, case when n %% 50 = 7 then 'ana' end,
        case when n %% 500 = 9 then 'its cron expression cannot be read any more' end, 'made for the bench'
    from (
        select
            n, minute, hour, tz, task,
            case
                when n %% 10 = 0 then now() + (n %% 360) * interval '1 minute' + interval '5 minutes'
                when today > now() then today
                else today + interval '1 day'
            end as slot
        from (
            select made.*, ((now() at time zone tz)::date + make_time(hour, minute, 0)) at time zone tz as today
            from (
                select
                    n, (n %% 60)::int as minute, (n / 60 %% 24)::int as hour,
                    (array['UTC', 'Europe/Berlin', 'America/New_York', 'Asia/Tokyo'])[n %% 4 + 1] as tz,
                    (%(tasks)s::text[])[(n * 7 %% 40 + 1)::int] as task
                from generate_series(1, %(schedules)s - 30) as n
            ) as made
        ) as timed
    ) as slotted
"""

MINUTELY = """
    insert into rota.schedules (name, task, args, queue, kind, every, anchor, next_slot, next_at, last_slot, runs)
    select
        'busy/minutely-' || n, 'sync.check', jsonb_build_object('order', n, 'user', '{}'::jsonb), 'sync', 'every', '1m',
        date_trunc('minute', now()) - interval '30 days', date_trunc('minute', now()) + interval '1 minute',
        date_trunc('minute', now()) + interval '1 minute', date_trunc('minute', now()), 43200
    from generate_series(0, 29) as n
"""

SLOTS = """
    insert into rota.slots (schedule, slot_at, cause, job_id, created_at)
    select distinct on (schedule, slot_at) schedule, slot_at, 'due', id, created_at
    from rota.history
    where schedule is not null
    order by schedule, slot_at
"""

MEMBER_ROWS = """
    insert into rota.members (id, name, host, pid, release, started_at, renewed_at, expires_at, ended_at, end_reason, work)
    select
        lpad(to_hex(n), 32, '0')::uuid, 'worker-' || n, 'host-' || n %% 10, 1000 + n, '0.1', now() - n * interval '20 minutes',
        now(), now() + interval '1 day', case when n >= %(members)s then now() - n * interval '19 minutes' end,
        case when n >= %(members)s then (array['left', 'left', 'expired', 'suspected'])[n %% 4 + 1] end,
        jsonb_build_object('tasks', '{"images.make": 1}'::jsonb, 'queues', '["images"]'::jsonb, 'concurrency', 10)
    from generate_series(0, 500) as n
"""

TERM_ROWS = """
    insert into rota.leases (name, epoch, member, acquired_at)
    select 'singleton-' || n, 200, lpad(to_hex(n), 32, '0')::uuid, now() - interval '10 minutes'
    from generate_series(0, %(members)s - 1) as n;
    insert into rota.terms (name, epoch, member, holder, host, pid, acquired_at, ended_at, end_reason)
    select
        'singleton-' || n, epoch, lpad(to_hex((n + epoch) %% 500), 32, '0')::uuid, 'worker-' || (n + epoch) %% 500, 'host-1', 7,
        now() - (201 - epoch) * interval '3 hours', case when epoch < 200 then now() - (200 - epoch) * interval '3 hours' end,
        case when epoch < 200 then (array['resigned', 'lost'])[epoch %% 2 + 1] end
    from generate_series(0, %(members)s - 1) as n, generate_series(1, 200) as epoch
"""

DEPTH_ROWS = """
    insert into rota.depths (at, queue, due, later, blocked, running, at_least)
    select date_trunc('minute', now()) - n * interval '1 minute', queue, n * 7 %% 5000, n %% 900, 3, n %% 20, false
    from generate_series(1, 2880) as n, unnest(%(queues)s::text[]) as queue
"""

LOG_ROWS = """
    insert into rota.logs (job_id, token, logged_at, attempt, number, level, logger, message)
    select id, id, finished_at, 1, line, 20, 'shop', 'line ' || line || ' of order ' || id
    from rota.history, generate_series(1, case when id %% 2000 in (1, 2) then 1000 else 5 end) as line
    where id > %(newest)s - 20000
"""

REST = """
    insert into rota.audit (at, actor, action, details)
    select
        now() - (20000 - n) * interval '2 minutes', (array['ana', 'bob', 'token'])[n %% 3 + 1],
        (array['cancel', 'retry', 'queues.pause', 'schedules.trigger'])[n %% 4 + 1], jsonb_build_object('id', n, 'reason', 'as asked')
    from generate_series(1, 20000) as n;
    create table public.feeds (id int primary key, fetched_at timestamptz);
    insert into public.feeds select n, now() from generate_series(1, 100000) as n;
    insert into rota.poll_claims (poller, key, parked_at, retry_at, failed_at, attempts, error_type, error_message)
    select 'feeds', jsonb_build_array(n), case when n <= 200 then now() end,
           case when n > 200 then now() + interval '1 day' end, now(), 5, 'ValueError', 'no such feed ' || n
    from generate_series(1, 1200) as n;
    insert into rota.events (order_xid, log, stream, version, type, data)
    select pg_current_xact_id(), 'orders', 'order-' || n, 1, (array['Paid', 'Sent'])[n %% 2 + 1], jsonb_build_object('sum', n)
    from generate_series(1, 100000) as n;
"""

PROJECTED = """
    update rota.projections
    set order_xid = (select min(order_xid) from rota.events), position = (select min(position) + 90000 from rota.events),
        progress_at = now(), state = case name when 'totals' then 'stopped' else 'running' end, failures = 1, failed_at = now(),
        error_type = 'KeyError', error_message = 'sum', error_trace = 'Traceback';
    insert into rota.parked_events (
        projection, version, order_xid, position, stream, type, attempts, error_type, error_message, error_trace
    )
    select 'counts', 1, order_xid, position, stream, type, 1, 'KeyError', 'count', 'Traceback'
    from rota.events
    order by position
    limit 100
"""


async def seed(dsn: str) -> None:
    """Fill a database that has nothing in it yet. Nothing is analysed: the planner knows nothing of what is in there."""
    app = make_app(dsn)
    async with app:
        await app.migrate(roles=True)
        # several commands at once, with values
        with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as db:
            _no_statistics(db)
            _fill(db)
        await _by_functions(app)
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute(PROJECTED)
        await _count(app)


def _no_statistics(db: psycopg.Connection[Any]) -> None:
    """Until someone asks for them: a planner that knows nothing is the worse case, and must not depend on who comes first."""
    name = db.info.dbname
    db.execute("alter system set autovacuum = off")
    db.execute("select pg_reload_conf()")
    db.execute(f'create role {LOOKER} login in role rota_read; grant connect on database "{name}" to {LOOKER}')  # type: ignore[arg-type]


def _fill(db: psycopg.Connection[Any]) -> None:
    given = {
        "newest": NEWEST,
        "rows": SETTLED + WAITING,
        "tasks": list(TASKS),
        "queues": list(QUEUES),
        "members": MEMBERS,
        "running": RUNNING,
        "dead": DEAD,
        "schedules": SCHEDULES,
    }
    # what a million triggers would note of runs that ended is long since dealt with
    db.execute("set session_replication_role = replica; set timezone = 'UTC'; set synchronous_commit = off")
    for name, sql in {
        "partitions": PARTITIONS,
        "ids": IDS,
        "history": HISTORY,
        "waiting": WAITING_JOBS,
        "sequence": "select setval('rota.jobs_id_seq', %(newest)s)",
        "members": MEMBER_ROWS,
        "terms": TERM_ROWS,
        "running": RUNNING_JOBS,
        "attempts": ATTEMPTS,
        "letters": LETTERS,
        "schedules": SCHEDULE_ROWS,
        "minutely": MINUTELY,
        "slots": SLOTS,
        "depths": DEPTH_ROWS,
        "logs": LOG_ROWS,
        "rest": REST,
        "ids again": "drop table public.bench_ids",
    }.items():
        began = time.perf_counter()
        db.execute(sql, given)  # type: ignore[arg-type]
        print(f"  {name}: {time.perf_counter() - began:.1f} s", flush=True)


async def _by_functions(app: Rota) -> None:
    book = app.tasks["ledger.book"]
    await app.enqueue_many([book.bind(account=n % 50) for n in range(2_000)])
    make, total = app.tasks["reports.make"], app.tasks["reports.total"]
    for n in range(20):
        parts = [make.using(delay="1d").bind(order=n * 50 + part, user={}) for part in range(50)]
        await group(parts).then(total).enqueue()
    await app.bulk.start("cancel", task="reports.total", by="ana")
    await app.database.run(declare_pollers(app.pollers.definitions))
    for each in app.projections.values():
        definition = each.definition
        await app.database.run(
            declare_projection(definition.name, definition.version, definition.told(), definition.partitions)
        )


async def _count(app: Rota) -> None:
    """What a worker would have counted in thirty days: hours of all of them, and minutes of the last two."""
    began = time.perf_counter()
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    first = minute.replace(hour=0, minute=0) - timedelta(days=DAYS)
    for day in range(DAYS):
        since, until = first + timedelta(days=day), first + timedelta(days=day + 1)
        await app.database.run(COUNT.query({"since": since, "until": until}, read=nothing))
        await app.database.run(COUNT_HOURS.query({"since": since, "until": until}, read=nothing))
    midnight = first + timedelta(days=DAYS)
    ended = {"minutes": midnight, "hours": midnight, "rest": timedelta(seconds=-60)}
    await app.database.run(END.query(ended, read=nothing))
    while (told := await app.database.run_steps(keep_tallies())) is not None and told.unfinished:
        pass
    print(f"  counted: {time.perf_counter() - began:.1f} s", flush=True)
