-- older workers: fine
-- Batches: jobs that are waited for together, by other jobs or by people. A link of a chain is a batch of one.
-- Older workers hand no results on, so chains are for when all run this release: what one of them settles counts as forgotten.

create table {schema}.batches (
    id bigint generated always as identity primary key,
    -- another way to wait for the same jobs: by other rules, or for another form of what came of them
    of bigint references {schema}.batches on delete cascade,
    name text check (length(name) <= 200),
    total integer not null check (total >= 0),
    -- what those who wait for it are given: the result of its one job, the results of all in the order given, or how many
    -- ended how
    gives text not null check (gives in ('result', 'results', 'summary')),
    -- what becomes of those who wait when one of its jobs fails
    on_failure text not null check (on_failure in ('block', 'cancel', 'run')),
    created_at timestamptz not null default {schema}.now(),
    -- when it was last looked at with nothing live in it, and what was found then
    closed_at timestamptz,
    succeeded integer not null default 0,
    dead integer not null default 0,
    cancelled integer not null default 0,
    forgotten integer not null default 0
);

create index batches_of on {schema}.batches (of) where of is not null;
create index batches_listed on {schema}.batches (id) where gives = 'summary' and of is null;
create index batches_age on {schema}.batches (greatest(created_at, closed_at)) where of is null;

-- Batches that lost a job, each as often as a statement took some from it. Only ever added to by those who settle, so that no
-- row is written by all of them; taken away by whoever looks whether that was the last one.
create table {schema}.closings (
    id bigint generated always as identity primary key,
    batch bigint not null
) with (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 1000
);

alter table {schema}.jobs
    -- the job of its batch in whose place it stands: a dead letter that was retried
    add column instead_of bigint;
alter table {schema}.history
    add column instead_of bigint,
    add column inputs jsonb;
alter table {schema}.dead
    add column instead_of bigint,
    add column inputs jsonb;

-- by id too: whether something is live in a batch is asked from its end, as jobs are mostly taken from the beginning
drop index {schema}.jobs_batch;
create index jobs_batch on {schema}.jobs (batch_id, id) where batch_id is not null;
create index history_batch on {schema}.history (batch_id) where batch_id is not null;
create index dead_batch on {schema}.dead (batch_id) where batch_id is not null;

-- Whatever takes a job away, by whatever statement, its batch is looked at afterwards: nobody has to remember to.
create function {schema}.closings_follow() returns trigger
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $closings_follow$
begin
    insert into {schema}.closings (batch)
    select distinct gone.batch_id
    from gone
    where gone.batch_id is not null;
    if exists (select from gone where gone.batch_id is not null and gone.state <> 'running') then
        -- it was taken away while it waited, so no worker has settled it and looks by itself
        perform {schema}.notify('{wake_channel}', '');
    end if;
    return null;
end
$closings_follow$;

create trigger closings_follow after delete on {schema}.jobs referencing old table as gone
    for each statement execute function {schema}.closings_follow();

-- And so it is when a letter is put away, or taken away while it is open. One that is retried has a job in its place.
create function {schema}.closings_follow_letters() returns trigger
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $closings_follow_letters$
begin
    insert into {schema}.closings (batch)
    select distinct changed.batch_id
    from changed
    where changed.batch_id is not null
      and changed.resolution is not distinct from case when tg_op = 'UPDATE' then 'acknowledged' end;
    if found then
        perform {schema}.notify('{wake_channel}', '');
    end if;
    return null;
end
$closings_follow_letters$;

create trigger closings_follow_updates after update on {schema}.dead referencing new table as changed
    for each statement execute function {schema}.closings_follow_letters();
create trigger closings_follow_deletes after delete on {schema}.dead referencing old table as changed
    for each statement execute function {schema}.closings_follow_letters();

-- Makes batches for jobs that the caller is about to put in the same transaction; `of` is the place of another of them, from 1.
create function {schema}.start_batches(batches jsonb) returns bigint[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $start_batches$
declare
    new record;
    ids bigint[] := '{}';
begin
    for new in
        select spec.batch, (spec.batch ->> 'of')::integer as of
        from jsonb_array_elements(batches) with ordinality as spec(batch, place)
        order by spec.place
    loop
        with made as (
            insert into {schema}.batches as batch (of, name, total, gives, on_failure)
            values (
                ids[new.of], new.batch ->> 'name', (new.batch ->> 'total')::integer, new.batch ->> 'gives',
                new.batch ->> 'on_failure'
            )
            returning batch.id, batch.of, batch.total
        ), empty as (
            -- nothing will ever leave it
            insert into {schema}.closings (batch) select made.id from made where made.total = 0 and made.of is null
        )
        select ids || made.id into ids from made;
    end loop;
    return ids;
end
$start_batches$;

-- What a batch hands on to those that wait for it, as one of:
--     {"result": …}  {"results": [...]}  {"summary": {...}}  {"missing": "why there is nothing to hand on"}
-- Jobs that did not succeed have a result of null. What is larger than told is not handed on.
create function {schema}.inputs_of(batch {schema}.batches, gives text, largest integer) returns jsonb
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $inputs_of$
declare
    clock timestamptz := {schema}.now();
    lost bigint;
    size bigint;
    found jsonb;
begin
    if gives = 'summary' then
        return jsonb_build_object('summary', jsonb_build_object(
            'batch', batch.id, 'name', batch.name, 'total', batch.total, 'succeeded', batch.succeeded, 'dead', batch.dead,
            'cancelled', batch.cancelled, 'forgotten', batch.forgotten
        ));
    end if;
    select batch.forgotten + count(*) filter (where done.finished_at < clock - rules.results), sum(octet_length(done.result::text))
    into lost, size
    from {schema}.history as done
    left join {schema}.retention as rules on rules.class = coalesce(done.retention, 'standard')
    where done.batch_id = inputs_of.batch.id
      and done.state = 'succeeded';
    if lost > 0 then
        return jsonb_build_object('missing', format(
            '%s of the %s results it waited for are gone: they were kept no longer (see Rota(retention=...)), or erased',
            lost, batch.total
        ));
    elsif size > largest then
        return jsonb_build_object('missing', format(
            'the %s result(s) it waited for take %s bytes as JSON, and no more than %s are handed on: store them elsewhere and '
            'return keys',
            batch.total, size, largest
        ));
    end if;
    select jsonb_agg(coalesce(member.result, 'null') order by member.place) into found
    from (
        select coalesce(done.instead_of, done.id) as place, done.result
        from {schema}.history as done
        where done.batch_id = inputs_of.batch.id
        union all
        select coalesce(letter.instead_of, letter.id), null
        from {schema}.dead as letter
        where letter.batch_id = inputs_of.batch.id
          and letter.resolution is distinct from 'retried'
    ) as member;
    if gives = 'result' then
        return jsonb_build_object('result', found -> 0);
    end if;
    return jsonb_build_object('results', coalesce(found, '[]'));
end
$inputs_of$;

-- Why those who wait for a batch are cancelled: the first of its jobs that failed them.
create function {schema}.why_cancelled(batch bigint) returns text
    language sql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $why_cancelled$
    select format('job %s (%s), which it waited for, %s', member.id, member.task, member.how)
    from (
        select done.id, done.task, 'was cancelled' || coalesce(': ' || done.reason, '') as how
        from {schema}.history as done
        where done.batch_id = why_cancelled.batch
          and done.state = 'cancelled'
        union all
        select
            letter.id, letter.task,
            case when letter.resolution is null then 'is dead' else 'died, and someone put it away' end
                || coalesce(': ' || letter.error_type || ': ' || left(letter.error_message, 200), '')
        from {schema}.dead as letter
        where letter.batch_id = why_cancelled.batch
          and letter.resolution is distinct from 'retried'
    ) as member
    order by member.id
    limit 1
$why_cancelled$;

-- Looks at batches that lost a job. Of those that have nothing live left, it queues the jobs that wait for them, or cancels
-- them, or lets them wait until someone has decided about a dead letter, as was said when they were put. Returns how many
-- closings it took, how many batches were found to have ended, and which jobs it has cancelled: call it again while it finds any,
-- or takes all it may.
--
-- Who takes away the last job of a batch leaves a closing in the same transaction, so whoever sees the closing sees the job
-- gone; of two who each take one of the last two, the one that commits later leaves a closing that is seen after both. A job
-- that waits is let go once, since it waits no more then; and a closer that dies has changed nothing, not even its closings.
create function {schema}.close_batches(
    most integer default 100, largest integer default 8388608, room integer default 1000,
    out taken integer, out ended integer, out cancelled bigint[]
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    -- the plans are known: a table without statistics may seem small
    set enable_seqscan = off
    set jit = off
as $close_batches$
declare
    clock timestamptz := {schema}.now();
    touched bigint[];
    ways bigint[];
    fates text[];
    whose bigint[];
    reasons text[];
    given jsonb[];
    those bigint[];
    queues text[];
begin
    ended := 0;
    cancelled := '{}';
    with gone as (
        delete from {schema}.closings as closing
        where closing.id = any (array(
            select waiting.id from {schema}.closings as waiting order by waiting.id limit most for update skip locked
        ))
        returning closing.batch
    )
    select count(*), array_agg(distinct gone.batch) into taken, touched from gone;
    -- the first look at each, without a lock: most have something live, and are looked at again when that has ended
    touched := array(
        select batch.id
        from {schema}.batches as batch
        where batch.id = any (touched)
          and (select job.id from {schema}.jobs as job where job.batch_id = batch.id order by job.id desc limit 1) is null
        order by batch.id
        for update
    );
    if touched = '{}' then
        return;
    end if;

    -- all that decides, and all that is handed on, is seen at one moment: a letter may be retried at any time
    with tally as materialized (
        select batch.id, done.succeeded, done.cancelled, letters.open, letters.put_away
        from {schema}.batches as batch
        cross join lateral (
            select
                count(*) filter (where done.state = 'succeeded') as succeeded,
                count(*) filter (where done.state = 'cancelled') as cancelled
            from {schema}.history as done
            where done.batch_id = batch.id
        ) as done
        cross join lateral (
            select
                count(*) filter (where letter.resolution is null) as open,
                count(*) filter (where letter.resolution = 'acknowledged') as put_away
            from {schema}.dead as letter
            where letter.batch_id = batch.id
        ) as letters
        where batch.id = any (touched)
          and (select job.id from {schema}.jobs as job where job.batch_id = batch.id order by job.id desc limit 1) is null
    ), closed as (
        update {schema}.batches as batch
        set closed_at = clock,
            succeeded = tally.succeeded,
            dead = tally.open + tally.put_away,
            cancelled = tally.cancelled,
            forgotten = greatest(0, batch.total - tally.succeeded - tally.open - tally.put_away - tally.cancelled)
        from tally
        where batch.id = tally.id
        returning batch.id, batch
    ), decided as materialized (
        select
            way.id, way.gives, closed.batch,
            case
                when way.on_failure = 'run' then 'queued'
                when tally.cancelled + tally.put_away > 0 then 'cancelled'
                when tally.open = 0 then 'queued'
                when way.on_failure = 'cancel' then 'cancelled'
                else 'blocked'
            end as fate
        from tally
        join closed on closed.id = tally.id
        cross join lateral (
            select way.id, way.gives, way.on_failure from {schema}.batches as way where way.id = tally.id
            union all
            select way.id, way.gives, way.on_failure from {schema}.batches as way where way.of = tally.id
        ) as way
    )
    select
        (select count(*) from tally),
        array_agg(decided.id), array_agg(decided.fate), array_agg((decided.batch).id),
        array_agg(case when decided.fate = 'cancelled' then {schema}.why_cancelled((decided.batch).id) end),
        array_agg(
            case when decided.fate = 'queued'
                and exists (select from {schema}.jobs as job where job.after = decided.id and job.takes is not null)
            then {schema}.inputs_of(decided.batch, decided.gives, largest) end
        )
    into ended, ways, fates, whose, reasons, given
    from decided
    where decided.fate <> 'blocked';

    -- in the order in which those who cancel or settle take them, and so many at a time
    those := array(
        select job.id from {schema}.jobs as job where job.after = any (ways) order by job.id limit room for update
    );
    if cardinality(those) = room then
        insert into {schema}.closings (batch) select distinct batch.id from unnest(whose) as batch(id);
    end if;
    with fate as (
        select job.id, way.fate, way.reason, way.inputs
        from unnest(ways, fates, reasons, given) as way(id, fate, reason, inputs)
        join {schema}.jobs as job on job.after = way.id
        where job.id = any (those)
    ), queued as (
        update {schema}.jobs as job
        set after = null,
            -- one with a limit is put into its line when it is due: see join_lines
            state = case when job.line is null then 'queued' else 'blocked' end,
            due_at = greatest(job.due_at, clock),
            inputs = case when job.takes is not null then jsonb_build_object('takes', job.takes) || fate.inputs end
        from fate
        where job.id = fate.id
          and fate.fate = 'queued'
        returning job.queue
    ), gone as (
        delete from {schema}.jobs as job
        using fate
        where job.id = fate.id
          and fate.fate = 'cancelled'
        returning
            job.id, job.created_at, job.due_at, job.attempt, job.losses, job.priority, job.version, job.queue, job.task,
            job.args, job.key, job.tags, job.retention, job.origin, job.redact, job.lost_limit, job.unique_key, job.schedule,
            job.slot_at, job.trace_context, job.batch_id, job.instead_of, fate.reason
    ), recorded as (
        insert into {schema}.history (
            id, created_at, due_at, attempt, losses, priority, version, state, queue, task, args, key, tags, retention, origin,
            redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of, reason
        )
        select
            id, created_at, due_at, attempt, losses, priority, version, 'cancelled', queue, task, args, key, tags, retention,
            origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of, reason
        from gone
    )
    select array(select distinct queued.queue from queued), array(select gone.id from gone order by gone.id)
    into queues, cancelled;
    perform {schema}.notify('{wake_channel}', queue) from unnest(queues) as queue;
end
$close_batches$;

-- Forgets batches that nothing is known of any more. Returns how many.
create function {schema}.prune_batches(most integer) returns integer
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $prune_batches$
    with old as (
        delete from {schema}.batches
        where id = any (array(
            select batch.id
            from {schema}.batches as batch
            where greatest(batch.created_at, batch.closed_at)
                < {schema}.now() - (select max(rules.history) from {schema}.retention as rules)
              and batch.of is null
              and not exists (select from {schema}.jobs as job where job.batch_id = batch.id)
              and not exists (select from {schema}.dead as letter where letter.batch_id = batch.id and letter.resolved_at is null)
              and not exists (
                  select
                  from {schema}.batches as way
                  join {schema}.jobs as job on job.after = way.id
                  where way.id = batch.id or way.of = batch.id
              )
              and not exists (select from {schema}.closings as closing where closing.batch = batch.id)
            order by greatest(batch.created_at, batch.closed_at)
            limit most
            for update skip locked
        ))
        returning id
    )
    select count(*)::integer from old
$prune_batches$;

revoke execute on function
    {schema}.closings_follow(),
    {schema}.closings_follow_letters(),
    {schema}.start_batches(jsonb),
    {schema}.inputs_of({schema}.batches, text, integer),
    {schema}.close_batches(integer, integer, integer),
    {schema}.prune_batches(integer)
from public;
