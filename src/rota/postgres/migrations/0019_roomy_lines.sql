-- older workers: fine
-- Lines that are far from full, which those who settle leave alone; a claim that finds the next of its lines in one pass; and limited
-- jobs by column. What is taken no longer goes through next_in_lines, which goes with the next release.

-- Half of those that may run were not running when someone counted, and nobody has found it full since: a job of it that ends tells it
-- nothing.
alter table {schema}.lines add column roomy boolean not null default false;

-- Whether so many of a line run, and none of them is just being ended. It is asked of a line that was roomy: whoever ends a job there
-- leaves the line alone, and nobody would tell it later. The jobs that are counted are locked, so each of them ends after our
-- transaction, and then sees that its line is not roomy any more. Nobody is waited for: one that is locked is not counted.
create function {schema}.is_full(which uuid, most integer) returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $is_full$
begin
    return (
        select count(*) = most
        from (
            select
            from {schema}.jobs as job
            where job.line = which
              and job.state = 'running'
            limit most
            for key share skip locked
        ) as running
    );
end
$is_full$;

-- Which lines to tell: these, and of those in which a job has ended all but the ones that have room and say so.
create function {schema}.lines_to_tell(others uuid[], ended uuid[]) returns uuid[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
as $lines_to_tell$
declare
    left_alone uuid[] := array(
        select line.id
        from {schema}.lines as line
        where line.id = any (ended)
          and line.roomy
          and line.ready_at is not null
          -- who sees the past does not see that it was filled since
          and current_setting('transaction_isolation') = 'read committed'
    );
begin
    if cardinality(left_alone) = cardinality(ended) then
        return others;
    end if;
    return array(select unnest(others) union (select unnest(ended) except select unnest(left_alone)));
end
$lines_to_tell$;

-- As before, see 0008; and a line becomes roomy here. One that is roomy is called full only when that is sure; until then it is
-- ready, and looked at in vain.
create or replace function {schema}.refresh_lines(which uuid[], served uuid[] default '{}', lowest bigint[] default null) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
as $refresh_lines$
declare
    clock timestamptz := {schema}.now();
    -- asked once: to look for each of a thousand among a thousand takes longer than all else
    all_served boolean := served = which;
    empty boolean;
    remembered boolean;
begin
    perform from {schema}.lines as line where line.id = any (which) order by line.id for update;
    if lowest is null then
        lowest := array_fill(0::bigint, array[cardinality(which)]);
    end if;
    with written as (
        update {schema}.lines as line
        set (queue, priority, version, losses, first, ready_at, roomy, spent, spent_slot, not_before) = (
            select
                head.queue, head.priority, head.version, head.losses, coalesce(head.place, line.first),
                case when head.due_at is not null and not coalesce(held.fill, false) then greatest(
                    case when all_served or line.id = any (served) then clock else least(coalesce(line.ready_at, clock), clock) end,
                    head.due_at, rate.not_before
                ) end,
                -- nobody waits, or any number may run: as it was
                case when held.fill then false else coalesce(held.jobs between 1 and rule.running / 2, false) or line.roomy end,
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
                select
                    counted.jobs, counted.jobs >= rule.running and (not line.roomy or {schema}.is_full(line.id, rule.running)) as fill
                from (
                    select count(*) as jobs
                    from (
                        select from {schema}.jobs as job where job.line = line.id and job.state = 'running' limit rule.running
                    ) as running
                ) as counted
                offset 0  -- asked once
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

-- As before; and a line that has room, and says so, is left alone when a job of it ends.
create or replace function {schema}.lines_follow() returns trigger
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $lines_follow$
declare
    own bigint;
    touched uuid[];
    ended uuid[];
    served uuid[];
    lowest bigint[];
begin
    if tg_op = 'DELETE' then
        select
            -- a line of one is never roomy, which need not be asked
            array_agg(distinct changed.line) filter (where changed.state <> 'running' or rule.running = 1),
            -- one that ends frees nothing where any number may run; and so many who settle do not wait for one line
            array_agg(distinct changed.line) filter (where changed.state = 'running' and rule.running > 1)
        into touched, ended
        from changed
        left join {schema}.limits as rule on rule.task = changed.task
        where changed.line is not null;
        if ended is not null then
            touched := {schema}.lines_to_tell(touched, ended);
        end if;
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

-- The turns of these lines, which the caller has locked: of each the jobs that are next, as many as may run, begin now, and are its
-- share; who is first after them; and what becomes of the line, if it can be told. A job that someone has locked, or that this process may not take, is
-- not passed by: what is behind it waits with it. What went down with a process before is taken alone, one such job in all, and
-- only as often as told.
create function {schema}.take_turns(
    which uuid[], from_queue text, tasks text[], versions smallint[], most integer, most_losses integer, clock timestamptz
)
    returns table (
        line uuid, ids bigint[], suspect boolean, rated boolean, becomes text, roomy boolean, queue text, priority smallint, version smallint,
        losses smallint, place bigint, due_at timestamptz
    )
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $take_turns$
#variable_conflict use_column
begin
    return query
    with turn as materialized (
        select
            waiting.id, waiting.roomy, rule.rate_count is not null as rated, held.room, rule.running, taken.jobs,
            head.ids[1:taken.jobs] as ids, head.queues[taken.jobs + 1] as queue, head.priorities[taken.jobs + 1] as priority,
            head.versions[taken.jobs + 1] as version, head.losses[taken.jobs + 1] as losses,
            head.places[taken.jobs + 1] as place, head.due[taken.jobs + 1] as due_at,
            taken.jobs > 0 and head.losses[1] > 0 as suspect,
            count(*) filter (where taken.jobs > 0 and head.losses[1] > 0) over (order by waiting.rank) as suspects
        from (
            select
                line.id, line.task, line.first, line.roomy, line.spent, line.spent_slot, row_number() over oldest as rank,
                most / cardinality(which) + (row_number() over oldest <= most % cardinality(which))::integer as share
            from {schema}.lines as line
            where line.id = any (which)
            window oldest as (order by line.ready_at, line.id)
        ) as waiting
        left join {schema}.limits as rule on rule.task = waiting.task
        left join lateral (
            select rule.running - count(*) as room
            from (
                select from {schema}.jobs as job where job.line = waiting.id and job.state = 'running' limit rule.running
            ) as running
        ) as held on rule.running is not null
        cross join lateral (
            select greatest(0, least(
                waiting.share,
                held.room,
                -- not asked for what has none
                case when rule.rate_count is not null then (
                    select rate.room
                    from {schema}.rate_after(rule.rate_count, rule.rate_seconds, 0, clock, waiting.spent, waiting.spent_slot) as rate
                ) end
            )) as most
            offset 0
        ) as may
        -- all together, and held against what is first: one by one they would cost a search each
        cross join lateral (
            select array_agg(job.id) as ids
            from (
                select job.id
                from {schema}.jobs as job
                where job.line = waiting.id and job.state = 'blocked' and job.place > 0 and job.place >= coalesce(waiting.first, 0)
                order by job.place
                limit may.most
                for update skip locked
            ) as job
        ) as free
        cross join lateral (
            select
                array_agg(job.id) as ids, array_agg(job.queue) as queues, array_agg(job.priority) as priorities,
                array_agg(job.version) as versions, array_agg(job.losses) as losses, array_agg(job.place) as places,
                array_agg(job.due_at) as due, array_agg(job.fit) as fit, bool_and(job.fit and job.losses = 0) as all_fit
            from (
                select
                    job.id, job.queue, job.priority, job.version, job.losses, job.place, job.due_at,
                    job.queue = from_queue
                        and job.due_at <= clock
                        and job.cancel_requested_at is null
                        and job.losses <= most_losses
                        and (job.version = 1 or job.version <= versions[array_position(tasks, job.task)]) as fit
                from {schema}.jobs as job
                where job.line = waiting.id and job.state = 'blocked' and job.place > 0 and job.place >= coalesce(waiting.first, 0)
                order by job.place
                -- and who is first then, unless nobody may be taken then
                limit may.most + (may.most < held.room is not false)::integer
            ) as job
        ) as head
        cross join lateral (
            select case
                when head.all_fit and head.ids[1:may.most] = free.ids then cardinality(free.ids)
                -- up to the first that is not fit, or not ours
                else (
                    select coalesce(min(each.number) - 1, cardinality(head.ids), 0)
                    from (
                        select
                            each.number, each.fit and each.id = free.ids[each.number]
                                and (each.number = 1 or each.losses = 0 and head.losses[1] = 0) as may
                        from unnest(head.ids, head.fit, head.losses) with ordinality as each(id, fit, losses, number)
                    ) as each
                    where each.may is not true
                )
            end::integer as jobs
            offset 0
        ) as taken
    )
    select
        turn.id, nullif(turn.ids, '{}'), turn.suspect, turn.rated,
        case
            when turn.jobs = 0 then case when turn.roomy and turn.room <= 0 then 'unclear' end
            when turn.jobs >= turn.room then case when turn.roomy then 'unclear' else 'full' end
            when turn.place is null or turn.rated then 'unclear'
            else 'ready'
        end,
        turn.roomy or coalesce(turn.running - turn.room + turn.jobs <= turn.running / 2, false),
        turn.queue, turn.priority, turn.version, turn.losses, turn.place, turn.due_at
    from turn
    where not turn.suspect or turn.suspects = 1;
end
$take_turns$;

-- Takes jobs for a member under one token: from lines, and from lanes of a queue that may run only so many. Lanes are walked in
-- the order given; each is a queue, a priority, whether it is one of lines, and behind which job a walk begins. Of each that gave
-- something there is one row of columns; what few jobs have comes apart, for those alone.
create function {schema}.claim_by_column(
    queues text[], priorities smallint[], of_lines boolean[], after_due timestamptz[], after_id bigint[],
    tasks text[], versions smallint[], limited text[], most integer, most_losses integer, new_token bigint, holder uuid
)
    returns table (
        id bigint[], queue text[], task text[], priority smallint[], due float8[], args text[], began float8, in_line boolean,
        special bigint[], attempt integer[], losses smallint[], version smallint[], saved text[], schedule text[],
        slot_at timestamptz[], trace_context text[], inputs text[], batch bigint[]
    )
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $claim_by_column$
#variable_conflict use_column
declare
    asked_at timestamptz := {schema}.now();
    clock timestamptz := asked_at;
    gate record;
    room integer;
    rooms jsonb := '{}';
    chosen uuid[];
    tried uuid[];
    ids bigint[];
    filled uuid[];
    unclear uuid[];
    in_rated uuid[];
    begun integer[];
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
                with turn as materialized (
                    select * from {schema}.take_turns(chosen, queues[lane], tasks, versions, room, most_losses, clock)
                ), gone_on as (
                    -- as refresh_lines would, which had to find all that once more
                    update {schema}.lines as line
                    set queue = turn.queue,
                        priority = turn.priority,
                        version = turn.version,
                        losses = turn.losses,
                        first = turn.place,
                        ready_at = greatest(asked_at, turn.due_at),
                        roomy = turn.roomy,
                        spent = null,
                        spent_slot = null,
                        not_before = null
                    from turn
                    where turn.becomes = 'ready'
                      and line.id = turn.line
                )
                select
                    (select array_agg(each.id) from turn cross join unnest(turn.ids) as each(id)),
                    array_agg(turn.line) filter (where turn.becomes = 'full'),
                    array_agg(turn.line) filter (where turn.becomes = 'unclear'),
                    array_agg(turn.line) filter (where turn.rated and turn.ids is not null),
                    array_agg(cardinality(turn.ids)) filter (where turn.rated and turn.ids is not null),
                    count(*) filter (where turn.suspect)
                into ids, filled, unclear, in_rated, begun, suspects
                from turn;
                if ids is null and unclear is not null then
                    perform {schema}.refresh_lines(unclear, unclear, array_fill(null::bigint, array[cardinality(unclear)]));
                end if;
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
                    from {schema}.rate_after(rule.rate_count, rule.rate_seconds, rated.begun, clock, line.spent, line.spent_slot) as rate
                )
                from unnest(in_rated, begun) as rated(id, begun), {schema}.limits as rule
                where line.id = rated.id
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
        with claimed as (
            update {schema}.jobs as job
            set state = 'running',
                token = new_token,
                member = holder,
                claimed_at = clock,
                attempt = job.attempt + 1
            where job.id = any (ids)
              and (of_lines[lane] or job.task <> all (limited))
            returning
                job.id, job.queue, job.task, job.priority, job.due_at, job.place, job.args::text, job.attempt, job.losses,
                job.version, job.saved::text, job.schedule, job.slot_at, job.trace_context, job.inputs::text, job.batch_id,
                num_nonnulls(job.saved, job.schedule, job.trace_context, job.inputs, job.batch_id) > 0
                    or job.version <> 1 or job.attempt <> 1 or job.losses <> 0 as is_special
        )
        select
            array_agg(each.id), array_agg(each.queue), array_agg(each.task), array_agg(each.priority),
            array_agg(date_part('epoch', each.due_at)), array_agg(each.args), date_part('epoch', clock), of_lines[lane],
            array_agg(each.id) filter (where each.is_special), array_agg(each.attempt) filter (where each.is_special),
            array_agg(each.losses) filter (where each.is_special), array_agg(each.version) filter (where each.is_special),
            array_agg(each.saved) filter (where each.is_special), array_agg(each.schedule) filter (where each.is_special),
            array_agg(each.slot_at) filter (where each.is_special), array_agg(each.trace_context) filter (where each.is_special),
            array_agg(each.inputs) filter (where each.is_special), array_agg(each.batch_id) filter (where each.is_special)
        into
            id, queue, task, priority, due, args, began, in_line, special, attempt, losses, version, saved, schedule, slot_at,
            trace_context, inputs, batch
        from (select * from claimed order by claimed.place, claimed.due_at, claimed.id) as each;
        taken := coalesce(cardinality(id), 0);
        perform set_config('rota.claiming', '', true);
        if of_lines[lane] then
            -- who waits in those that are full now, one that ends asks
            update {schema}.lines as line set ready_at = null where line.id = any (filled);
            if unclear is not null then
                perform {schema}.refresh_lines(unclear, unclear, array_fill(null::bigint, array[cardinality(unclear)]));
            end if;
        elsif cardinality(limited) > 0 then
            -- what came here without knowing of the limit of its task goes into its line
            update {schema}.jobs as job
            set state = 'blocked'
            where job.id = any (ids) and job.task = any (limited);
        end if;
        continue when taken = 0;
        return next;
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
$claim_by_column$;

-- As older workers call it: each job a row.
create or replace function {schema}.claim_flow(
    queues text[], priorities smallint[], of_lines boolean[], after_due timestamptz[], after_id bigint[],
    tasks text[], versions smallint[], limited text[], most integer, most_losses integer, new_token bigint, holder uuid
)
    returns setof {schema}.jobs
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $claim_flow$
#variable_conflict use_column
declare
    ids bigint[];
begin
    ids := array(
        select unnest(lane.id)
        from {schema}.claim_by_column(
            queues, priorities, of_lines, after_due, after_id, tasks, versions, limited, most, most_losses, new_token, holder
        ) as lane
    );
    -- a statement of its own, which sees what the first has changed
    return query select job.* from {schema}.jobs as job where job.id = any (ids);
end
$claim_flow$;

revoke execute on function {schema}.lines_to_tell(uuid[], uuid[]) from public;
