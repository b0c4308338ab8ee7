-- older workers: fine
-- Pollers: which rows of tables that are the user's are being worked on, and by whom.

-- What the process that declared a poller last says of it, for people; and whether it shall rest.
create table {schema}.pollers (
    name text primary key check (length(name) between 1 and 200),
    definition jsonb not null default '{}',
    declared_at timestamptz not null default statement_timestamp(),
    paused_at timestamptz,
    paused_by text
);

-- One row per row that is claimed, waits for another attempt, or is parked. A row that is well has none.
create table {schema}.poll_claims (
    poller text not null,
    -- the values of the key's columns, in their order
    key jsonb not null check (jsonb_typeof(key) = 'array'),
    claimed_at timestamptz,
    retry_at timestamptz,
    parked_at timestamptz,
    failed_at timestamptz,
    token bigint,
    attempts integer not null default 0,
    losses smallint not null default 0,
    member uuid,
    error_type text,
    error_message text,
    error_trace text,
    primary key (poller, key),
    check ((member is null) = (token is null)),
    check (member is null or parked_at is null)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 10000
);

-- What a member holds: for rescue.
create index poll_claims_held on {schema}.poll_claims (member) where member is not null;
-- When the next attempt is due.
create index poll_claims_waiting on {schema}.poll_claims (poller, retry_at) where member is null and parked_at is null;
-- What went down with its process, and is tried again apart from the others.
create index poll_claims_suspect on {schema}.poll_claims (poller, retry_at)
    where member is null and parked_at is null and losses > 0;
create index poll_claims_parked on {schema}.poll_claims (poller, parked_at) where parked_at is not null;

-- The pace of each row, where a poller adapts it and the user's table has no column for it.
create table {schema}.poll_intervals (
    poller text not null,
    key jsonb not null,
    pace interval not null,
    due_at timestamptz not null,
    primary key (poller, key)
);

create index poll_intervals_due on {schema}.poll_intervals (poller, due_at);

-- For a trigger on the user's table: whoever polls it looks at once. Its argument is the poller's name.
-- Those who write to that table need no rights here; who makes the trigger must be granted to execute it.
create function {schema}.wake_poller() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $rota$
begin
    perform {schema}.notify('{poll_channel}', tg_argv[0]);
    return null;
end
$rota$;

revoke execute on function {schema}.wake_poller() from public;
