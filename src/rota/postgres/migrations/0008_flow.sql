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
    -- nobody waits at a place before this one: what was taken since the last vacuum is not walked again
    first bigint,
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
create index lines_over on {schema}.lines (not_before) where queue is null;

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

-- The line of a job: one for the task, or for the task and a key. One of more than 500 characters is as good as its digest, which
-- is what Python sends in its place.
create function {schema}.line_of(task text, key text) returns uuid
    language sql immutable parallel safe
    return {schema}.unique_digest(
        task, coalesce(case when length(key) > 500 then {schema}.unique_digest('', key)::text else key end, '')
    );

-- What a rate leaves. A period has forty slots, and what began is counted by slot, the present one last: in it and in the forty
-- before it no more begin than the rate allows. So it is in any period, wherever that begins; at most one part in forty less.
-- A job begins a moment after its claim, and that moment differs. In a short period it matters: such a one has eighty slots, is
-- counted for two more, and what begins is spread, since of two bursts a period apart the earlier may be late and meet the other:
-- in two slots no more than their share.
-- `over_at` is when all that began has left, and nothing is to be remembered any more.
create function {schema}.rate_after(
    count integer, seconds float8, begun integer, clock timestamptz, inout spent integer[], inout slot bigint,
    out room integer, out not_before timestamptz, out over_at timestamptz
)
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $rate_after$
declare
    slots integer := case when seconds < 10 then 80 else 40 end;
    kept integer := case when seconds < 10 then 83 else 41 end;
    present bigint := floor(extract(epoch from clock) * slots / seconds);
begin
    -- one far ahead is that of another period: nobody has waited for the lock for an hour
    if spent is null or cardinality(spent) <> kept or present - slot >= kept
      or slot - present >= kept and (slot - present) * seconds / slots > 3600 then
        spent := array_fill(0, array[kept]);
        slot := present;
    elsif present > slot then  -- it may be behind, by the clock of a server that was set back
        spent := spent[(present - slot + 1)::integer : kept] || array_fill(0, array[(present - slot)::integer]);
        slot := present;
    end if;
    spent[kept] := spent[kept] + begun;
    room := count - (select sum(each) from unnest(spent) as each);
    if room <= 0 then
        -- when so many have left that there is room: mostly one, more if the rate was lowered
        not_before := to_timestamp((slot + (
            select min(leaves.place)
            from (
                select each.place, sum(each.jobs) over (order by each.place desc) - each.jobs as later
                from unnest(spent) with ordinality as each(jobs, place)
            ) as leaves
            where leaves.later < count
        )) * seconds / slots);
    elsif seconds < 10 then
        room := least(room, ceil(count / 40.0) - spent[kept - 1] - spent[kept]);
        if room <= 0 then
            not_before := to_timestamp((slot + case when spent[kept - 1] > 0 then 1 else 2 end) * seconds / slots);
        end if;
    end if;
    room := greatest(room, 0);
    over_at := to_timestamp((slot + (
        select max(each.place) from unnest(spent) with ordinality as each(jobs, place) where each.jobs > 0
    )) * seconds / slots);
end
$rate_after$;

-- Who enqueues, cancels or deletes runs what follows in a session of theirs: whatever is planned there for tables that are empty, or
-- were when someone counted, these statements go by their indexes.

-- Writes down what lines say about themselves, from their jobs. The caller has just served some of them: their turn is over. It may
-- tell the lowest place of each at which someone has come to wait, or null for none; otherwise lines are looked at from their start.
-- Each statement has a snapshot of its own, so what is read after the locks includes what their last holders committed.
create function {schema}.refresh_lines(which uuid[], served uuid[] default '{}', lowest bigint[] default null) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
as $refresh_lines$
declare
    clock timestamptz := {schema}.now();
    empty boolean;
    remembered boolean;
begin
    perform from {schema}.lines as line where line.id = any (which) order by line.id for update;
    if lowest is null then
        lowest := array_fill(0::bigint, array[cardinality(which)]);
    end if;
    with written as (
        update {schema}.lines as line
        set (queue, priority, version, losses, first, ready_at, spent, spent_slot, not_before) = (
            select
                head.queue, head.priority, head.version, head.losses, coalesce(head.place, line.first),
                case when head.due_at is not null and coalesce(held.jobs < rule.running, true) then greatest(
                    case when line.id = any (served) then clock else least(coalesce(line.ready_at, clock), clock) end,
                    head.due_at, rate.not_before
                ) end,
                -- by what the task says now, and by the present: what it said before may be long over, or never be
                rate.spent, rate.slot,
                -- of a line that nobody waits in, until when its rate remembers it
                case when head.due_at is null then rate.over_at else rate.not_before end
            from (select) as always
            left join {schema}.limits as rule on rule.task = line.task
            left join lateral (
                select job.queue, job.priority, job.version, job.losses, job.place, job.due_at
                from {schema}.jobs as job
                where job.line = line.id
                  and job.state = 'blocked'
                  and job.place > 0
                  and job.place >= least(coalesce(line.first, touched.lowest, 0), touched.lowest)
                order by job.place
                limit 1
            ) as head on true
            left join lateral (
                select count(*) as jobs
                from (
                    select from {schema}.jobs as job where job.line = line.id and job.state = 'running' limit rule.running
                ) as running
            ) as held on rule.running is not null and head.due_at is not null
            left join lateral (
                select rate.*
                from {schema}.rate_after(rule.rate_count, rule.rate_seconds, 0, clock, line.spent, line.spent_slot) as rate
                where rule.rate_count is not null and line.spent is not null
                offset 0  -- called for lines with a rate only
            ) as rate on true
        )
        from unnest(which, lowest) as touched(id, lowest)
        where line.id = touched.id
        returning line.queue is null as empty, line.not_before > clock as remembered
    )
    select bool_or(written.empty), bool_or(written.empty and written.remembered) into empty, remembered from written;
    if not empty then
        return;
    end if;
    delete from {schema}.lines as line
    where line.id = any (which)
      and line.queue is null
      and (line.not_before is null or line.not_before <= clock)
      -- where any number may run, nobody asks how many do
      and not exists (
          select
          from {schema}.limits as rule
          where rule.task = line.task
            and rule.running is not null
            and exists (select from {schema}.jobs as job where job.line = line.id and job.state = 'running')
      );
    -- A line that its rate remembers stays when nobody is in it. Whoever leaves one takes two away that are over by now.
    if remembered then
        delete from {schema}.lines as line
        where line.id = any (array(
            select old.id
            from {schema}.lines as old
            where old.queue is null
              and old.not_before <= clock
              and not exists (select from {schema}.jobs as job where job.line = old.id and job.state = 'running')
            order by old.not_before
            limit 2 * cardinality(which)
            for update skip locked
        ));
    end if;
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
    own bigint;
    touched uuid[];
    served uuid[];
    lowest bigint[];
begin
    if tg_op = 'DELETE' then
        select array_agg(distinct changed.line) into touched
        from changed
        left join {schema}.limits as rule on rule.task = changed.task
        where changed.line is not null
          -- one that ends frees nothing where any number may run; and so many who settle do not wait for one line
          and (changed.state <> 'running' or rule.running is not null);
    else
        select array_agg(line.id), array_agg(line.id) filter (where line.served), array_agg(line.lowest)
        into touched, served, lowest
        from (
            select
                changed.line as id,
                bool_or(changed.state = 'blocked' and present.state = 'running') as served,
                min(present.place) filter (where present.state = 'blocked' and present.place > 0) as lowest
            from changed
            cross join lateral (
                select job.state, job.place from {schema}.jobs as job where job.id = changed.id limit 1
            ) as present
            where changed.line is not null
              -- what one that runs tells of itself is none of its line's business
              and (changed.state <> 'running' or present.state <> 'running')
            group by changed.line
        ) as line;
    end if;
    if touched is null then
        return null;
    end if;
    -- What this transaction has put comes into line when it commits. Those lines are locked with these, in one order, or a body
    -- that ends with its transaction could wait in a circle with another.
    own := -(pg_current_xact_id()::text::bigint);
    if exists (select from {schema}.jobs as job where job.place = own and job.place < 0) then
        insert into {schema}.lines as line (id, task, key)
        select distinct on (each.line) each.line, each.task, each.key
        from (
            select changed.line, changed.task, changed.key from changed where changed.line = any (touched)
            union all
            select job.line, job.task, job.key from {schema}.jobs as job where job.place = own and job.place < 0
        ) as each
        order by each.line
        on conflict (id) do update set task = excluded.task;
    end if;
    if tg_op = 'UPDATE' then
        -- Those that come back find their line, which is gone where any number may run and nobody waited. One that is made is
        -- locked by that, so all are, in one order.
        insert into {schema}.lines as line (id, task, key)
        select distinct on (changed.line) changed.line, changed.task, changed.key
        from changed
        where changed.line = any (touched)
          and exists (select from changed as back where back.state = 'running')
        order by changed.line
        on conflict (id) do update set task = excluded.task;
    end if;
    -- one that goes leaves no place before those that stay
    perform {schema}.refresh_lines(touched, coalesce(served, '{}'), coalesce(lowest, array_fill(null::bigint, array[cardinality(touched)])));
    return null;
end
$lines_follow$;

-- a claim sees to its lines itself: it knows which of them are full now
create trigger lines_follow_updates after update on {schema}.jobs referencing old table as changed
    for each statement when (current_setting('rota.claiming', true) is distinct from 'yes')
    execute function {schema}.lines_follow();
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
    arrived text := current_setting('rota.arrived', true);
    ids bigint[];
begin
    -- the setting ends with the transaction; one whose constraints are checked at once brings its jobs several times
    if arrived <> '' and new.id <= arrived::bigint then
        return null;
    end if;
    ids := array(select job.id from {schema}.jobs as job where job.place = new.place and job.place < 0 order by job.id);
    perform set_config('rota.arrived', greatest(new.id, ids[cardinality(ids)])::text, true);
    perform {schema}.place_jobs(ids);
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
        line = {schema}.line_of(rule.task, case when rule.by_key then named.key end),
        -- the limit that sent it here may be gone by now
        state = case when rule.task is null then 'queued' else 'blocked' end
    from {schema}.jobs as stray
    left join {schema}.limits as rule on rule.task = stray.task
    cross join lateral (
        select coalesce(stray.key, case when rule.by_key then stray.args ->> rule.argument end) as key
    ) as named
    where stray.id = any (ids)
      and stray.line is null
      and job.id = stray.id;
    perform {schema}.place_jobs(array(
        select job.id from {schema}.jobs as job where job.id = any (ids) and job.line is not null
    ));
    return cardinality(ids);
end
$join_lines$;

-- The next jobs of these lines, which the caller has locked, in turns: of each as many as may run, begin now, and are its share.
-- A job that someone has locked, or that this process may not take, is not passed by: what is behind it waits with it. What went
-- down with a process before is taken alone, one such job in all, and only as often as told.
create function {schema}.next_in_lines(
    which uuid[], from_queue text, tasks text[], versions smallint[], most integer, most_losses integer, clock timestamptz
)
    returns table (id bigint, line uuid, suspect boolean, rated boolean, fills boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $next_in_lines$
#variable_conflict use_column
begin
    return query
    with heads as materialized (
        select
            job.id, job.line, job.place, job.losses > 0 as suspect, rule.rate_count is not null as rated,
            row_number() over turns as turn, coalesce(row_number() over turns = held.room, false) as fills,
            job.queue = from_queue
                and job.due_at <= clock
                and job.cancel_requested_at is null
                and job.losses <= most_losses
                and (job.version = 1 or job.version <= versions[array_position(tasks, job.task)])
                and (not bool_or(job.losses > 0) over turns or row_number() over turns = 1) as fit
        from {schema}.lines as waiting
        left join {schema}.limits as rule on rule.task = waiting.task
        left join lateral (
            select rule.running - count(*) as room
            from (
                select from {schema}.jobs as job where job.line = waiting.id and job.state = 'running' limit rule.running
            ) as running
        ) as held on rule.running is not null
        cross join lateral (
            select job.id, job.line, job.place, job.queue, job.task, job.version, job.losses, job.due_at, job.cancel_requested_at
            from {schema}.jobs as job
            where job.line = waiting.id and job.state = 'blocked' and job.place > 0 and job.place >= coalesce(waiting.first, 0)
            order by job.place
            limit greatest(0, least(
                ceil(most / cardinality(which)::float8)::integer,
                held.room,
                -- not asked for what has none
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
            heads.id, heads.line, heads.suspect, heads.rated, heads.fills, heads.turn, heads.place,
            bool_and(heads.fit and free.id is not null)
                over (partition by heads.line order by heads.place rows unbounded preceding) as may
        from heads
        -- one by one: as a join of two lists it would compare each with each
        left join lateral (
            select job.id from {schema}.jobs as job where job.id = heads.id for update skip locked
        ) as free on true
    ), counted as (
        select
            next.id, next.line, next.suspect, next.rated, next.fills, next.turn, next.place,
            count(*) filter (where next.suspect) over (order by next.turn, next.place rows unbounded preceding) as suspects
        from next
        where next.may
    )
    select counted.id, counted.line, counted.suspect, counted.rated, counted.fills
    from counted
    where not counted.suspect or counted.suspects = 1
    order by counted.turn, counted.place
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
    tried uuid[];
    ids bigint[];
    served uuid[];
    filled uuid[];
    in_rated uuid[];
    suspect bigint;
    suspects integer := 0;
    taken integer;
begin
    if not exists (select from {schema}.members as member where member.id = holder and member.ended_at is null) then
        return;
    end if;
    -- One after the other, under the lock of the queue: what runs is counted when it is ours, and so includes what the last one
    -- took. The order is that of the names, and lines come after it, so that no two wait for each other in a circle.
    for gate in
        select queue.*
        from {schema}.queues as queue
        where queue.name = any (array[''] || queues)
          and (
              queue.running_limit is not null
              or queue.rate_count is not null
              or queue.paused_at is not null and coalesce(queue.paused_until > clock, true)
          )
        order by queue.name
        for update of queue
    loop
        -- what others have taken while we waited for it is counted at their time, and what we take at ours
        clock := {schema}.now() + (clock_timestamp() - statement_timestamp());
        -- a worker that returns to its lines has not looked whether someone has paused them since
        room := case when gate.paused_at is not null and coalesce(gate.paused_until > clock, true) then 0 else most end;
        if gate.rate_count is not null then
            -- not in the statement that locks: after a wait that has the row as it is now, but what was made of it before
            select least(room, rate.room) into room
            from {schema}.rate_after(gate.rate_count, gate.rate_seconds, 0, clock, gate.spent, gate.spent_slot) as rate;
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
            ids := null;
            tried := '{}';
            loop
                chosen := array(
                    select line.id
                    from {schema}.lines as line
                    where line.queue = queues[lane]
                      and line.priority = priorities[lane]
                      and line.ready_at between after_due[lane] and clock
                      and line.task = any (tasks)
                      and (line.version = 1 or line.version <= versions[array_position(tasks, line.task)])
                      and line.losses <= most_losses
                      and line.id <> all (tried)
                    order by line.ready_at, line.id
                    limit room
                    for update skip locked
                );
                exit when chosen = '{}';
                select
                    array_agg(next.id), array_agg(distinct next.line), array_agg(next.line) filter (where next.fills),
                    array_agg(next.line) filter (where next.rated), count(*) filter (where next.suspect)
                into ids, served, filled, in_rated, suspects
                from {schema}.next_in_lines(chosen, queues[lane], tasks, versions, room, most_losses, clock) as next;
                -- someone has locked the first job of each: what keeps these lines waiting keeps no others
                exit when ids is not null or cardinality(chosen) < room;
                tried := tried || chosen;
            end loop;
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
            suspect := null;
            if most_losses > 0 then
                -- as claim_suspect does, which leaves the queues that are limited to us
                select job.id into suspect
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = queues[lane]
                  and job.priority = priorities[lane]
                  and job.due_at <= clock
                  and job.task = any (tasks)
                  and (job.version = 1 or job.version <= versions[array_position(tasks, job.task)])
                  and job.losses > 0
                  and job.losses <= most_losses
                  and job.cancel_requested_at is null
                order by job.due_at, job.id
                limit 1
                for update skip locked;
            end if;
            ids := array(
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
                limit room - (suspect is not null)::integer
                for update skip locked
            );
            if suspect is not null then
                ids := suspect || ids;
                most_losses := 0;
            end if;
        end if;
        perform set_config('rota.claiming', 'yes', true);
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
        perform set_config('rota.claiming', '', true);
        if of_lines[lane] then
            -- who waits in those that are full now, one that ends asks
            update {schema}.lines as line set ready_at = null where line.id = any (filled);
            served := array(select each.line from unnest(served) as each(line) where filled is null or each.line <> all (filled));
            if served <> '{}' then
                perform {schema}.refresh_lines(served, served, array_fill(null::bigint, array[cardinality(served)]));
            end if;
        elsif cardinality(limited) > 0 then
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

-- They write with the owner's rights: nobody has them without being given them.
revoke execute on function
    {schema}.refresh_lines(uuid[], uuid[], bigint[]),
    {schema}.place_jobs(bigint[]),
    {schema}.lines_follow(),
    {schema}.jobs_arrive()
from public;
