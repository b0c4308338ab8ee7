-- older workers: fine
-- Event logs: what happened, in streams, for projections to read in an order that no late commit can break.

-- The head of each stream. Its row is locked by who appends, so versions have no gaps and no append fails for another's.
create table {schema}.streams (
    -- so long that both fit in an index, whatever letters they are made of
    log text collate "C" not null check (length(log) between 1 and 100),
    stream text collate "C" not null check (length(stream) between 1 and 500),
    version bigint not null check (version > 0),
    -- of its last event
    order_xid xid8 not null,
    primary key (log, stream)
) with (fillfactor = 70);

create table {schema}.events (
    position bigint generated always as identity,
    -- Never less than that of the event before it in its stream: a transaction that began earlier and appends later comes after.
    order_xid xid8 not null,
    log text collate "C" not null,
    stream text collate "C" not null,
    version bigint not null,
    type text collate "C" not null check (length(type) between 1 and 500),
    -- the shape its data has, of those that its type has had
    shape smallint not null default 1,
    data jsonb not null,
    metadata jsonb,
    created_at timestamptz not null default {schema}.now(),
    primary key (log, order_xid, position)
);

create unique index events_of_stream on {schema}.events (log, stream, version);

-- Appends in the caller's transaction, in the order given; projections are woken when it commits. `expected` has the versions
-- that streams are said to have, by their names; 0 for one that is not there yet. Where one has another, nothing is appended at
-- all, and the rows returned are of such streams alone: they have no position, and the version is the one there is.
--
-- Each statement of a volatile function has a snapshot of its own, so what is read after a lock was waited for includes what
-- its last holder committed. At REPEATABLE READ and above PostgreSQL refuses instead, and the caller begins anew.
create function {schema}.append_events(log text, events jsonb, expected jsonb default '{}', wake boolean default true)
    returns table (stream text, version bigint, "position" bigint, order_xid xid8)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $append_events$
#variable_conflict use_column
declare
    own constant xid8 := pg_current_xact_id();
    asked record;
    head record;
    begun text[] := '{}';
    refused boolean := false;
    -- of each stream, in the order in which they are locked
    versions bigint[] := '{}';
    order_xids xid8[] := '{}';
begin
    for asked in
        select event.stream, count(*) as adds, (expected ->> event.stream)::bigint as expected
        from jsonb_to_recordset(events) as event(stream text)
        group by event.stream
        -- in one order for all: two calls with several streams never wait for each other in a circle
        order by event.stream collate "C"
    loop
        loop
            select version, order_xid into head
            from {schema}.streams
            where log = append_events.log and stream = asked.stream
            for update;
            exit when found or asked.expected > 0;

            insert into {schema}.streams (log, stream, version, order_xid)
            values (append_events.log, asked.stream, asked.adds, own)
            on conflict do nothing;
            if found then
                begun := begun || asked.stream;
                exit;
            end if;
            -- someone was first: now it can be seen
        end loop;
        if asked.expected <> coalesce(head.version, 0) then
            refused := true;
            return query select asked.stream, coalesce(head.version, 0), null::bigint, null::xid8;
        end if;
        versions := versions || coalesce(head.version, 0);
        order_xids := order_xids || greatest(head.order_xid, own);
    end loop;

    if refused then
        delete from {schema}.streams where log = append_events.log and stream = any (begun);
        return;
    end if;

    -- Whatever is joined here is in memory: a plan made while the tables were empty stays as good as it was.
    return query
        insert into {schema}.events as appended (order_xid, log, stream, version, type, shape, data, metadata)
        select
            order_xids[new.number], append_events.log, new.event ->> 'stream', versions[new.number] + new.turn,
            new.event ->> 'type', coalesce((new.event ->> 'shape')::smallint, 1),
            new.event -> 'data', nullif(new.event -> 'metadata', 'null')
        from (
            select
                event, place,
                dense_rank() over (order by event ->> 'stream' collate "C") as number,
                row_number() over (partition by event ->> 'stream' collate "C" order by place) as turn
            from jsonb_array_elements(events) with ordinality as each(event, place)
        ) as new
        -- positions are given in this order
        order by new.place
        returning appended.stream, appended.version, appended.position, appended.order_xid;

    for asked in
        select event.stream, count(*) as adds
        from jsonb_to_recordset(events) as event(stream text)
        where event.stream <> all (begun)
        group by event.stream
    loop
        update {schema}.streams
        set version = version + asked.adds, order_xid = greatest(order_xid, own)
        where log = append_events.log and stream = asked.stream;
    end loop;

    if wake then
        perform {schema}.notify('{event_channel}', append_events.log);
    end if;
end
$append_events$;

revoke execute on function {schema}.append_events(text, jsonb, jsonb, boolean) from public;

-- The same for one event, in half the time, as most appends are of one: one statement, and nothing to take apart. Where the
-- stream has another version than the expected, there is no position, and the version is the one there is.
create function {schema}.append_event(
    log text, stream text, type text, shape smallint, data jsonb, metadata jsonb, expected bigint default null,
    wake boolean default true, out version bigint, out "position" bigint, out order_xid xid8
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $append_event$
#variable_conflict use_column
declare
    own constant xid8 := pg_current_xact_id();
begin
    with head as (
        insert into {schema}.streams as head (log, stream, version, order_xid)
        select append_event.log, append_event.stream, 1, own
        -- a stream that is said to be there is not begun here
        where coalesce(expected, 0) = 0 or exists (
            select from {schema}.streams as known
            where known.log = append_event.log and known.stream = append_event.stream
        )
        on conflict (log, stream) do update
        set version = head.version + 1, order_xid = greatest(head.order_xid, own)
        where expected is null or head.version = expected
        returning head.version, head.order_xid
    )
    insert into {schema}.events as appended (order_xid, log, stream, version, type, shape, data, metadata)
    select
        head.order_xid, append_event.log, append_event.stream, head.version, append_event.type, append_event.shape,
        append_event.data, append_event.metadata
    from head
    returning appended.version, appended.position, appended.order_xid
    into append_event.version, append_event.position, append_event.order_xid;

    if found then
        if wake then
            perform {schema}.notify('{event_channel}', append_event.log);
        end if;
    else
        -- finds out why, or appends it, if the stream has come to that version meanwhile
        select appended.version, appended.position, appended.order_xid
        into append_event.version, append_event.position, append_event.order_xid
        from {schema}.append_events(
            append_event.log,
            jsonb_build_array(jsonb_build_object(
                'stream', append_event.stream, 'type', append_event.type, 'shape', append_event.shape,
                'data', append_event.data, 'metadata', append_event.metadata
            )),
            jsonb_build_object(append_event.stream, expected),
            wake
        ) as appended;
    end if;
end
$append_event$;

revoke execute on function
    {schema}.append_event(text, text, text, smallint, jsonb, jsonb, bigint, boolean) from public;
