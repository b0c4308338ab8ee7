-- older workers: fine
-- What a member says of itself with its beat, beside that it lives; and what someone wants of it.

alter table {schema}.members
    -- of the app, which has releases of its own
    add column app_release text,
    -- since when it takes on nothing new, because it ends or because someone wants it to rest
    add column draining_at timestamptz,
    add column quiet_at timestamptz,
    -- numbers: memory, slots, how late its event loop was, connections. The last ones: what a renewal leaves alone is shared with
    -- the version before, and costs the log nothing.
    add column condition_at timestamptz,
    add column condition jsonb;

-- What someone wants of a member, which it reads with its next beat. A table of its own: whoever writes it holds no lock that a beat
-- would wait for.
create table {schema}.wishes (
    member uuid primary key,
    wish text not null check (wish in ('quiet', 'drain')),
    asked_at timestamptz not null default statement_timestamp(),
    asked_by text not null
);
