-- older workers: fine
-- Flow: queues that can be paused, limited and weighed; lines, in which the jobs of a limited task wait for their turn; batches.
-- Older workers take nothing from a line, but know no pauses and no limits of queues: those hold once all run this release.

-- What someone has said about a queue. The row with no name is about all of them together.
create table {schema}.queues (
    name text primary key check (length(name) <= 200),
    paused_at timestamptz,
    paused_until timestamptz,
    paused_by text,
    pause_reason text,
    running_limit integer check (running_limit > 0),
    rate_count integer check (rate_count > 0),
    rate_seconds float8 check (rate_seconds > 0),
    -- how its lanes share with others of the same priority
    weight float8 not null default 1 check (weight > 0),
    changed_at timestamptz not null default {schema}.now(),
    changed_by text,
    -- see rate_spent; and when its rate has room again
    spent integer[],
    spent_slot bigint,
    not_before timestamptz,
    check ((rate_count is null) = (rate_seconds is null)),
    check (paused_at is not null or (paused_until is null and paused_by is null and pause_reason is null))
) with (fillfactor = 50);

-- What tasks have said about themselves: how many jobs of a line run at once, and how many begin in a period.
create table {schema}.limits (
    task text primary key,
    running integer check (running > 0),
    rate_count integer check (rate_count > 0),
    rate_seconds float8 check (rate_seconds > 0),
    -- whether its jobs have a line for each key, or one for all of them
    by_key boolean not null default false,
    -- the argument that is the key of a job that names none
    argument text,
    -- whether a job that is tried again later keeps its place, and all behind it wait
    hold boolean not null default false,
    declared_at timestamptz not null default {schema}.now(),
    check ((rate_count is null) = (rate_seconds is null))
);

-- One row for each line that someone waits or runs in. What it says follows from its jobs and is written under its lock: which
-- job is first, and since when (or from when on) it may be taken; null while it may not, because as many run as may.
create table {schema}.lines (
    id uuid primary key,
    task text not null,
    key text,
    queue text,
    priority smallint,
    version smallint,
    losses smallint,
    ready_at timestamptz,
    spent integer[],
    spent_slot bigint,
    not_before timestamptz
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000
);

-- Lines that may be taken from, the one that has waited longest first: so lines take turns.
create index lines_ready on {schema}.lines (queue, priority desc, ready_at, id) where ready_at is not null;
create index lines_empty on {schema}.lines (id) where queue is null;

alter table {schema}.jobs
    -- where it waits for its turn; null for a job that no limit of its task concerns
    add column line uuid,
    -- its place there. Null: it is not in line yet, since it is due later; negative: it is put there when this transaction commits.
    add column place bigint,
    -- the batch it belongs to, the batch it waits for, and the argument that takes what came of that
    add column batch_id bigint,
    add column after bigint,
    add column takes text,
    add column inputs jsonb;

alter table {schema}.history add column batch_id bigint;
alter table {schema}.dead add column batch_id bigint;

create index jobs_waiting on {schema}.jobs (line, place) where state = 'blocked' and place > 0;
create index jobs_in_line on {schema}.jobs (line) where state = 'running' and line is not null;
create index jobs_joining on {schema}.jobs (due_at, id) where state = 'blocked' and place is null and after is null;
create index jobs_arriving on {schema}.jobs (place) where place < 0;
create index jobs_batch on {schema}.jobs (batch_id) where batch_id is not null;
create index jobs_after on {schema}.jobs (after) where after is not null;

-- The line of a job: one for the task, or for the task and a key.
create function {schema}.line_of(task text, key text) returns uuid
    language sql immutable parallel safe
    return {schema}.unique_digest(task, coalesce(key, ''));

-- What a rate leaves. A period has forty slots, and what began is counted by slot, the present one last: in it and in the forty
-- before it no more begin than the rate allows. So it is in any period, wherever that begins; at most one part in forty less.
-- In short periods they are spread as well: of two bursts a period apart, what delays the one and not the other lets them meet.
create function {schema}.rate_after(
    count integer, seconds float8, begun integer, clock timestamptz, inout spent integer[], inout slot bigint,
    out room integer, out not_before timestamptz
)
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $rate_after$
declare
    present bigint := floor(extract(epoch from clock) * 40 / seconds);
begin
    if spent is null or present - slot > 40 then
        spent := array_fill(0, array[41]);
        slot := present;
    elsif present > slot then  -- it may be behind, by the clock of a server that was set back
        spent := spent[(present - slot + 1)::integer : 41] || array_fill(0, array[(present - slot)::integer]);
        slot := present;
    end if;
    spent[41] := spent[41] + begun;
    room := count - (select sum(each) from unnest(spent) as each);
    if room <= 0 then
        -- when the oldest leaves
        not_before := to_timestamp((slot + (
            select min(each.place) from unnest(spent) with ordinality as each(jobs, place) where each.jobs > 0
        )) * seconds / 40);
    elsif seconds < 10 and ceil(count / 40.0) <= spent[41] then
        not_before := to_timestamp((slot + 1) * seconds / 40);
        room := 0;
    elsif seconds < 10 then
        room := least(room, ceil(count / 40.0) - spent[41]);
    end if;
    room := greatest(room, 0);
end
$rate_after$;

-- Who enqueues, cancels or deletes runs what follows in a session of theirs: whatever is planned there for tables that are empty, or
-- were when someone counted, these statements go by their indexes.

-- Writes down what lines say about themselves, from their jobs. The caller has just served some of them: their turn is over.
-- Each statement has a snapshot of its own, so what is read after the locks includes what their last holders committed.
create function {schema}.refresh_lines(which uuid[], served uuid[] default '{}') returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
as $refresh_lines$
declare
    clock timestamptz := {schema}.now();
begin
    perform from {schema}.lines as line where line.id = any (which) order by line.id for update;
    update {schema}.lines as line
    set queue = first.queue,
        priority = first.priority,
        version = first.version,
        losses = first.losses,
        ready_at = first.ready_at
    from (
        select
            line.id, head.queue, head.priority, head.version, head.losses,
            case when head.due_at is not null and coalesce(held.jobs < rule.running, true) then greatest(
                case when line.id = any (served) then clock else least(coalesce(line.ready_at, clock), clock) end,
                head.due_at, line.not_before
            ) end as ready_at
        from {schema}.lines as line
        left join {schema}.limits as rule on rule.task = line.task
        left join lateral (
            select job.queue, job.priority, job.version, job.losses, job.due_at
            from {schema}.jobs as job
            where job.line = line.id and job.state = 'blocked' and job.place > 0
            order by job.place
            limit 1
        ) as head on true
        left join lateral (
            select count(*) as jobs
            from (
                select from {schema}.jobs as job where job.line = line.id and job.state = 'running' limit rule.running
            ) as running
        ) as held on rule.running is not null and head.due_at is not null
        where line.id = any (which)
    ) as first
    where line.id = first.id;
    delete from {schema}.lines as line
    where line.id = any (which)
      and line.queue is null
      and not exists (
          select
          from {schema}.limits as rule
          where rule.task = line.task
            and (
                rule.running is not null
                    and exists (select from {schema}.jobs as job where job.line = line.id and job.state = 'running')
                -- who comes next is to know what has begun in the period; see forget_lines
                or to_timestamp((line.spent_slot + 41) * rule.rate_seconds / 40) > clock
            )
      );
end
$refresh_lines$;

-- Puts jobs into their lines, in the order of their ids, each behind those that are there. Of a task that has one line for all,
-- the more urgent go first.
create function {schema}.place_jobs(ids bigint[]) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
as $place_jobs$
begin
    insert into {schema}.lines as line (id, task, key)
    select distinct on (job.line) job.line, job.task, job.key
    from {schema}.jobs as job
    where job.id = any (ids)
    order by job.line
    on conflict (id) do update set task = excluded.task;
    -- the trigger below sees to the rest
    with chosen as materialized (
        select
            job.id, job.priority,
            -- no worker may have told yet what the task says
            coalesce(rule.by_key, job.line <> {schema}.line_of(job.task, null)) as by_key
        from {schema}.jobs as job
        left join {schema}.limits as rule on rule.task = job.task
        where job.id = any (ids)
        order by job.id
    ), coming as materialized (
        select
            chosen.id,
            nextval(pg_get_serial_sequence($name${schema}.jobs$name$, 'id'))
                + case when chosen.by_key then 0 else (32767 - chosen.priority)::bigint << 47 end as place
        from chosen
    )
    update {schema}.jobs as job
    set place = coming.place
    from coming
    where job.id = coming.id;
end
$place_jobs$;

-- Whatever changes jobs, by whatever statement, their lines follow: nobody has to remember to.
create function {schema}.lines_follow() returns trigger
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $lines_follow$
declare
    touched uuid[];
    served uuid[];
begin
    if tg_op = 'DELETE' then
        select array_agg(distinct changed.line) into touched
        from changed
        left join {schema}.limits as rule on rule.task = changed.task
        where changed.line is not null
          -- one that ends frees nothing where any number may run; and so many who settle do not wait for one line
          and (changed.state <> 'running' or rule.running is not null);
    else
        select
            array_agg(distinct changed.line),
            array_agg(distinct changed.line) filter (where changed.state = 'blocked' and present.state = 'running')
        into touched, served
        from changed
        cross join lateral (
            select job.state from {schema}.jobs as job where job.id = changed.id limit 1
        ) as present
        where changed.line is not null
          -- what one that runs tells of itself is none of its line's business
          and (changed.state <> 'running' or present.state <> 'running');
    end if;
    if touched is not null then
        perform {schema}.refresh_lines(touched, coalesce(served, '{}'));
    end if;
    return null;
end
$lines_follow$;

create trigger lines_follow_updates after update on {schema}.jobs referencing old table as changed
    for each statement execute function {schema}.lines_follow();
create trigger lines_follow_deletes after delete on {schema}.jobs referencing old table as changed
    for each statement execute function {schema}.lines_follow();

-- Jobs come into line when their transaction commits, and the lock is held from there to its end only: so they are in the order
-- of the commits, and nobody waits for a caller who takes his time. The first job of a transaction brings all of them.
create function {schema}.jobs_arrive() returns trigger
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
as $jobs_arrive$
declare
    own bigint := -(pg_current_xact_id()::text::bigint);
begin
    if current_setting('rota.arrived', true) = own::text then
        return null;
    end if;
    perform set_config('rota.arrived', own::text, true);
    perform {schema}.place_jobs(array(select job.id from {schema}.jobs as job where job.place = own));
    return null;
end
$jobs_arrive$;

create constraint trigger jobs_arrive after insert on {schema}.jobs
    deferrable initially deferred
    for each row when (new.place < 0)
    execute function {schema}.jobs_arrive();

-- Puts those into line that have become due, or that came to the queue another way. Returns how many.
create function {schema}.join_lines(most integer) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $join_lines$
declare
    ids bigint[];
begin
    select array_agg(due.id order by due.id) into ids
    from (
        select job.id
        from {schema}.jobs as job
        where job.state = 'blocked' and job.place is null and job.after is null and job.due_at <= (select {schema}.now())
        order by job.due_at, job.id
        limit most
        for update skip locked
    ) as due;
    if ids is null then
        return 0;
    end if;
    update {schema}.jobs as job
    set key = named.key,
        line = {schema}.line_of(job.task, case when rule.by_key then named.key end)
    from {schema}.jobs as stray
    left join {schema}.limits as rule on rule.task = stray.task
    cross join lateral (
        select coalesce(stray.key, case when rule.by_key then stray.args ->> rule.argument end) as key
    ) as named
    where stray.id = any (ids)
      and stray.line is null
      and job.id = stray.id;
    perform {schema}.place_jobs(ids);
    return cardinality(ids);
end
$join_lines$;

-- The next jobs of these lines, which the caller has locked, in turns: of each as many as may run, begin now, and are its share.
-- A job that someone has locked, or that this process may not take, is not passed by: what is behind it waits with it. What went
-- down with a process before is taken alone, one such job in all, and only as often as told.
create function {schema}.next_in_lines(
    which uuid[], from_queue text, tasks text[], versions smallint[], most integer, most_losses integer, clock timestamptz
)
    returns table (id bigint, line uuid, suspect boolean, rated boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $next_in_lines$
#variable_conflict use_column
begin
    return query
    with heads as materialized (
        select
            job.id, job.line, job.place, job.losses > 0 as suspect, rule.rate_count is not null as rated,
            row_number() over turns as turn,
            job.queue = from_queue
                and job.due_at <= clock
                and job.cancel_requested_at is null
                and job.losses <= most_losses
                and (job.version = 1 or job.version <= versions[array_position(tasks, job.task)])
                and (not bool_or(job.losses > 0) over turns or row_number() over turns = 1) as fit
        from {schema}.lines as waiting
        left join {schema}.limits as rule on rule.task = waiting.task
        cross join lateral (
            select job.id, job.line, job.place, job.queue, job.task, job.version, job.losses, job.due_at, job.cancel_requested_at
            from {schema}.jobs as job
            where job.line = waiting.id and job.state = 'blocked' and job.place > 0
            order by job.place
            limit greatest(0, least(
                ceil(most / cardinality(which)::float8)::integer,
                -- none of these is asked for what has no such limit
                case when rule.running is not null then rule.running - (
                    select count(*)
                    from (
                        select
                        from {schema}.jobs as running
                        where running.line = waiting.id and running.state = 'running'
                        limit rule.running
                    ) as held
                ) end,
                case when rule.rate_count is not null then (
                    select rate.room
                    from {schema}.rate_after(rule.rate_count, rule.rate_seconds, 0, clock, waiting.spent, waiting.spent_slot) as rate
                ) end
            ))
        ) as job
        where waiting.id = any (which)
        window turns as (partition by job.line order by job.place rows unbounded preceding)
    ), next as (
        select
            heads.id, heads.line, heads.suspect, heads.rated, heads.turn, heads.place,
            bool_and(heads.fit and free.id is not null)
                over (partition by heads.line order by heads.place rows unbounded preceding) as may,
            count(*) filter (where heads.suspect) over (order by heads.turn, heads.place rows unbounded preceding) as suspects
        from heads
        -- one by one: as a join of two lists it would compare each with each
        left join lateral (
            select job.id from {schema}.jobs as job where job.id = heads.id for update skip locked
        ) as free on true
    )
    select next.id, next.line, next.suspect, next.rated
    from next
    where next.may and (not next.suspect or next.suspects = 1)
    order by next.turn, next.place
    limit most;
end
$next_in_lines$;

-- Takes jobs for a member under one token: from lines, and from lanes of a queue that may run only so many. Lanes are walked in
-- the order given; each is a queue, a priority, whether it is one of lines, and behind which job a walk begins.
create function {schema}.claim_flow(
    queues text[], priorities smallint[], of_lines boolean[], after_due timestamptz[], after_id bigint[],
    tasks text[], versions smallint[], limited text[], most integer, most_losses integer, new_token bigint, holder uuid
)
    returns setof {schema}.jobs
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $claim_flow$
#variable_conflict use_column
declare
    clock timestamptz := {schema}.now();
    gate record;
    room integer;
    rooms jsonb := '{}';
    chosen uuid[];
    ids bigint[];
    in_rated uuid[];
    suspects integer := 0;
    taken integer;
begin
    if not exists (select from {schema}.members as member where member.id = holder and member.ended_at is null) then
        return;
    end if;
    -- One after the other, under the lock of the queue: what runs is counted when it is ours, and so includes what the last one
    -- took. The order is that of the names, and lines come after it, so that no two wait for each other in a circle.
    for gate in
        select queue.name, queue.running_limit, queue.rate_count, queue.rate_seconds, queue.spent, queue.spent_slot
        from {schema}.queues as queue
        where queue.name = any (array[''] || queues)
          and (queue.running_limit is not null or queue.rate_count is not null)
        order by queue.name
        for update
    loop
        -- what others have taken while we waited for it is counted at their time, and what we take at ours
        clock := {schema}.now() + (clock_timestamp() - statement_timestamp());
        room := most;
        if gate.rate_count is not null then
            room := (
                select rate.room
                from {schema}.rate_after(gate.rate_count, gate.rate_seconds, 0, clock, gate.spent, gate.spent_slot) as rate
            );
        end if;
        if gate.running_limit is not null then
            room := least(room, gate.running_limit - (
                select count(*) from {schema}.jobs as job where job.state = 'running' and gate.name in ('', job.queue)
            ));
        end if;
        rooms := rooms || jsonb_build_object(gate.name, room);
    end loop;

    for lane in 1 .. cardinality(queues) loop
        room := least(most, (rooms ->> '')::integer, (rooms ->> queues[lane])::integer);
        continue when room <= 0;
        if of_lines[lane] then
            chosen := array(
                select line.id
                from {schema}.lines as line
                where line.queue = queues[lane]
                  and line.priority = priorities[lane]
                  and line.ready_at between after_due[lane] and clock
                  and line.task = any (tasks)
                  and (line.version = 1 or line.version <= versions[array_position(tasks, line.task)])
                  and line.losses <= most_losses
                order by line.ready_at, line.id
                limit room
                for update skip locked
            );
            continue when chosen = '{}';
            select
                array_agg(next.id), array_agg(next.line) filter (where next.rated), count(*) filter (where next.suspect)
            into ids, in_rated, suspects
            from {schema}.next_in_lines(chosen, queues[lane], tasks, versions, room, most_losses, clock) as next;
            continue when ids is null;
            if suspects > 0 then
                most_losses := 0;
            end if;
            if in_rated is not null then
                update {schema}.lines as line
                set (spent, spent_slot, not_before) = (
                    select rate.spent, rate.slot, rate.not_before
                    from {schema}.rate_after(rule.rate_count, rule.rate_seconds, begun.jobs, clock, line.spent, line.spent_slot) as rate
                )
                from (select each.line, count(*)::integer as jobs from unnest(in_rated) as each(line) group by each.line) as begun,
                     {schema}.limits as rule
                where line.id = begun.line
                  and rule.task = line.task;
            end if;
        else
            ids := '{}';
            if most_losses > 0 then
                ids := array(
                    select job.id
                    from {schema}.jobs as job
                    where job.state = 'queued'
                      and job.losses > 0
                      and job.losses <= most_losses
                      and job.queue = queues[lane]
                      and job.priority = priorities[lane]
                      and job.due_at <= clock
                      and job.task = any (tasks)
                      and (job.version = 1 or job.version <= versions[array_position(tasks, job.task)])
                      and job.cancel_requested_at is null
                    order by job.due_at, job.id
                    limit 1
                    for update skip locked
                );
                if ids <> '{}' then
                    most_losses := 0;
                end if;
            end if;
            ids := ids || array(
                select job.id
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = queues[lane]
                  and job.priority = priorities[lane]
                  and (job.due_at, job.id) > (after_due[lane], after_id[lane])
                  and job.due_at <= clock
                  and job.task = any (tasks)
                  and (job.version = 1 or job.version <= versions[array_position(tasks, job.task)])
                  and job.losses = 0
                  and job.cancel_requested_at is null
                order by job.due_at, job.id
                limit room - cardinality(ids)
                for update skip locked
            );
        end if;
        return query
        update {schema}.jobs as job
        set state = 'running',
            token = new_token,
            member = holder,
            claimed_at = clock,
            attempt = job.attempt + 1
        where job.id = any (ids)
          and (of_lines[lane] or job.task <> all (limited))
        returning job.*;
        get diagnostics taken = row_count;
        if not of_lines[lane] and cardinality(limited) > 0 then
            -- what came here without knowing of the limit of its task goes into its line
            update {schema}.jobs as job
            set state = 'blocked'
            where job.id = any (ids) and job.task = any (limited);
        end if;
        continue when taken = 0;
        most := most - taken;
        for gate in select each.key as name from jsonb_object_keys(rooms) as each(key) where each.key in ('', queues[lane]) loop
            rooms := rooms || jsonb_build_object(gate.name, (rooms ->> gate.name)::integer - taken);
            update {schema}.queues as queue
            set (spent, spent_slot, not_before) = (
                select rate.spent, rate.slot, rate.not_before
                from {schema}.rate_after(queue.rate_count, queue.rate_seconds, taken, clock, queue.spent, queue.spent_slot) as rate
            )
            where queue.name = gate.name
              and queue.rate_count is not null;
        end loop;
        exit when most <= 0;
    end loop;
end
$claim_flow$;

-- As before, see 0002; and each job knows its line and its batch. One whose task has a limit is put into a line though its caller
-- does not know.
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
                    key = new.key,
                    line = new.line,
                    state = case when new.line is null and job.after is null then 'queued' else 'blocked' end,
                    -- one that is due later is not in line
                    place = case when new.line = job.line and new.due_at <= clock then job.place end,
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
                trace_context, batch_id, after, takes, line, state, place
            )
            values (
                new.job ->> 'task', new.job -> 'args', coalesce(new.job ->> 'queue', 'default'),
                coalesce((new.job ->> 'priority')::smallint, 0), coalesce((new.job ->> 'version')::smallint, 1),
                new.due_at, new.key, new.tags, new.redact, new.job ->> 'retention', new.digest,
                (new.job ->> 'lost_limit')::smallint, (new.job ->> 'origin')::bigint, new.job ->> 'trace_context',
                (new.job ->> 'batch')::bigint, (new.job ->> 'after')::bigint, new.job ->> 'takes', new.line,
                case when new.line is null and not new.job ? 'after' then 'queued' else 'blocked' end,
                case when new.line is not null and not new.job ? 'after' and new.due_at <= clock then own end
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

-- They write with the owner's rights: nobody has them without being given them.
revoke execute on function
    {schema}.refresh_lines(uuid[], uuid[]),
    {schema}.place_jobs(bigint[]),
    {schema}.lines_follow(),
    {schema}.jobs_arrive()
from public;
