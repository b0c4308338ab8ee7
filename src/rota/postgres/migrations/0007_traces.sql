-- older workers: fine
-- Traces: the context in which a job was enqueued travels with it, so that what runs it can go on with the same trace.

-- As W3C writes it: traceparent and, after a space, tracestate if there is one. Null where nobody traces. Older workers leave it
-- behind when they settle a job.
alter table {schema}.jobs add column trace_context text;
alter table {schema}.history add column trace_context text;
alter table {schema}.dead add column trace_context text;

-- As before, see 0002; and with the context of each job.
create or replace function {schema}.put_jobs(jobs jsonb, later jsonb default '[]')
    returns table (
        place integer, id bigint, created_at timestamptz, due_at timestamptz, state text, existing boolean, stored jsonb
    )
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $put_jobs$
#variable_conflict use_column
declare
    new record;
    held record;
    put record;
    clock timestamptz := {schema}.now();
    refused boolean := false;
begin
    -- all keys at once and in one order, so that two calls with several keys never wait for each other in a circle
    insert into {schema}.uniques (key)
    select distinct (job #>> '{unique,digest}')::uuid as key
    from jsonb_array_elements(jobs || later) as job
    where job ? 'unique'
    order by key
    on conflict (key) do update set key = excluded.key;

    -- what may be replaced, in the order in which those who cancel or settle take it; only where there is such a thing, as
    -- even a look that finds nothing makes callers at SERIALIZABLE depend on each other
    if (jobs || later) @? '$[*].unique ? (@.conflict == "replace")' then
        perform
        from {schema}.jobs as job
        where job.unique_key = any (array(
            select (spec #>> '{unique,digest}')::uuid
            from jsonb_array_elements(jobs || later) as spec
            where spec #>> '{unique,conflict}' = 'replace'
        ))
          and job.state in ('queued', 'blocked')
        order by job.id
        for update;
    end if;

    for new in
        select spec.place::integer as place, held.job
        from jsonb_array_elements(jobs) with ordinality as spec(job, place)
        cross join lateral {schema}.unique_holder(spec.job) as held
        where spec.job #>> '{unique,conflict}' = 'raise'
          and held.job is not null
          and not held.own
    loop
        refused := true;
        place := new.place;
        existing := true;
        stored := new.job;
        id := stored ->> 'id'; created_at := stored ->> 'created_at'; due_at := stored ->> 'due_at'; state := stored ->> 'state';
        return next;
    end loop;
    if refused then
        return;
    end if;

    perform {schema}.notify('{wake_channel}', queues.queue)
    from (
        select distinct coalesce(job ->> 'queue', 'default') as queue
        from jsonb_array_elements(jobs) as job
        where coalesce((job ->> 'wake')::boolean, true)
    ) as queues;

    -- plain jobs look at no others, so all are put at once
    if not jobs @? '$[*].unique' then
        return query
        with added as (
            insert into {schema}.jobs as job (
                task, args, queue, priority, version, due_at, key, tags, redact, retention, lost_limit, origin, trace_context
            )
            select
                spec.job ->> 'task', spec.job -> 'args', coalesce(spec.job ->> 'queue', 'default'),
                coalesce((spec.job ->> 'priority')::smallint, 0), coalesce((spec.job ->> 'version')::smallint, 1),
                coalesce((spec.job ->> 'at')::timestamptz, clock + coalesce((spec.job ->> 'delay')::float8, 0) * interval '1 second'),
                spec.job ->> 'key',
                case when jsonb_typeof(spec.job -> 'tags') = 'array'
                     then array(select jsonb_array_elements_text(spec.job -> 'tags')) end,
                case when jsonb_typeof(spec.job -> 'redact') = 'array'
                     then array(select jsonb_array_elements_text(spec.job -> 'redact')) end,
                spec.job ->> 'retention', (spec.job ->> 'lost_limit')::smallint, (spec.job ->> 'origin')::bigint,
                spec.job ->> 'trace_context'
            from jsonb_array_elements(jobs) with ordinality as spec(job, place)
            -- ids are given in this order, which is how the rows find their places again
            order by spec.place
            returning job.id, job.created_at, job.due_at, job.state
        )
        select (row_number() over (order by added.id))::integer, added.id, added.created_at, added.due_at, added.state,
               false, null::jsonb
        from added;
        return;
    end if;

    for new in
        select spec.place::integer as place, spec.job,
               (spec.job #>> '{unique,digest}')::uuid as digest,
               coalesce((spec.job ->> 'at')::timestamptz, clock + coalesce((spec.job ->> 'delay')::float8, 0) * interval '1 second')
                    as due_at,
               case when jsonb_typeof(spec.job -> 'tags') = 'array'
                    then array(select jsonb_array_elements_text(spec.job -> 'tags')) end as tags,
               case when jsonb_typeof(spec.job -> 'redact') = 'array'
                    then array(select jsonb_array_elements_text(spec.job -> 'redact')) end as redact
        from jsonb_array_elements(jobs) with ordinality as spec(job, place)
        order by spec.place
    loop
        place := new.place;
        existing := false;
        stored := null;
        if new.digest is not null then
            select found.job, found.own into held from {schema}.unique_holder(new.job) as found;
            stored := held.job;
            -- what this very call has put is not put again: it may have begun since
            if stored is not null and not held.own and new.job #>> '{unique,conflict}' = 'replace' then
                update {schema}.jobs as job
                set args = new.job -> 'args',
                    queue = coalesce(new.job ->> 'queue', 'default'),
                    priority = coalesce((new.job ->> 'priority')::smallint, 0),
                    version = coalesce((new.job ->> 'version')::smallint, 1),
                    due_at = new.due_at,
                    key = new.job ->> 'key',
                    tags = new.tags,
                    redact = new.redact,
                    lost_limit = (new.job ->> 'lost_limit')::smallint,
                    retention = new.job ->> 'retention',
                    trace_context = new.job ->> 'trace_context',
                    saved = null
                where job.id = (held.job ->> 'id')::bigint
                  -- one that runs by now, or has run, is as it is
                  and job.state in ('queued', 'blocked')
                returning to_jsonb(job) into stored;
                if found then
                    if (stored ->> 'attempt')::integer > 0 then
                        -- the new call has all its attempts before it, and is not told the errors of the other as its own
                        delete from {schema}.attempts as attempt
                        where attempt.job_id = (stored ->> 'id')::bigint;
                        update {schema}.jobs as job
                        set attempt = 0,
                            losses = 0
                        where job.id = (stored ->> 'id')::bigint
                        returning to_jsonb(job) into stored;
                    end if;
                    update {schema}.uniques as last
                    set ended = null,
                        job_id = (stored ->> 'id')::bigint,
                        call = (new.job #>> '{unique,call}')::uuid,
                        turn = (new.job #>> '{unique,turn}')::integer,
                        created_at = (stored ->> 'created_at')::timestamptz,
                        -- the job may be old, and a call that is repeated still finds what it replaced
                        keep_until = greatest(last.keep_until, clock + interval '1 hour')
                    where last.key = new.digest;
                else
                    -- it was claimed or ended while we waited for its row: look again at what there is now
                    select found.job, found.own into held from {schema}.unique_holder(new.job) as found;
                    stored := held.job;
                end if;
            end if;
        end if;
        if stored is not null then
            existing := not held.own;
            id := stored ->> 'id'; created_at := stored ->> 'created_at'; due_at := stored ->> 'due_at'; state := stored ->> 'state';
        else
            insert into {schema}.jobs as job (
                task, args, queue, priority, version, due_at, key, tags, redact, retention, unique_key, lost_limit, origin,
                trace_context
            )
            values (
                new.job ->> 'task', new.job -> 'args', coalesce(new.job ->> 'queue', 'default'),
                coalesce((new.job ->> 'priority')::smallint, 0), coalesce((new.job ->> 'version')::smallint, 1),
                new.due_at, new.job ->> 'key', new.tags, new.redact, new.job ->> 'retention', new.digest,
                (new.job ->> 'lost_limit')::smallint, (new.job ->> 'origin')::bigint, new.job ->> 'trace_context'
            )
            returning job.id, job.created_at, job.due_at, job.state into put;
            id := put.id; created_at := put.created_at; due_at := put.due_at; state := put.state;
            if new.digest is not null then
                update {schema}.uniques as held
                set job_id = put.id,
                    call = (new.job #>> '{unique,call}')::uuid,
                    turn = (new.job #>> '{unique,turn}')::integer,
                    created_at = put.created_at,
                    keep_until = case
                        when not new.job #> '{unique,states}' ?| '{succeeded,dead,cancelled}' then null
                        else coalesce(put.created_at + (new.job #>> '{unique,within}')::float8 * interval '1 second', 'infinity')
                    end,
                    ended = null
                where held.key = new.digest;
            end if;
        end if;
        return next;
    end loop;
end
$put_jobs$;
