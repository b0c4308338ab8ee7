-- older workers: fine
-- Schedules: what is to run when, the slots that were given out, and what became of them.

alter table {schema}.jobs
    -- the schedule that put it, and for which moment. Names of schedules are sorted by code point, whatever the database's
    -- language, so that those with a prefix stand together
    add column schedule text collate "C",
    add column slot_at timestamptz;

create index jobs_schedule on {schema}.jobs (schedule) where schedule is not null;

alter table {schema}.history add column schedule text collate "C", add column slot_at timestamptz;
alter table {schema}.dead add column schedule text collate "C", add column slot_at timestamptz;

create table {schema}.schedules (
    name text collate "C" primary key check (length(name) between 1 and 200),
    -- what each of its jobs gets
    task text not null check (length(task) between 1 and 500),
    args jsonb not null default '{}' check (jsonb_typeof(args) = 'object'),
    version smallint not null default 1,
    queue text not null default 'default' check (length(queue) between 1 and 200),
    priority smallint not null default 0,
    key text,
    tags text[],
    redact text[],
    retention text,
    lost_limit smallint,
    -- when: one of these, in the time zone given
    kind text not null check (kind in ('cron', 'every', 'delay', 'once', 'after', 'event', 'manual')),
    cron text check ((kind = 'cron') = (cron is not null)),
    every text check ((kind in ('every', 'delay')) = (every is not null)),
    -- of a pause between the end of a run and the next, the same once more as the database reads it
    delay interval check ((kind = 'delay') = (delay is not null)) check (delay between '1 microsecond' and '36525 days'),
    at timestamptz check ((kind = 'once') = (at is not null)),
    event text check ((kind = 'event') = (event is not null)),
    tz text not null default 'UTC',
    -- where the grid of `every` begins
    anchor timestamptz not null default {schema}.now(),
    dst_gap text not null default 'run' check (dst_gap in ('run', 'skip')),
    dst_overlap text not null default 'once' check (dst_overlap in ('once', 'twice')),
    -- rules
    start_at timestamptz,
    end_at timestamptz,
    max_runs bigint check (max_runs > 0),
    jitter interval not null default '0' check (jitter between '0' and '36500 days'),
    exclude jsonb,
    misfire text not null default 'once' check (misfire in ('once', 'skip', 'all')),
    misfire_grace interval not null default '1 minute' check (misfire_grace between '0' and '36500 days'),
    misfire_limit integer not null default 100 check (misfire_limit between 1 and 10000),
    overlap text not null default 'skip' check (overlap in ('skip', 'queue', 'allow')),
    -- runs only when a run of its parent says so
    dormant boolean not null default false,
    note text,
    -- how far it has come: the next slot and when that is due, jitter included; null when nothing is to come by itself
    next_slot timestamptz,
    next_at timestamptz,
    last_slot timestamptz,
    -- those to come that someone wants left out
    skipped_slots timestamptz[] not null default '{}',
    last_job bigint,
    runs bigint not null default 0,
    skipped bigint not null default 0,
    missed bigint not null default 0,
    succeeded_at timestamptz,
    failed_at timestamptz,
    -- since the last success
    failures integer not null default 0,
    paused_at timestamptz,
    paused_by text,
    -- why it cannot run, in words; what has a problem is not due until someone puts it right
    problem text,
    -- who put it: code carries a digest of what it says. Those that were said before are older, and do not come back by themselves.
    owner text,
    digest uuid,
    digests uuid[] not null default '{}',
    -- the call that its task has taken, by digest_of_call. What nobody has checked yet, whoever gives it out does
    checked bigint,
    -- grows whenever someone changes what is above the line
    revision bigint not null default 1,
    created_at timestamptz not null default {schema}.now(),
    updated_at timestamptz not null default {schema}.now(),
    check ((next_slot is null) = (next_at is null)),
    -- one row that cannot be read, or added to, would stop every other
    check (least(at, anchor, start_at, end_at, next_slot, next_at, last_slot) >= '0001-01-02 UTC'),
    check (greatest(at, anchor, start_at, end_at, next_slot, next_at, last_slot) <= '9999-12-30 UTC'),
    check ('0001-01-02 UTC' <= all (skipped_slots) and '9999-12-30 UTC' >= all (skipped_slots)),
    check (least(paused_at, succeeded_at, failed_at, created_at, updated_at) >= '0001-01-02 UTC'),
    check (greatest(paused_at, succeeded_at, failed_at, created_at, updated_at) <= '9999-12-30 UTC'),
    check (greatest(runs, skipped, missed) < 1::bigint << 60),
    check (failures < 1 << 30),
    check (revision < 1::bigint << 60)
) with (fillfactor = 70);

-- What stands for a call: the task, and the arguments as they are stored.
create function {schema}.digest_of_call(task text, version smallint, args jsonb) returns bigint
    language sql immutable
    return hashtextextended(concat_ws(' ', version::text, task, args::text), 0);

-- What is due is found here, and nothing is read of what is not.
create index schedules_due on {schema}.schedules (next_at, name)
    where next_at is not null and paused_at is null and problem is null;
create index schedules_declared on {schema}.schedules (name) where digest is not null;
create index schedules_event on {schema}.schedules (event) where event is not null;
create index schedules_delay on {schema}.schedules (name) where kind = 'delay' and next_at is null;

create table {schema}.schedule_parents (
    child text collate "C" not null references {schema}.schedules on delete cascade,
    -- may be gone: the child then waits, and says so
    parent text collate "C" not null check (parent <> child),
    primary key (child, parent)
);
create index schedule_parents_parent on {schema}.schedule_parents (parent);

-- Successes that a child with several parents has not used yet: it runs when each of them has one.
create table {schema}.schedule_feed (
    child text collate "C" not null references {schema}.schedules on delete cascade,
    parent text collate "C" not null,
    job_id bigint not null,
    slot_at timestamptz not null,
    primary key (child, parent, job_id)
);

-- The runs that were given out. One run per slot: the unique index is the truth, whoever leads.
create table {schema}.slots (
    id bigint generated always as identity primary key,
    schedule text collate "C" not null,
    slot_at timestamptz not null,
    cause text not null check (cause in ('due', 'backfill', 'trigger', 'after', 'event', 'activated')),
    -- null while it waits for the run before it
    job_id bigint,
    -- in place of those of the schedule
    args jsonb check (jsonb_typeof(args) = 'object'),
    -- the run of the parent that it follows
    parent_job bigint,
    created_at timestamptz not null default {schema}.now()
);
create unique index slots_once on {schema}.slots (schedule, slot_at) where cause in ('due', 'backfill');
create unique index slots_followed on {schema}.slots (schedule, parent_job) where cause = 'after';
create index slots_waiting on {schema}.slots (schedule, slot_at, id) where job_id is null;
create index slots_schedule on {schema}.slots (schedule, id);

-- Runs that ended, until the scheduler has drawn its conclusions. Only added to while jobs settle: a row of a schedule that
-- every settle had to lock would make them wait for each other, in circles too.
create table {schema}.schedule_ends (
    id bigint generated always as identity primary key,
    schedule text collate "C" not null,
    job_id bigint,
    slot_at timestamptz,
    -- none: no run ended, yet one that waits may begin. Whoever lets a slot wait that no run is in the way of says so here,
    -- as those that wait are looked for only now and then
    outcome text not null check (outcome in ('succeeded', 'cancelled', 'dead', 'none')),
    ended_at timestamptz not null default {schema}.now(),
    check ((outcome = 'none') = (job_id is null))
);

create function {schema}.note_schedule_end() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $note_schedule_end$
begin
    insert into {schema}.schedule_ends (schedule, job_id, slot_at, outcome)
    values (new.schedule, new.id, new.slot_at, tg_argv[0]);
    -- somebody waits for it
    if exists (select from {schema}.schedule_parents as edge where edge.parent = new.schedule)
       or exists (select from {schema}.slots as slot where slot.schedule = new.schedule and slot.job_id is null)
       or exists (select from {schema}.schedules as known where known.name = new.schedule and known.kind = 'delay')
    then
        perform {schema}.notify('{schedule_channel}', '');
    end if;
    return null;
end
$note_schedule_end$;

-- a trigger needs no such right to run, whoever made it does: on a table of their own anyone could tell of ends that never were
revoke execute on function {schema}.note_schedule_end() from public;

create trigger schedule_succeeded after insert on {schema}.history
    for each row when (new.schedule is not null and new.state = 'succeeded')
    execute function {schema}.note_schedule_end('succeeded');
create trigger schedule_cancelled after insert on {schema}.history
    for each row when (new.schedule is not null and new.state = 'cancelled')
    execute function {schema}.note_schedule_end('cancelled');
create trigger schedule_dead after insert on {schema}.dead
    for each row when (new.schedule is not null)
    execute function {schema}.note_schedule_end('dead');

-- Runs that waited since before a pause, or since they had to be apart, may begin.
create function {schema}.note_schedule_freed() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $note_schedule_freed$
begin
    insert into {schema}.schedule_ends (schedule, outcome) values (new.name, 'none');
    return null;
end
$note_schedule_freed$;

create trigger schedule_freed after update of paused_at, overlap on {schema}.schedules
    for each row when (
        (old.paused_at is not null and new.paused_at is null)
        or (old.overlap <> 'allow' and new.overlap = 'allow')
    )
    execute function {schema}.note_schedule_freed();

-- What live processes know: the names of their `tasks` or `schedules`. What each has to say is long, and is read once here,
-- however many ask.
create function {schema}.live_names(what text) returns table (name text)
    language sql stable rows 1000
    begin atomic
        select distinct told.name
        from {schema}.members as member
        cross join lateral jsonb_object_keys(
            case jsonb_typeof(member.work -> live_names.what) when 'object' then member.work -> live_names.what else '{}' end
        ) as told(name)
        where member.ended_at is null;
    end;

-- Whether a run of a schedule is under way: one that someone wants later is not. One for now may be younger than the statement
-- that asks, which waited for a lock while it was put.
create function {schema}.is_under_way(name text) returns boolean
    language sql stable
    return exists (
        select
        from {schema}.jobs as live
        where live.schedule = is_under_way.name
          and (live.state <> 'queued' or live.attempt > 0 or live.due_at <= greatest({schema}.now(), live.created_at))
    );

-- When a pause is over: elapsed time, and months by the calendar of UTC, whatever the session's time zone.
create function {schema}.end_of_pause(begin_at timestamptz, delay interval) returns timestamptz
    language sql immutable
    return (begin_at at time zone 'UTC' + delay) at time zone 'UTC';

-- Gives these slots a job each and wakes the workers; whoever calls it has locked their schedules.
create function {schema}.put_slots(ids bigint[]) returns void
    language sql volatile
    begin atomic
        with slot as materialized (
            select given.id, given.slot_at, given.args, given.schedule, given.cause,
                   nextval(pg_get_serial_sequence($name${schema}.jobs$name$, 'id')) as job_id
            from {schema}.slots as given
            where given.id = any (ids)
              and given.job_id is null
            order by given.slot_at, given.id
        ), put as (
            insert into {schema}.jobs as job (
                id, task, args, version, queue, priority, key, tags, redact, retention, lost_limit, due_at, schedule, slot_at
            )
            select
                slot.job_id, known.task, coalesce(slot.args, known.args), known.version, known.queue, known.priority,
                known.key, known.tags, known.redact, known.retention, known.lost_limit, {schema}.now(), known.name,
                slot.slot_at
            from slot
            join {schema}.schedules as known on known.name = slot.schedule
            returning job.id, job.queue, job.schedule
        ), given as (
            update {schema}.slots as slots
            set job_id = slot.job_id,
                -- the job has them now, and whoever erases it must find no copy
                args = null
            from slot
            where slots.id = slot.id
        ), last as (
            update {schema}.schedules as known
            set last_job = greatest(known.last_job, newest.job_id),
                -- what comes by itself is counted where it is given out
                runs = known.runs + newest.events,
                last_slot = greatest(known.last_slot, newest.event_at)
            from (
                select
                    slot.schedule, max(slot.job_id) as job_id, count(*) filter (where slot.cause = 'event') as events,
                    max(slot.slot_at) filter (where slot.cause = 'event') as event_at
                from slot
                group by slot.schedule
            ) as newest
            where known.name = newest.schedule
        )
        select {schema}.notify('{wake_channel}', queues.queue) from (select distinct put.queue from put) as queues;
    end;

-- Gives out what is due. Each plan was made from a row as it was read; where that has moved on since, or is paused, or is not
-- due by this clock, nothing happens: whoever was frozen with a plan in hand changes nothing.
--
-- The rows are locked first, in one order. What follows sees all that their last holders have committed.
create function {schema}.fire(plans jsonb)
    returns table (name text, fired integer, skipped integer, missed bigint)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $fire$
#variable_conflict use_column
declare
    clock constant timestamptz := {schema}.now();
    ids constant regclass := pg_get_serial_sequence($name${schema}.jobs$name$, 'id')::regclass;
    taken text[];
begin
    select array_agg(locked.name) into taken
    from (
        select known.name
        from {schema}.schedules as known
        join jsonb_to_recordset(plans) as plan(name text, revision bigint, next_at timestamptz)
          on plan.name = known.name and plan.revision = known.revision and plan.next_at = known.next_at
        where known.next_at <= clock
          and known.paused_at is null
        order by known.name
        for no key update of known skip locked
    ) as locked;
    if taken is null then
        return;
    end if;

    return query
    with plan as materialized (
        select
            known.name, plan.slots, plan.then_slot, plan.then_at, plan.missed, plan.problem,
            known.overlap = 'allow' as beside, busy.anyhow as busy,
            -- what makes up for an outage waits for what is under way, as it is wanted; once, one that waits is enough
            case
                when not (busy.live or busy.waits) then 0
                when busy.waits and known.misfire = 'once' then cardinality(plan.slots)
                else cardinality(plan.slots) - plan.made_up
            end as skipped
        from jsonb_to_recordset(plans) as plan(
            name text, slots timestamptz[], then_slot timestamptz, then_at timestamptz, made_up integer, missed bigint,
            problem text
        )
        join {schema}.schedules as known on known.name = plan.name
        cross join lateral (
            select
                known.overlap <> 'allow' and (
                    -- is_under_way, in place: it is asked for each of very many
                    exists (
                        select
                        from {schema}.jobs as live
                        where live.schedule = known.name
                          and (live.state <> 'queued' or live.attempt > 0 or live.due_at <= greatest(clock, live.created_at))
                    )
                    or exists (select from {schema}.slots as waits where waits.schedule = known.name and waits.job_id is null)
                ),
                -- a backfill may take long: what is due meanwhile waits behind it, once, instead of being left out
                known.overlap = 'skip' and exists (
                    select
                    from {schema}.jobs as live
                    left join {schema}.slots as slot
                      on slot.schedule = live.schedule and slot.slot_at = live.slot_at and slot.cause in ('due', 'backfill')
                    where live.schedule = known.name
                      and (live.state <> 'queued' or live.attempt > 0 or live.due_at <= greatest(clock, live.created_at))
                      and slot.cause is distinct from 'backfill'
                ),
                known.overlap = 'skip' and exists (
                    select
                    from (
                        select waits.cause
                        from {schema}.slots as waits
                        where waits.schedule = known.name
                          and waits.job_id is null
                        -- the newest, as what is due stands behind what is filled in
                        order by waits.slot_at desc, waits.id desc
                        limit 1
                    ) as newest
                    where newest.cause <> 'backfill'
                )
        ) as busy(anyhow, live, waits)
        where known.name = any (taken)
    ), put as (
        insert into {schema}.slots as slot (schedule, slot_at, cause, job_id)
        select
            plan.name, given.slot_at, 'due',
            -- the first runs now unless it must wait, and with it all that may run beside each other
            case when plan.beside or (given.turn = 1 and not plan.busy) then nextval(ids) end
        from plan
        cross join lateral unnest(plan.slots) with ordinality as given(slot_at, turn)
        where given.turn > plan.skipped
        order by given.slot_at, plan.name
        on conflict (schedule, slot_at) where cause in ('due', 'backfill') do nothing
        returning slot.schedule, slot.slot_at, slot.job_id
    ), started as (
        insert into {schema}.jobs as job (
            id, task, args, version, queue, priority, key, tags, redact, retention, lost_limit, due_at, schedule, slot_at
        )
        select
            put.job_id, known.task, known.args, known.version, known.queue, known.priority, known.key, known.tags,
            known.redact, known.retention, known.lost_limit, clock, known.name, put.slot_at
        from put
        join {schema}.schedules as known on known.name = put.schedule
        where put.job_id is not null
        returning job.queue
    ), woken as materialized (
        select count({schema}.notify('{wake_channel}', queues.queue)) from (select distinct started.queue from started) as queues
    ), counted as materialized (
        -- by name in one value: PostgreSQL believes that these are few, and would go through all of them for each
        select
            coalesce(jsonb_object_agg(each.schedule, each.runs), '{}') as runs,
            coalesce(jsonb_object_agg(each.schedule, each.last_job), '{}') as last_job
        from (select put.schedule, count(*) as runs, max(put.job_id) as last_job from put group by put.schedule) as each
    ), outcome as (
        select
            plan.name, plan.then_slot, plan.then_at, plan.problem, plan.missed, plan.slots,
            coalesce((counted.runs ->> plan.name)::integer, 0) as runs, (counted.last_job ->> plan.name)::bigint as last_job,
            plan.skipped
        from plan
        cross join counted
        cross join woken
    )
    update {schema}.schedules as known
    set next_slot = case when known.runs + outcome.runs < known.max_runs or known.max_runs is null then outcome.then_slot end,
        next_at = case when known.runs + outcome.runs < known.max_runs or known.max_runs is null then outcome.then_at end,
        last_slot = greatest(known.last_slot, (select max(given) from unnest(outcome.slots) as given)),
        last_job = coalesce(outcome.last_job, known.last_job),
        runs = known.runs + outcome.runs,
        skipped = known.skipped + outcome.skipped,
        missed = known.missed + outcome.missed,
        problem = outcome.problem
    from outcome
    where known.name = outcome.name
    returning known.name, outcome.runs, outcome.skipped, outcome.missed;
end
$fire$;

-- Lets waiting runs of these schedules begin whose turn has come, so many; whoever calls it has locked them. Returns how many
-- were left out, by name: an event that came while a run was under way waits for nothing where overlap is to be skipped. That is
-- decided here and not when it is emitted, as whoever emits locks nothing.
create function {schema}.release_slots(names text[], most integer) returns jsonb
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $release_slots$
declare
    given bigint[];
    behind text[];
    skipped jsonb;
begin
    select
        array_agg(waiting.id) filter (where waiting.turn <= most),
        array_agg(distinct waiting.name) filter (where waiting.turn > most)
    into given, behind
    from (
        select known.name, slot.id, row_number() over (order by slot.slot_at, slot.id) as turn
        from unnest(names) as ours(name)
        join {schema}.schedules as known on known.name = ours.name
        cross join lateral (
            select waits.id, waits.slot_at
            from {schema}.slots as waits
            where waits.schedule = known.name
              and waits.job_id is null
              and (known.overlap = 'allow' or not {schema}.is_under_way(known.name))
            order by waits.slot_at, waits.id
            limit case when known.overlap = 'allow' then most + 1 else 1 end
        ) as slot
        where known.paused_at is null
    ) as waiting;
    if given is not null then
        perform {schema}.put_slots(given);
    end if;
    insert into {schema}.schedule_ends (schedule, outcome) select later.name, 'none' from unnest(behind) as later(name);
    with gone as (
        delete from {schema}.slots as slot
        using unnest(names) as ours(name)
        join {schema}.schedules as known on known.name = ours.name
        where known.kind = 'event'
          and known.overlap = 'skip'
          and known.paused_at is null
          and not known.name = any (coalesce(behind, '{}'))
          and slot.schedule = known.name
          and slot.job_id is null
          and slot.cause = 'event'
        returning slot.schedule
    ), counted as (
        update {schema}.schedules as known
        set skipped = known.skipped + many.slots
        from (select gone.schedule, count(*) as slots from gone group by gone.schedule) as many
        where known.name = many.schedule
        returning known.name, many.slots
    )
    select jsonb_object_agg(counted.name, counted.slots) into skipped from counted;
    return coalesce(skipped, '{}');
end
$release_slots$;

-- Draws conclusions from runs that ended: what their schedules have come to, which children follow, when a pause is over, and
-- which of the runs that wait may begin.
-- Returns how many it has taken, and by name how many runs are left out for it, and how many successes of parents are given up.
-- What concerns a row that someone has locked is left for later, so that nobody waits for it.
create function {schema}.conclude_schedules(most integer, out taken integer, out skipped jsonb, out missed jsonb)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $conclude_schedules$
declare
    ends jsonb;
    ours text[];
    held text[];
    without text[] := '{}';
    eaten jsonb;
begin
    taken := 0;
    skipped := '{}';
    missed := '{}';
    loop
        -- so many that no round takes long, however many follow each of them
        select jsonb_agg(to_jsonb(few) order by few.id) into ends
        from (
            select many.*
            from (
                select next.*, sum(1 + next.children) over (order by next.id) - next.children as before
                from (
                    select
                        ended.id, ended.schedule, ended.job_id, ended.slot_at, ended.outcome, ended.ended_at,
                        case when ended.outcome = 'succeeded' then (
                            select count(*) from {schema}.schedule_parents as edge where edge.parent = ended.schedule
                        ) else 0 end as children
                    from (
                        select *
                        from {schema}.schedule_ends as told
                        where not told.schedule = any (without)
                        order by told.id
                        limit most
                        for update skip locked
                    ) as ended
                ) as next
            ) as many
            where many.before <= 10000
        ) as few;
        if ends is null then
            return;
        end if;

        select array_agg(locked.name) into ours
        from (
            select known.name
            from {schema}.schedules as known
            where known.name in (
                select ended.schedule from jsonb_to_recordset(ends) as ended(schedule text)
                union
                select edge.child
                from jsonb_to_recordset(ends) as ended(schedule text, outcome text)
                join {schema}.schedule_parents as edge on edge.parent = ended.schedule
                where ended.outcome = 'succeeded'
            )
            order by known.name
            for no key update skip locked
        ) as locked;

        -- those that someone has locked, or a child of theirs: all that they have ended waits, so that it is concluded in order
        select array_agg(distinct ended.schedule) into held
        from jsonb_to_recordset(ends) as ended(schedule text, outcome text)
        where (
            not ended.schedule = any (coalesce(ours, '{}'))
            and exists (select from {schema}.schedules as known where known.name = ended.schedule)
        )
           or (
               ended.outcome = 'succeeded'
               and exists (
                   select
                   from {schema}.schedule_parents as edge
                   where edge.parent = ended.schedule
                     and not edge.child = any (coalesce(ours, '{}'))
               )
           );
        exit when held is null;
        -- however much they have ended, others find room
        without := without || held;
    end loop;
    taken := jsonb_array_length(ends);
    delete from {schema}.schedule_ends
    where id in (select ended.id from jsonb_to_recordset(ends) as ended(id bigint));

    update {schema}.schedules as known
    set succeeded_at = greatest(known.succeeded_at, told.succeeded_at),
        failed_at = greatest(known.failed_at, told.failed_at),
        failures = case when told.succeeded_at is null then known.failures else 0 end + told.failures,
        next_slot = case when told.pause_from is null then known.next_slot else {schema}.end_of_pause(told.pause_from, known.delay) end,
        next_at = case when told.pause_from is null then known.next_at else {schema}.end_of_pause(told.pause_from, known.delay) end
    from (
        select
            ended.schedule,
            max(ended.ended_at) filter (where ended.outcome = 'succeeded') as succeeded_at,
            max(ended.ended_at) filter (where ended.outcome = 'dead') as failed_at,
            -- those that came after the last success
            count(*) filter (where ended.outcome = 'dead' and ended.id > coalesce(ended.good, 0)) as failures,
            case
                when known.kind = 'delay'
                 and known.next_at is null
                 and (known.max_runs is null or known.runs < known.max_runs)
                 and (known.end_at is null or {schema}.end_of_pause(max(ended.ended_at), known.delay) < known.end_at)
                 and not {schema}.is_under_way(ended.schedule)
                 -- one that waits for this end has still to run
                 and not exists (select from {schema}.slots as waits where waits.schedule = ended.schedule and waits.job_id is null)
                then max(ended.ended_at)
            end as pause_from
        from (
            select told.*, max(told.id) filter (where told.outcome = 'succeeded') over (partition by told.schedule) as good
            from jsonb_to_recordset(ends) as told(id bigint, schedule text, outcome text, ended_at timestamptz)
        ) as ended
        join {schema}.schedules as known on known.name = ended.schedule
        where ended.outcome <> 'none'
        group by ended.schedule, known.kind, known.next_at, known.max_runs, known.runs, known.end_at, known.delay
    ) as told
    where known.name = told.schedule;

    -- each success is worth one run to each child, and is used once
    insert into {schema}.schedule_feed (child, parent, job_id, slot_at)
    select edge.child, edge.parent, ended.job_id, coalesce(ended.slot_at, ended.ended_at)
    from jsonb_to_recordset(ends) as ended(
        schedule text, job_id bigint, slot_at timestamptz, outcome text, ended_at timestamptz
    )
    join {schema}.schedule_parents as edge on edge.parent = ended.schedule
    join {schema}.schedules as child on child.name = edge.child
    where ended.outcome = 'succeeded'
      and child.paused_at is null
      and not child.dormant
      and (child.start_at is null or ended.ended_at >= child.start_at)
      and (child.end_at is null or ended.ended_at < child.end_at)
    on conflict do nothing;

    -- a child runs as often as each of its parents has a success to give, the oldest first
    with edge as materialized (
        select edge.child, edge.parent
        from {schema}.schedule_parents as edge
        where edge.child in (
            select fed.child
            from jsonb_to_recordset(ends) as ended(schedule text, outcome text)
            join {schema}.schedule_parents as fed on fed.parent = ended.schedule
            where ended.outcome = 'succeeded'
        )
    ), feed as materialized (
        select edge.child, edge.parent, oldest.job_id, oldest.slot_at, oldest.turn
        from edge
        left join lateral (
            select given.job_id, given.slot_at, row_number() over (order by given.job_id) as turn
            from (
                select feed.job_id, feed.slot_at
                from {schema}.schedule_feed as feed
                where feed.child = edge.child
                  and feed.parent = edge.parent
                order by feed.job_id
                limit most
            ) as given
        ) as oldest on true
    ), enough as (
        select counted.child, min(counted.turns) as turns
        from (select feed.child, feed.parent, count(feed.job_id) as turns from feed group by feed.child, feed.parent) as counted
        group by counted.child
        having min(counted.turns) > 0
    ), meal as materialized (
        select feed.child, feed.parent, feed.job_id, feed.slot_at, feed.turn
        from feed
        join enough on enough.child = feed.child and feed.turn <= enough.turns
    ), gone as (
        delete from {schema}.schedule_feed as feed
        using meal
        where feed.child = meal.child
          and feed.parent = meal.parent
          and feed.job_id = meal.job_id
    )
    select jsonb_agg(to_jsonb(eats)) into eaten
    from (
        select meal.child, max(meal.slot_at) as slot_at, max(meal.job_id) as parent_job, meal.turn
        from meal
        group by meal.child, meal.turn
    ) as eats;

    -- what one parent gives and another never matches would pile up for ever
    with surplus as (
        delete from {schema}.schedule_feed as feed
        using (
            select edge.child, edge.parent, (
                select kept.job_id
                from {schema}.schedule_feed as kept
                where kept.child = edge.child
                  and kept.parent = edge.parent
                order by kept.job_id desc
                offset 1000
                limit 1
            ) as last
            from (
                select distinct told.schedule
                from jsonb_to_recordset(ends) as told(schedule text, outcome text)
                where told.outcome = 'succeeded'
            ) as ended
            join {schema}.schedule_parents as edge on edge.parent = ended.schedule
        ) as pile
        where feed.child = pile.child
          and feed.parent = pile.parent
          and feed.job_id <= pile.last
        returning feed.child
    ), counted as (
        update {schema}.schedules as known
        set missed = known.missed + many.successes
        from (select surplus.child, count(*) as successes from surplus group by surplus.child) as many
        where known.name = many.child
        returning known.name, many.successes
    )
    select coalesce(jsonb_object_agg(counted.name, counted.successes), '{}') into missed from counted;

    with meal as materialized (
        select
            eats.child, eats.slot_at, eats.parent_job, eats.turn,
            child.overlap = 'skip' and (
                eats.turn > 1
                or {schema}.is_under_way(eats.child)
                or exists (select from {schema}.slots as waits where waits.schedule = eats.child and waits.job_id is null)
            ) as is_skipped
        from jsonb_to_recordset(eaten) as eats(child text, slot_at timestamptz, parent_job bigint, turn bigint)
        join {schema}.schedules as child on child.name = eats.child
        where child.max_runs is null
           or case when child.overlap = 'skip' then 1 else eats.turn end <= child.max_runs - child.runs
    ), put as (
        insert into {schema}.slots as slot (schedule, slot_at, cause, parent_job)
        select meal.child, meal.slot_at, 'after', meal.parent_job
        from meal
        where not meal.is_skipped
        order by meal.child, meal.turn
        on conflict do nothing
        returning slot.schedule, slot.slot_at
    ), told as (
        update {schema}.schedules as known
        set runs = known.runs + each.runs,
            last_slot = greatest(known.last_slot, each.last_slot),
            skipped = known.skipped + each.skipped
        from (
            select one.name, count(one.slot_at) as runs, max(one.slot_at) as last_slot, count(*) - count(one.slot_at) as skipped
            from (
                select put.schedule, put.slot_at from put
                union all
                select meal.child, null from meal where meal.is_skipped
            ) as one(name, slot_at)
            group by one.name
        ) as each
        where known.name = each.name
        returning known.name, each.skipped
    )
    select coalesce(jsonb_object_agg(told.name, told.skipped) filter (where told.skipped > 0), '{}') into skipped from told;

    skipped := skipped || {schema}.release_slots(ours, most);
end
$conclude_schedules$;

-- Runs the schedules that listen to this event, in the caller's transaction; returns how many. The payload goes over the
-- arguments of each, name by name. Arguments that a codec keeps from us come in `whole`, by the names of the schedules.
create function {schema}.emit(event text, payload jsonb default '{}', whole jsonb default null) returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $emit$
declare
    clock constant timestamptz := {schema}.now();
    told integer;
begin
    if jsonb_typeof(payload) <> 'object' then
        raise invalid_parameter_value using
            message = format('the payload of event %L is no JSON object', event),
            hint = 'It goes over the arguments of the tasks that listen, name by name: {"order_id": 7}.';
    end if;
    if whole is null and exists (
        select from {schema}.schedules as listens where listens.event = emit.event and listens.args ? 'rota:coded'
    ) then
        raise feature_not_supported using
            message = format('event %L cannot be emitted from SQL: a codec keeps the arguments of those that listen', event),
            hint = 'Emit it from an app that has the codec: app.emit(...).';
    end if;
    with put as (
        insert into {schema}.slots as slot (schedule, slot_at, cause, args)
        select listens.name, clock, 'event', coalesce(whole -> listens.name, listens.args || emit.payload)
        from {schema}.schedules as listens
        where listens.event = emit.event
          and listens.paused_at is null
          and (listens.start_at is null or clock >= listens.start_at)
          and (listens.end_at is null or clock < listens.end_at)
          and (whole is null or whole ? listens.name)
        returning slot.schedule
    )
    insert into {schema}.schedule_ends (schedule, outcome) select put.schedule, 'none' from put;
    get diagnostics told = row_count;
    if told > 0 then
        perform {schema}.notify('{schedule_channel}', '');
    end if;
    return told;
end
$emit$;

revoke execute on function {schema}.emit(text, jsonb, jsonb) from public;

-- Gives a dormant schedule a run, on behalf of a run of one of its parents. Returns what came of it: activated; busy, when it
-- has one already or is paused; over, when it has had its runs or this is not its time; or why it may not be: lost (the claim),
-- unknown, awake, stranger.
create function {schema}.activate_schedule(name text, job bigint, token bigint, args jsonb default null) returns text
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $activate_schedule$
declare
    clock constant timestamptz := {schema}.now();
    ours record;
    known record;
begin
    select running.schedule, coalesce(running.slot_at, clock) as slot_at into ours
    from {schema}.jobs as running
    where running.id = activate_schedule.job
      and running.token = activate_schedule.token
      and running.state = 'running';
    if not found then
        return 'lost';
    end if;
    -- one at a time: the second finds what the first has put
    select child.dormant, child.paused_at, child.runs, child.max_runs, child.start_at, child.end_at into known
    from {schema}.schedules as child
    where child.name = activate_schedule.name
    for no key update;
    if not found then
        return 'unknown';
    elsif not known.dormant then
        return 'awake';
    elsif not exists (
        select from {schema}.schedule_parents as edge
        where edge.child = activate_schedule.name
          and edge.parent = ours.schedule
    ) then
        return 'stranger';
    elsif known.paused_at is not null
        or {schema}.is_under_way(activate_schedule.name)
        or exists (select from {schema}.slots as waits where waits.schedule = activate_schedule.name and waits.job_id is null)
    then
        return 'busy';
    elsif known.runs >= known.max_runs or clock < known.start_at or clock >= known.end_at then
        return 'over';
    end if;
    insert into {schema}.slots (schedule, slot_at, cause, args, parent_job)
    values (activate_schedule.name, ours.slot_at, 'activated', activate_schedule.args, activate_schedule.job);
    insert into {schema}.schedule_ends (schedule, outcome) values (activate_schedule.name, 'none');
    update {schema}.schedules as child
    set runs = child.runs + 1,
        last_slot = greatest(child.last_slot, ours.slot_at)
    where child.name = activate_schedule.name;
    perform {schema}.notify('{schedule_channel}', '');
    return 'activated';
end
$activate_schedule$;

-- Runs a schedule by hand, whatever its rules say. One that was asked for before, with the same arguments, and waits to
-- begin is not doubled. Returns no row for a name that is not there.
create function {schema}.trigger_schedule(name text, args jsonb default null, due_at timestamptz default null)
    returns table (job_id bigint, existing boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $trigger_schedule$
#variable_conflict use_column
declare
    clock constant timestamptz := {schema}.now();
    made bigint;
begin
    perform from {schema}.schedules as known where known.name = trigger_schedule.name for no key update;
    if not found then
        return;
    end if;

    select job.id into job_id
    from {schema}.jobs as job
    join {schema}.schedules as known on known.name = job.schedule
    where job.schedule = trigger_schedule.name
      and job.state in ('queued', 'blocked')
      and job.attempt = 0
      and job.args = coalesce(trigger_schedule.args, known.args)
      -- asked for at once, it is not one that waits for later; but it may be younger than this statement, which waited for it
      and case
          when trigger_schedule.due_at > clock then job.due_at = trigger_schedule.due_at
          else job.due_at <= greatest(clock, job.created_at)
      end
    order by job.id
    limit 1;
    existing := found;
    if not existing then
        insert into {schema}.slots (schedule, slot_at, cause, args)
        values (trigger_schedule.name, coalesce(trigger_schedule.due_at, clock), 'trigger', trigger_schedule.args)
        returning id into made;
        perform {schema}.put_slots(array[made]);
        select slot.job_id into job_id from {schema}.slots as slot where slot.id = made;
        if trigger_schedule.due_at > clock then
            update {schema}.jobs as job set due_at = trigger_schedule.due_at where job.id = trigger_schedule.job_id;
        end if;
    end if;
    return next;
end
$trigger_schedule$;

-- Forgets runs that are older than the history of standard jobs is; returns how many. What waits stays.
create function {schema}.prune_slots(most integer) returns integer
    language sql volatile
    begin atomic
        with gone as (
            delete from {schema}.slots
            where id = any (array(
                select oldest.id
                from (
                    select slot.id, slot.created_at
                    from {schema}.slots as slot
                    where slot.job_id is not null
                    order by slot.id
                    limit most
                ) as oldest
                where oldest.created_at < {schema}.now() - (
                    select rules.history from {schema}.retention as rules where rules.class = 'standard'
                )
            ))
            returning id
        )
        select count(*)::integer from gone;
    end;
