-- older workers: fine
-- Changes of many jobs at once: what was asked for, how far it is, and what each job was before, so that it can be undone.
-- Older workers know nothing of them: a change waits until a worker of this release is there.

create table {schema}.bulks (
    id bigint generated always as identity primary key,
    action text not null check (action in ('retry', 'cancel', 'discard', 'acknowledge', 'move', 'prioritise', 'put_off')),
    -- what the jobs were chosen by, as it was meant when it began: times are points in time. Null where they were named.
    filter jsonb,
    -- where to, how urgent, until when, why
    options jsonb not null default '{}',
    actor text not null,
    state text not null default 'running' check (state in ('running', 'finished', 'stopped', 'undoing', 'undone')),
    created_at timestamptz not null default {schema}.now(),
    begun_at timestamptz,
    ended_at timestamptz,
    undo_until timestamptz not null,
    -- how many jobs a second at most
    pace float8 check (pace > 0),
    -- on the real clock: nobody takes the next turn before. One that is past by seconds says that nobody is at it.
    not_before timestamptz not null default statement_timestamp(),
    -- the last job that had its turn
    after bigint not null default 0,
    total integer not null,
    done integer not null default 0,
    skipped integer not null default 0,
    failed integer not null default 0,
    undone integer not null default 0,
    kept integer not null default 0,
    -- how many were left out from the start, and passed over since, by why
    excluded jsonb not null default '{}',
    reasons jsonb not null default '{}',
    -- what keeps it from going on, as whoever had the last turn was told
    trouble text
);

create index bulks_open on {schema}.bulks (not_before) where state in ('running', 'undoing');

-- The jobs of each, written down when it begins. They are rows of others' making: nothing here keeps those from going away.
create table {schema}.bulk_jobs (
    bulk bigint not null,
    job bigint not null,
    -- null until it has had its turn
    outcome text check (outcome in ('done', 'skipped', 'failed', 'undone', 'kept')),
    -- what it was, without its arguments
    before jsonb,
    -- the job that was made of it
    successor bigint,
    primary key (bulk, job)
) with (fillfactor = 60); -- its turn makes two more versions of each row
