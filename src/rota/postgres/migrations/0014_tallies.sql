-- older workers: fine
-- What was done in each minute and each hour, and how much waited: for pictures. Nothing is decided by it, and nothing of it is
-- written while jobs run.

-- Of all jobs (queue and task are empty), of each queue, and of each task.
create table {schema}.tallies (
    span text not null check (span in ('minute', 'hour')),
    at timestamptz not null,
    queue text not null default '',
    task text not null default '',
    succeeded integer not null default 0,
    cancelled integer not null default 0,
    -- attempts, and how many of these buried their job
    failed integer not null default 0,
    lost integer not null default 0,
    dead integer not null default 0,
    -- how many jobs began so long after they were due, and how many ran so long: by steps of a fourth of a doubling
    waits jsonb not null default '{}',
    runs jsonb not null default '{}',
    primary key (span, at, queue, task),
    check (queue = '' or task = '')
);

-- Samples, one a minute. With `at_least` there may be more than was counted.
create table {schema}.depths (
    at timestamptz not null,
    queue text not null,
    due integer not null,
    later integer not null,
    blocked integer not null,
    running integer not null,
    at_least boolean not null,
    primary key (at, queue)
);

-- Up to when all of it is counted. Who counts locks the row.
create table {schema}.tallied (
    single boolean primary key default true check (single),
    minutes_until timestamptz,
    hours_until timestamptz,
    kept_at timestamptz
);

insert into {schema}.tallied default values;
