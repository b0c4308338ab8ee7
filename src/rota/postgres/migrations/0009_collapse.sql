-- older workers: fine
-- Debounce and throttle: calls that come within a period are collapsed into one job.

-- From when a debounce counts its longest wait, and a throttle its period: the first call that the last job stands for, or when
-- that job was due.
alter table {schema}.uniques add column since timestamptz;

-- As before, see 0002; and a call may put off, or be put off by, what is there: `due`. Each job knows its line and its batch; one
-- whose task has a limit is put into a line though its caller does not know.
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
    due timestamptz;
    clock timestamptz := {schema}.now();
    own bigint := -(pg_current_xact_id()::text::bigint);
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
                task, args, queue, priority, version, due_at, key, tags, redact, retention, lost_limit, origin, trace_context,
                batch_id, after, takes, line, state, place
            )
            select
                spec.job ->> 'task', spec.job -> 'args', coalesce(spec.job ->> 'queue', 'default'),
                coalesce((spec.job ->> 'priority')::smallint, 0), coalesce((spec.job ->> 'version')::smallint, 1),
                due.at, named.key,
                case when jsonb_typeof(spec.job -> 'tags') = 'array'
                     then array(select jsonb_array_elements_text(spec.job -> 'tags')) end,
                case when jsonb_typeof(spec.job -> 'redact') = 'array'
                     then array(select jsonb_array_elements_text(spec.job -> 'redact')) end,
                spec.job ->> 'retention', (spec.job ->> 'lost_limit')::smallint, (spec.job ->> 'origin')::bigint,
                spec.job ->> 'trace_context', (spec.job ->> 'batch')::bigint, (spec.job ->> 'after')::bigint,
                spec.job ->> 'takes', waits.line,
                case when waits.line is null and not spec.job ? 'after' then 'queued' else 'blocked' end,
                case when waits.line is not null and not spec.job ? 'after' and due.at <= clock then own end
            from jsonb_array_elements(jobs) with ordinality as spec(job, place)
            cross join lateral (
                select coalesce(
                    (spec.job ->> 'at')::timestamptz,
                    clock + coalesce((spec.job ->> 'delay')::float8, 0) * interval '1 second'
                ) as at
            ) as due
            left join {schema}.limits as rule on rule.task = spec.job ->> 'task'
            cross join lateral (
                select coalesce(spec.job ->> 'key', case when rule.by_key then spec.job #>> array['args', rule.argument] end) as key
            ) as named
            cross join lateral (
                select coalesce(
                    (spec.job ->> 'line')::uuid,
                    {schema}.line_of(rule.task, case when rule.by_key then named.key end)
                ) as line
                offset 0  -- made once, and read several times
            ) as waits
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
        select spec.place::integer as place, spec.job, named.key,
               coalesce(
                    (spec.job ->> 'line')::uuid, {schema}.line_of(rule.task, case when rule.by_key then named.key end)
               ) as line,
               (spec.job #>> '{unique,digest}')::uuid as digest,
               coalesce((spec.job ->> 'at')::timestamptz, clock + coalesce((spec.job ->> 'delay')::float8, 0) * interval '1 second')
                    as due_at,
               case when jsonb_typeof(spec.job -> 'tags') = 'array'
                    then array(select jsonb_array_elements_text(spec.job -> 'tags')) end as tags,
               case when jsonb_typeof(spec.job -> 'redact') = 'array'
                    then array(select jsonb_array_elements_text(spec.job -> 'redact')) end as redact
        from jsonb_array_elements(jobs) with ordinality as spec(job, place)
        left join {schema}.limits as rule on rule.task = spec.job ->> 'task'
        cross join lateral (
            select coalesce(spec.job ->> 'key', case when rule.by_key then spec.job #>> array['args', rule.argument] end) as key
        ) as named
        order by spec.place
    loop
        place := new.place;
        existing := false;
        stored := null;
        due := new.due_at;
        while new.digest is not null loop
            select found.* into held from {schema}.unique_holder(new.job) as found;
            stored := held.job;
            due := least(greatest(new.due_at, held.not_before), held.not_after);
            -- what this very call has put is not put again, as it may have begun since; one that runs, or has run, is as it is
            exit when (
                not held.own and new.job #>> '{unique,conflict}' = 'replace' and stored ->> 'state' in ('queued', 'blocked')
            ) is not true;
            if new.job #>> '{unique,keep}' = 'first' and (stored ->> 'attempt')::integer = 0 then
                update {schema}.jobs as job
                set due_at = due,
                    -- one that is due later is not in line
                    place = case when due <= clock then job.place end
                where job.id = (held.job ->> 'id')::bigint
                  -- unless it has begun since
                  and job.attempt = (held.job ->> 'attempt')::integer;
                -- as it was told before: its arguments may not be for this caller to read
                stored := stored || jsonb_build_object('due_at', due);
            else
                update {schema}.jobs as job
                set args = new.job -> 'args',
                    queue = coalesce(new.job ->> 'queue', 'default'),
                    priority = coalesce((new.job ->> 'priority')::smallint, 0),
                    version = coalesce((new.job ->> 'version')::smallint, 1),
                    due_at = due,
                    key = new.key,
                    line = new.line,
                    state = case when new.line is null and job.after is null then 'queued' else 'blocked' end,
                    place = case when new.line = job.line and due <= clock then job.place end,
                    tags = new.tags,
                    redact = new.redact,
                    lost_limit = (new.job ->> 'lost_limit')::smallint,
                    retention = new.job ->> 'retention',
                    trace_context = new.job ->> 'trace_context',
                    saved = null
                where job.id = (held.job ->> 'id')::bigint
                  and job.attempt = (held.job ->> 'attempt')::integer
                returning to_jsonb(job) into stored;
            end if;
            -- it has begun or ended while we waited for its row: look again at what there is now
            continue when not found;
            if (stored ->> 'attempt')::integer > 0 then
                -- the new call has all its attempts before it, and is not told the errors of the other as its own
                delete from {schema}.attempts as attempt
                where attempt.job_id = (stored ->> 'id')::bigint;
                update {schema}.jobs as job
                set attempt = 0,
                    losses = 0
                where job.id = (stored ->> 'id')::bigint
                returning to_jsonb(job) into stored;
                -- and it is the first of those that the job stands for now
                update {schema}.uniques as last
                set since = clock
                where last.key = new.digest;
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
            exit;
        end loop;
        if stored is not null then
            existing := not held.own;
            id := stored ->> 'id'; created_at := stored ->> 'created_at'; due_at := stored ->> 'due_at'; state := stored ->> 'state';
        else
            insert into {schema}.jobs as job (
                task, args, queue, priority, version, due_at, key, tags, redact, retention, unique_key, lost_limit, origin,
                trace_context, batch_id, after, takes, line, state, place
            )
            values (
                new.job ->> 'task', new.job -> 'args', coalesce(new.job ->> 'queue', 'default'),
                coalesce((new.job ->> 'priority')::smallint, 0), coalesce((new.job ->> 'version')::smallint, 1),
                due, new.key, new.tags, new.redact, new.job ->> 'retention', new.digest,
                (new.job ->> 'lost_limit')::smallint, (new.job ->> 'origin')::bigint, new.job ->> 'trace_context',
                (new.job ->> 'batch')::bigint, (new.job ->> 'after')::bigint, new.job ->> 'takes', new.line,
                case when new.line is null and not new.job ? 'after' then 'queued' else 'blocked' end,
                case when new.line is not null and not new.job ? 'after' and due <= clock then own end
            )
            returning job.id, job.created_at, job.due_at, job.state into put;
            id := put.id; created_at := put.created_at; due_at := put.due_at; state := put.state;
            if new.digest is not null then
                update {schema}.uniques as held
                set job_id = put.id,
                    call = (new.job #>> '{unique,call}')::uuid,
                    turn = (new.job #>> '{unique,turn}')::integer,
                    created_at = put.created_at,
                    since = case when new.job #>> '{unique,hold}' is null then put.created_at else put.due_at end,
                    keep_until = case
                        when new.job #>> '{unique,hold}' is not null
                        then put.due_at + (new.job #>> '{unique,hold}')::float8 * interval '1 second'
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

-- As before, see 0002; and when a job may be due that is put in the place of the one there is (a debounce), or after it (a
-- throttle): not before one moment, and not after another.
drop function {schema}.unique_holder(jsonb);
create function {schema}.unique_holder(
    new jsonb, out job jsonb, out own boolean, out not_before timestamptz, out not_after timestamptz
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $unique_holder$
#variable_conflict use_column
declare
    digest uuid := new #>> '{unique,digest}';
    states text[] := array(select jsonb_array_elements_text(new #> '{unique,states}'));
    since timestamptz := {schema}.now() - (new #>> '{unique,within}')::float8 * interval '1 second';
    -- how long after a job has begun the next of a throttle may
    hold interval := (new #>> '{unique,hold}')::float8 * interval '1 second';
    last record;
    counts boolean;
    unused boolean;
begin
    select held.job_id, held.call, held.turn, held.created_at, held.since, held.ended into last
    from {schema}.uniques as held
    where held.key = digest and held.job_id > 0;
    own := coalesce(last.call = (new #>> '{unique,call}')::uuid, false);
    if not own then
        select to_jsonb(live) into job
        from {schema}.jobs as live
        where live.unique_key = digest
          and live.state = any (states)
          and (since is null or live.created_at > since)
          -- for a throttle, one that waits for another attempt has begun
          and (hold is null or live.attempt = 0)
        -- an expression, which no index is sorted by: without statistics PostgreSQL would rather walk all ids backwards
        order by live.id + 0 desc
        limit 1;
    end if;
    -- what has settled counts for those who mind; and for the call that put it, whatever became of it
    if job is null and last.job_id is not null and (own or hold is not null or states && '{succeeded,dead,cancelled}') then
        select found.job, found.counts into job, counts
        from (
            select to_jsonb(live) as job, true as counts from {schema}.jobs as live where live.id = last.job_id
            union all
            select to_jsonb(done), true from {schema}.history as done where done.id = last.job_id
            union all
            -- who acknowledges a letter gives its key back
            select to_jsonb(letter) || '{"state": "dead"}', letter.resolved_at is null
            from {schema}.dead as letter
            where letter.id = last.job_id
        ) as found;
        if not found then
            -- dropped by its age: only this is known of it
            job := jsonb_build_object(
                'id', last.job_id, 'created_at', last.created_at, 'due_at', last.created_at,
                'state', coalesce(last.ended, 'succeeded')
            );
            counts := true;
        end if;
        if not own and hold is not null then
            -- one that was cancelled before it began leaves its turn to the next
            unused := coalesce(job ->> 'state' = 'cancelled' and (job ->> 'attempt')::integer = 0, false);
            not_before := greatest(
                coalesce(last.since, last.created_at),
                -- it may have begun later than it was due
                least((job ->> 'claimed_at')::timestamptz, (
                    select min(attempt.started_at) from {schema}.attempts as attempt where attempt.job_id = last.job_id
                ))
            ) + case when unused then interval '0' else hold end;
            if unused or not_before <= {schema}.now() or new #>> '{unique,keep}' = 'last' then
                job := null;
            end if;
        elsif not own and not (counts and job ->> 'state' = any (states) and (since is null or last.created_at > since)) then
            job := null;
        end if;
    end if;
    if new #>> '{unique,keep}' is not null and job ->> 'state' in ('queued', 'blocked') and (job ->> 'attempt')::integer = 0 then
        -- a call for what has not begun puts it off, and never brings it forward: that call may have waited for the lock
        -- longer than the last one. A debounce puts it off no further than its longest, a throttle not at all.
        not_before := job ->> 'due_at';
        not_after := case
            when hold is null
            then greatest(last.since, (job ->> 'created_at')::timestamptz) + (new #>> '{unique,longest}')::float8 * interval '1 second'
            else not_before
        end;
    end if;
    -- `put_jobs` reads with the owner's rights: payloads are for those who might have read them with their own
    job := job - case
        when has_column_privilege(session_user, $name${schema}.jobs$name$, 'args', 'select') then '{saved}'::text[]
        else '{saved,args,result}'
    end;
    -- a later one of the same call is a twin, in both its tries: it meets what the call has put before
    own := own and last.turn >= (new #>> '{unique,turn}')::integer;
end
$unique_holder$;
