-- older workers: fine
-- Leadership: who leads what, and in which term.

-- One row per name. A term is over when this row has moved on, or when its member has ended: nothing else ends it.
create table {schema}.leases (
    name text primary key check (length(name) between 1 and 200),
    -- grows with every term, and is never behind the clock: a replica that missed the last terms goes on above them
    epoch bigint not null,
    -- null when nobody leads
    member uuid,
    acquired_at timestamptz not null
);

create index leases_member on {schema}.leases (member) where member is not null;

-- The terms there were, for people. Nothing is decided by them.
create table {schema}.terms (
    name text not null,
    epoch bigint not null,
    member uuid not null,
    holder text not null,
    host text not null,
    pid integer not null,
    acquired_at timestamptz not null,
    -- someone wants the leader to step down
    resign_requested_at timestamptz,
    -- when the leader last said that its work goes on, and what it said
    progressed_at timestamptz,
    progress_note text,
    ended_at timestamptz,
    end_reason text check (end_reason in ('resigned', 'lost', 'taken')),
    -- how the member of one that was lost had ended, of which nothing is left after a week
    lost_because text,
    primary key (name, epoch),
    check ((ended_at is null) = (end_reason is null))
);

create index terms_open on {schema}.terms (name) where ended_at is null;

-- Who waits to lead what. Rows of members that have ended mean nothing.
create table {schema}.standbys (
    name text not null,
    member uuid not null,
    since timestamptz not null default statement_timestamp(),
    primary key (name, member)
);

create function {schema}.new_epoch(last bigint) returns bigint
    language sql volatile
    return greatest(last + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint);

-- Tells those who wait, and who leads, that something is new about this name.
create function {schema}.announce(lease text) returns void
    language sql volatile
    return {schema}.notify('{lead_channel}', lease);
