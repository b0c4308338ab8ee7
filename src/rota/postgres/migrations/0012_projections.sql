-- older workers: fine
-- Projections: readers of events that see each once. Where each of them is, and what it could not take in.

-- One row for each partition of each build of each version of a projection: while a new version, or a new build of the same code,
-- catches up, the old one stays as it is. One that has no partitions is partition 0 of 1.
create table {schema}.projections (
    name text collate "C" not null check (length(name) between 1 and 150),
    version integer not null check (version > 0),
    build integer not null default 1 check (build > 0),
    partition integer not null default 0 check (partition >= 0),
    -- never changed: a stream that came to lie in another partition would be read twice or not at all
    partitions integer not null default 1 check (partitions > partition),
    definition jsonb not null,
    declared_at timestamptz not null default {schema}.now(),
    state text not null default 'running' check (state in ('running', 'paused', 'stopped', 'retired')),
    state_at timestamptz not null default {schema}.now(),
    -- who paused it; null for one that stopped by itself, or was retired when a later version took its place
    state_by text,
    -- the last event that was taken in: of the pair, the first is 0 in what is older than the column
    order_xid xid8 not null default '0',
    position bigint not null default -9223372036854775808,
    -- of the term that reads: an older one can write nothing here
    epoch bigint not null default 0,
    -- when the checkpoint last moved
    progress_at timestamptz,
    -- when it began with the first event, when its tables were made, and since when readers use them
    began_at timestamptz not null default {schema}.now(),
    prepared_at timestamptz,
    live_at timestamptz,
    -- of the event that comes next, and of the last that failed
    failures integer not null default 0,
    failed_at timestamptz,
    error_type text,
    error_message text,
    error_trace text,
    primary key (name, version, build, partition)
) with (fillfactor = 50);  -- it is written with every batch: room for that in its page

-- What could not be taken in, in the order of the log, until it is replayed or dropped.
create table {schema}.parked_events (
    projection text collate "C" not null,
    version integer not null,
    build integer not null default 1,
    partition integer not null default 0,
    order_xid xid8 not null,
    position bigint not null,
    stream text,
    type text,
    parked_at timestamptz not null default {schema}.now(),
    attempts integer not null,
    error_type text not null,
    error_message text not null,
    error_trace text not null,
    -- whoever reads for the projection is to try it again
    replay_at timestamptz,
    primary key (projection, version, build, order_xid, position),
    foreign key (projection, version, build, partition)
        references {schema}.projections (name, version, build, partition) on delete cascade
);

create index parked_events_replay on {schema}.parked_events (projection, version, build, partition) where replay_at is not null;

-- In which of so many partitions the events of a stream are. The same on every server, platform and encoding, for ever.
create function {schema}.partition_of(stream text, partitions integer) returns integer
    language sql stable parallel safe
    return (
        ('x' || encode(substring(sha256(convert_to(coalesce(stream, ''), 'UTF8')) for 4), 'hex'))::bit(32)::bigint % partitions
    )::integer;
