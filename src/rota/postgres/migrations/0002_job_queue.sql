-- older workers: stop
-- The whole job queue: unique jobs, versions, cancelling, progress and checkpoints, suspects, resolved dead letters, audit.
-- Workers of the kernel know neither versions nor cancelling, so they may not go on beside these.

alter table {schema}.jobs
    -- a digest of task and key; see uniques
    add column unique_key uuid,
    -- the dead letter or settled job that this one repeats
    add column origin bigint,
    -- someone wants it stopped: whoever runs it ends it, and it is never queued again
    add column cancel_requested_at timestamptz,
    add column cancel_reason text,
    -- what the running attempt reports; the checkpoint outlives attempts
    add column progress real,
    add column progress_note text,
    add column saved jsonb,
    -- arguments that are not shown to people
    add column redact text[],
    -- how many lost processes bury it; null for the usual number
    add column lost_limit smallint;

create index jobs_unique on {schema}.jobs (unique_key) where unique_key is not null;
-- Jobs that went down with a process. They are taken one by one, so that a poison is told from its neighbours.
create index jobs_suspect on {schema}.jobs (priority desc, due_at, id) where state = 'queued' and losses > 0;
create index jobs_cancelling on {schema}.jobs (id) where cancel_requested_at is not null;
create index jobs_origin on {schema}.jobs (origin) where origin is not null;

alter table {schema}.history
    add column unique_key uuid,
    add column origin bigint,
    add column reason text,
    add column redact text[],
    add column lost_limit smallint;

alter table {schema}.dead
    add column unique_key uuid,
    add column origin bigint,
    add column saved jsonb,
    add column redact text[],
    add column lost_limit smallint,
    -- the last error, as attempts are dropped by age and a letter waits as long as it takes
    add column error_type text,
    add column error_message text,
    add column error_trace text,
    add column resolved_at timestamptz,
    add column resolution text check (resolution in ('retried', 'acknowledged')),
    add column resolved_by text,
    add column note text,
    -- the job that was made when the letter was retried
    add column successor bigint,
    add check ((resolved_at is null) = (resolution is null));

create index dead_open on {schema}.dead (id) where resolved_at is null;
create index dead_resolved on {schema}.dead (resolved_at) where resolved_at is not null;

-- The last job of each unique key. Its row is the lock under which the next one is judged, and it outlives history.
create table {schema}.uniques (
    key uuid primary key,
    -- 0 while nobody has put a job under it
    job_id bigint not null default 0,
    -- the call that put it: the same call, repeated since its reply was lost, finds its own job
    call uuid,
    -- which of the jobs of that call it was, as several may have one key
    turn integer,
    created_at timestamptz not null default {schema}.now(),
    -- how long it must be remembered when nothing live holds it; null for no longer, infinity for ever
    keep_until timestamptz,
    -- what became of the job, noted before history forgets it. One that is found nowhere has succeeded if nothing is noted.
    ended text check (ended = 'cancelled')
);

-- Who changed what by hand.
create table {schema}.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default statement_timestamp(),
    actor text not null,
    action text not null,
    details jsonb not null default '{}'
);

-- Tells listeners something they would find out by themselves a little later. It must never fail the work it tells of, and
-- while the queue of notifications is full, PostgreSQL refuses every commit that adds to it: so it stops short of that.
-- One expression without settings of its own, so that PostgreSQL can put it in the place of the call.
create function {schema}.notify(channel text, payload text) returns void
    language sql volatile parallel restricted
    return case when pg_notification_queue_usage() < 0.9 then pg_notify(channel, payload) end;

create function {schema}.unique_digest(task text, key text) returns uuid
    language sql immutable parallel safe
    return encode(substring(sha256(convert_to(task || E'\x1f' || key, 'UTF8')) for 16), 'hex')::uuid;

-- Puts jobs in the caller's transaction, in the order given, each unique one under the lock of its key; workers are woken
-- when it commits. A job whose key is held by another is not put: the row then tells of the one that is there, which is
-- `stored`. Where one that may not exist twice does (conflict "raise"), nothing is put at all and only such rows are
-- returned. A call that comes in several parts names the keys of the others in the first, as `later`.
--
-- Each statement of a volatile function has a snapshot of its own, so what is read after the lock was waited for includes
-- what its last holder committed. At REPEATABLE READ and above PostgreSQL refuses instead, and the caller begins anew.
create function {schema}.put_jobs(jobs jsonb, later jsonb default '[]')
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
                task, args, queue, priority, version, due_at, key, tags, redact, retention, lost_limit, origin
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
                spec.job ->> 'retention', (spec.job ->> 'lost_limit')::smallint, (spec.job ->> 'origin')::bigint
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
                task, args, queue, priority, version, due_at, key, tags, redact, retention, unique_key, lost_limit, origin
            )
            values (
                new.job ->> 'task', new.job -> 'args', coalesce(new.job ->> 'queue', 'default'),
                coalesce((new.job ->> 'priority')::smallint, 0), coalesce((new.job ->> 'version')::smallint, 1),
                new.due_at, new.job ->> 'key', new.tags, new.redact, new.job ->> 'retention', new.digest,
                (new.job ->> 'lost_limit')::smallint, (new.job ->> 'origin')::bigint
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

-- The job that holds the unique key of a new one, if any: one that is in a state, and no older, than the new one minds. It is
-- the new one's `own` if this very call has put it before its reply was lost: it has no quarrel with that. A twin in the same
-- call has: but it, too, finds that job whatever became of it.
create function {schema}.unique_holder(new jsonb, out job jsonb, out own boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $unique_holder$
#variable_conflict use_column
declare
    digest uuid := new #>> '{unique,digest}';
    states text[] := array(select jsonb_array_elements_text(new #> '{unique,states}'));
    since timestamptz := {schema}.now() - (new #>> '{unique,within}')::float8 * interval '1 second';
    last record;
    counts boolean;
begin
    select held.job_id, held.call, held.turn, held.created_at, held.ended into last
    from {schema}.uniques as held
    where held.key = digest and held.job_id > 0;
    own := coalesce(last.call = (new #>> '{unique,call}')::uuid, false);
    if not own then
        select to_jsonb(live) into job
        from {schema}.jobs as live
        where live.unique_key = digest
          and live.state = any (states)
          and (since is null or live.created_at > since)
        -- an expression, which no index is sorted by: without statistics PostgreSQL would rather walk all ids backwards
        order by live.id + 0 desc
        limit 1;
    end if;
    -- what has settled counts for those who mind; and for the call that put it, whatever became of it
    if job is null and last.job_id is not null and (own or states && '{succeeded,dead,cancelled}') then
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
        if not own and not (counts and job ->> 'state' = any (states) and (since is null or last.created_at > since)) then
            job := null;
        end if;
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

-- Enqueue from plain SQL, in the caller's transaction; workers are woken when it commits.
drop function {schema}.enqueue(text, jsonb, text, integer, timestamptz, text[]);
create function {schema}.enqueue(
    task text,
    args jsonb default '{}',
    queue text default 'default',
    priority integer default 0,
    due_at timestamptz default null,
    tags text[] default null,
    key text default null,
    -- at most one job of this task and key is queued or running: the id of the one there is
    unique_key text default null,
    version integer default 1
) returns bigint
    language sql volatile
    set search_path = pg_catalog, pg_temp
    begin atomic
        select put.id
        from {schema}.put_jobs(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
            'task', enqueue.task,
            'queue', enqueue.queue,
            'priority', enqueue.priority,
            'at', enqueue.due_at,
            'tags', to_jsonb(enqueue.tags),
            'key', enqueue.key,
            'version', enqueue.version,
            'unique', case when enqueue.unique_key is not null then jsonb_build_object(
                'digest', {schema}.unique_digest(enqueue.task, enqueue.unique_key),
                'states', '["queued", "blocked", "running"]'::jsonb
            ) end
        )) || jsonb_build_object('args', enqueue.args))) as put;
    end;

-- It writes with the owner's rights: nobody has it without being given it.
revoke execute on function {schema}.put_jobs(jsonb, jsonb) from public;
