-- older workers: fine
-- How long what has settled is kept: classes of retention, and the upkeep that makes and drops the partitions of history.

create table {schema}.retention (
    class text primary key
        check (class ~ '^[a-z0-9_]{1,40}$')
        -- tables are named after their class, and these are the endings of its own partitions
        check (class !~ '(^|_)(rest|[0-9]{8})$'),
    -- how long settled jobs stay
    history interval not null check (history between '1 hour' and '36500 days'),
    -- how long their results stay; null for as long as the job
    results interval check (results between '1 minute' and history)
);

insert into {schema}.retention (class, history) values ('standard', '7 days');

-- Results that are to be forgotten are found by this. A job without one has no entry in it.
create index history_with_result on {schema}.history (finished_at) where result is not null;

-- What unique jobs were cancelled: `note_cancelled` finds them by this, and any other job has no entry in it.
create index history_cancelled on {schema}.history (unique_key) where state = 'cancelled' and unique_key is not null;

-- A default partition is the net under the others. It holds next to nothing, and rows leave it one by one.
create index history_standard_rest_age on {schema}.history_standard_rest (finished_at);
create index history_rest_age on {schema}.history_rest (finished_at);
create index attempts_rest_age on {schema}.attempts_rest (finished_at);

-- The rules by which a settled job is kept: those of its class or, where nobody declared that, the standard ones.
create function {schema}.rules_for(class text) returns {schema}.retention
    language sql stable
    set search_path = pg_catalog, pg_temp
as $rules_for$
    select rules
    from {schema}.retention as rules
    where rules.class in (rules_for.class, 'standard')
    order by rules.class = 'standard'
    limit 1
$rules_for$;

-- The tables that are partitioned by time, each with its net and how long its rows are kept.
create function {schema}.timelines()
    returns table (timeline regclass, net regclass, history interval, results interval)
    language sql stable
    set search_path = pg_catalog, pg_temp
as $timelines$
    select part.partrelid, part.partdefid, rules.history, rules.results
    from pg_partitioned_table as part
    join pg_class as class on class.oid = part.partrelid
    join pg_inherits as child on child.inhrelid = part.partrelid
    cross join lateral {schema}.rules_for(substr(class.relname, length('history_') + 1)) as rules
    where child.inhparent = $name${schema}.history$name$::regclass
    union all
    -- attempts are part of the story of jobs of any class
    select part.partrelid, part.partdefid, (select max(rules.history) from {schema}.retention as rules), null
    from pg_partitioned_table as part
    where part.partrelid = $name${schema}.attempts$name$::regclass
$timelines$;

-- The partitions of a timeline except its net.
create function {schema}.partitions(timeline regclass)
    returns table (partition regclass, from_at timestamptz, to_at timestamptz)
    language sql stable
    set search_path = pg_catalog, pg_temp
    set datestyle = 'ISO'
    set timezone = 'UTC'
as $partitions$
    select class.oid, bounds.texts[1]::timestamptz, bounds.texts[2]::timestamptz
    from pg_inherits as child
    join pg_class as class on class.oid = child.inhrelid
    cross join lateral regexp_match(
        pg_get_expr(class.relpartbound, class.oid), '^FOR VALUES FROM [(]''(.+)''[)] TO [(]''(.+)''[)]$'
    ) as bounds(texts)
    where child.inhparent = partitions.timeline
      and bounds.texts is not null
$partitions$;

-- Makes the partitions for today and the next three days where they are missing; returns how many it made.
--
-- Each is made as a table apart and then attached, which locks the net alone: jobs go on settling in the partition of today,
-- and wait only where that one is missing. All of the net is read under the lock, so nothing is attached beside a large one.
create function {schema}.add_partitions(timeline regclass, net regclass, history interval, net_limit bigint) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set datestyle = 'ISO'
    set timezone = 'UTC'
as $add_partitions$
declare
    today constant timestamptz := date_trunc('day', {schema}.now());
    -- one day, or longer for what is kept longer than a month: who looks for a job by its id looks into every partition
    width constant interval := make_interval(days => greatest(1, floor(extract(epoch from history) / 86400 / 30))::integer);
    horizon timestamptz := today + interval '4 days';
    start timestamptz := today;
    stop timestamptz;
    name text;
    strays integer;
    made integer := 0;
begin
    while start < horizon loop
        select there.to_at into stop
        from {schema}.partitions(timeline) as there
        where there.from_at <= start and there.to_at > start;
        if found then
            start := stop;
            continue;
        end if;
        select least(start + width, min(there.from_at)) into stop
        from {schema}.partitions(timeline) as there
        where there.from_at > start;
        execute format(
            'select count(*) from (select from %s where finished_at >= $1 and finished_at < $2 limit 5001) as rows', net
        ) into strays using start, stop;
        select format('%s.%I', $name${schema}$name$, class.relname || to_char(start, '_YYYYMMDD')) into name
        from pg_class as class
        where class.oid = timeline;
        if strays > 5000 or to_regclass(name) is not null then
            -- A few rows that are in the net already would be moved along. Many stay, and those that follow join them. Nothing
            -- can be attached beside such a net until they have reached their age, so all is made now that is needed till then.
            horizon := today + history + interval '4 days';
            start := start + interval '1 day';
            continue;
        end if;
        if pg_relation_size(net) > net_limit then
            raise lock_not_available using message = format('%s is too large to be searched under a lock', net);
        end if;

        execute format('create table %s (like %s including all)', name, timeline);
        -- What settles now is on its way into the net, and would be refused there once this is attached. It has to be let in
        -- first, and what follows kept waiting until it can see the partition. So must those who read: one that has learnt
        -- which partitions there are, and then waits for the net, would find moved rows neither there nor here.
        if strays > 0 or start < {schema}.now() + interval '1 hour' then
            execute format('lock table only %s in access exclusive mode', timeline);
        end if;
        execute format(
            'with stray as (delete from %s where finished_at >= $1 and finished_at < $2 returning *) '
            'insert into %s select * from stray',
            net, name
        ) using start, stop;
        execute format('alter table %s attach partition %s for values from (%L) to (%L)', timeline, name, start, stop);
        made := made + 1;
        start := stop;
    end loop;
    return made;
end
$add_partitions$;

-- Gives a class tables of its own; returns how many partitions it made.
--
-- None of its rows may be in the net when its table is attached. A few are moved along. Many stay, and so do all that
-- follow: moving them would keep others waiting, and in the net they are kept by the same rules, just deleted one by one.
-- It is rare, as workers declare their classes before they run the first job.
create function {schema}.add_class(class text, history interval, net_limit bigint) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $add_class$
declare
    home constant text := $name${schema}$name$;
    timeline constant text := format('%s.%I', home, 'history_' || class);
    net constant text := format('%s.%I', home, 'history_' || class || '_rest');
    strays integer;
    made integer;
begin
    select count(*) into strays
    from (select from {schema}.history_rest as settled where settled.retention = add_class.class limit 5001) as rows;
    if strays > 5000 or pg_relation_size(format('%s.history_rest', home)::regclass) > net_limit then
        raise lock_not_available using message = format('%s.history_rest holds too much to be moved under a lock', home);
    end if;

    execute format('create table %s (like %s.history including all) partition by range (finished_at)', timeline, home);
    execute format('create table %s partition of %s default', net, timeline);
    execute format('create index on %s (finished_at)', net);
    made := {schema}.add_partitions(timeline::regclass, net::regclass, history, net_limit);
    -- jobs of the class that settle now are let into the net first, and what follows, or reads, waits until it can see the table
    lock table only {schema}.history in access exclusive mode;
    execute format(
        'with stray as (delete from %s.history_rest where retention = $1 returning *) insert into %s select * from stray',
        home, timeline
    ) using class;
    execute format('alter table %s.history attach partition %s for values in (%L)', home, timeline, class);
    return made;
end
$add_class$;

-- Drops partitions that hold nothing from `before` on, the oldest first; returns how many it dropped.
--
-- Jobs that settle wait while it holds the lock this takes, so it is a few at a time.
create function {schema}.drop_partitions(timeline regclass, before timestamptz) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $drop_partitions$
declare
    old regclass;
    gone integer := 0;
begin
    for old in
        select there.partition
        from {schema}.partitions(timeline) as there
        where there.to_at <= before
        order by there.to_at
        limit 4
    loop
        execute format('drop table %s', old);
        gone := gone + 1;
    end loop;
    return gone;
end
$drop_partitions$;

-- Notes with keys that are still minded that their jobs, which are about to go, were cancelled; returns how many it noted. One
-- that is neither found nor noted has succeeded.
create function {schema}.note_cancelled(settled regclass, before timestamptz, most integer) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $note_cancelled$
declare
    noted integer;
begin
    execute format(
        'update %1$s.uniques set ended = ''cancelled'' where key = any (array('
        'select held.key from %2$s as done join %1$s.uniques as held on held.key = done.unique_key and held.job_id = done.id '
        'where done.state = ''cancelled'' and done.unique_key is not null and done.finished_at < $1 '
        'and held.ended is null and held.keep_until > $2 limit $3))',
        $name${schema}$name$, settled
    ) using before, {schema}.now(), most;
    get diagnostics noted = row_count;
    return noted;
end
$note_cancelled$;

-- A round of upkeep: short, and the next may follow at once if it is `unfinished`. Who comes while another is at it gets no
-- row. A step that meets a lock, or that would hold one for long, is told of in `hindered` and left to the next time.
--
-- Locks are held to the end of the transaction. So rows come first and tables last, and only those of one timeline.
create function {schema}.upkeep(lock_key bigint, net_limit bigint default 33554432)
    returns table (created integer, dropped integer, deleted integer, forgotten integer, hindered text[], unfinished boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '100ms'
    -- a table without statistics may seem to be full of results; and what seems dear is not worth compiling
    set enable_seqscan = off
    set jit = off
as $upkeep$
declare
    batch constant integer := 5000;
    clock constant timestamptz := {schema}.now();
    anywhere constant uuid := gen_random_uuid();
    kept record;
    touched integer;
    noted boolean := true;
begin
    if not pg_try_advisory_xact_lock(lock_key) then
        return;
    end if;
    created := 0;
    dropped := 0;
    deleted := 0;
    forgotten := 0;
    hindered := array[]::text[];
    unfinished := false;

    for kept in
        select line.net as settled, clock - line.history as before
        from {schema}.timelines() as line
        where line.timeline <> $name${schema}.attempts$name$::regclass
        union all
        select there.partition, 'infinity'
        from {schema}.timelines() as line
        cross join lateral {schema}.partitions(line.timeline) as there
        where line.timeline <> $name${schema}.attempts$name$::regclass
          and there.to_at <= clock - line.history
        union all
        select $name${schema}.history_rest$name$, clock - min(shortest.history)
        from {schema}.retention as shortest
    loop
        begin
            -- what cannot be noted yet stays, and all that settled with it
            unfinished := unfinished or {schema}.note_cancelled(kept.settled, kept.before, batch) = batch;
            noted := noted and not unfinished;
        exception when lock_not_available or deadlock_detected then
            noted := false;
            hindered := hindered || format('noting keys of cancelled jobs in %s: %s', kept.settled, sqlerrm);
        end;
    end loop;

    for kept in select line.net, clock - line.history as before from {schema}.timelines() as line where noted loop
        begin
            execute format(
                'delete from %1$s where ctid = any (array('
                'select ctid from %1$s where finished_at < $1 order by finished_at limit $2 for update skip locked))',
                kept.net
            ) using kept.before, batch;
            get diagnostics touched = row_count;
            deleted := deleted + touched;
            unfinished := unfinished or touched = batch;
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('deleting from %s: %s', kept.net, sqlerrm);
        end;
    end loop;

    begin
        delete from {schema}.history_rest
        where noted
          and ctid = any (array(
            select old.ctid
            from {schema}.history_rest as old
            cross join lateral {schema}.rules_for(old.retention) as rules
            where old.finished_at < clock - (select min(shortest.history) from {schema}.retention as shortest)
              and old.finished_at < clock - rules.history
            order by old.finished_at
            limit batch
            for update of old skip locked
        ));
        get diagnostics touched = row_count;
        deleted := deleted + touched;
        unfinished := unfinished or touched = batch;
    exception when lock_not_available or deadlock_detected then
        hindered := hindered || format('deleting from history_rest: %s', sqlerrm);
    end;

    begin
        update {schema}.history_rest
        set result = null
        where ctid = any (array(
            select old.ctid
            from {schema}.history_rest as old
            cross join lateral {schema}.rules_for(old.retention) as rules
            where old.result is not null
              and old.finished_at < clock - (select min(shortest.results) from {schema}.retention as shortest)
              and old.finished_at < clock - rules.results
            order by old.finished_at
            limit batch
            for update of old skip locked
        ));
        get diagnostics forgotten = row_count;
    exception when lock_not_available or deadlock_detected then
        hindered := hindered || format('forgetting results in history_rest: %s', sqlerrm);
    end;

    for kept in
        select leaf.partition, clock - line.results as before
        from {schema}.timelines() as line
        cross join lateral (
            select there.partition, there.from_at from {schema}.partitions(line.timeline) as there
            union all
            select line.net, '-infinity'
        ) as leaf
        where leaf.from_at < clock - line.results
        order by leaf.from_at
    loop
        exit when forgotten >= batch;
        begin
            execute format(
                'update %1$s set result = null where ctid = any (array('
                'select ctid from %1$s where result is not null and finished_at < $1 order by finished_at limit $2 '
                'for update skip locked))',
                kept.partition
            ) using kept.before, batch - forgotten;
            get diagnostics touched = row_count;
            forgotten := forgotten + touched;
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('forgetting results in %s: %s', kept.partition, sqlerrm);
        end;
    end loop;
    unfinished := unfinished or forgotten >= batch;

    begin
        -- There may be very many keys of live jobs. Keys are digests, so a stretch of them tells how it is with all: one in
        -- which many were pruned is followed by another.
        delete from {schema}.uniques
        where key = any (array(
            select held.key
            from {schema}.uniques as held
            where held.key = any (array(
                (select near.key from {schema}.uniques as near where near.key >= anywhere order by near.key limit batch)
                union all
                (select near.key from {schema}.uniques as near where near.key < anywhere order by near.key limit batch)
            ))
              and (held.keep_until is null or held.keep_until < clock)
              -- a call that is repeated since its reply was lost still finds the job it put
              and held.created_at < clock - interval '1 hour'
              and not exists (select from {schema}.jobs as live where live.id = held.job_id)
              -- a letter that is retried takes its key back, and the period that was said for it begins anew
              and not exists (
                  select from {schema}.dead as letter where letter.id = held.job_id and letter.resolved_at is null
              )
            -- whoever is about to put a job under the key has locked it
            for update of held skip locked
        ));
        get diagnostics touched = row_count;
        deleted := deleted + touched;
        unfinished := unfinished or touched > batch / 5;
    exception when lock_not_available or deadlock_detected then
        hindered := hindered || format('deleting from uniques: %s', sqlerrm);
    end;

    begin
        with gone as (
            delete from {schema}.dead
            where id = any (array(
                select letter.id
                from {schema}.dead as letter
                where letter.resolved_at < clock - interval '30 days'
                order by letter.resolved_at
                limit batch
                for update skip locked
            ))
            returning id, unique_key
        ), freed as (
            -- who acknowledged a letter gave its key back
            delete from {schema}.uniques as held
            using gone
            where held.key = gone.unique_key
              and held.job_id = gone.id
        )
        select count(*) into touched from gone;
        deleted := deleted + touched;
        unfinished := unfinished or touched = batch;
    exception when lock_not_available or deadlock_detected then
        hindered := hindered || format('deleting from dead: %s', sqlerrm);
    end;

    begin
        delete from {schema}.audit
        where id = any (array(
            select oldest.id
            from (select entry.id, entry.at from {schema}.audit as entry order by entry.id limit batch) as oldest
            -- by the real clock, like the entries
            where oldest.at < statement_timestamp() - interval '400 days'
        ));
        get diagnostics touched = row_count;
        deleted := deleted + touched;
        unfinished := unfinished or touched = batch;
    exception when lock_not_available or deadlock_detected then
        hindered := hindered || format('deleting from audit: %s', sqlerrm);
    end;

    for kept in select * from {schema}.timelines() loop
        begin
            created := {schema}.add_partitions(kept.timeline, kept.net, kept.history, net_limit);
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('adding partitions to %s: %s', kept.timeline, sqlerrm);
        end;
        begin
            if noted then
                -- by the same clock as what was noted
                dropped := {schema}.drop_partitions(kept.timeline, clock - kept.history);
            end if;
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('dropping partitions of %s: %s', kept.timeline, sqlerrm);
        end;
        exit when created + dropped > 0;
    end loop;

    for kept in
        select rules.class, rules.history
        from {schema}.retention as rules
        where rules.class <> 'standard'
          -- where the name is taken by something else, the class stays in the net
          and to_regclass(format('%s.%I', $name${schema}$name$, 'history_' || rules.class)) is null
        order by rules.class
    loop
        exit when created + dropped > 0;
        begin
            created := {schema}.add_class(kept.class, kept.history, net_limit);
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('adding tables for class %s: %s', kept.class, sqlerrm);
        end;
    end loop;
    unfinished := unfinished or created + dropped > 0;
    return next;
end
$upkeep$;

revoke execute on function {schema}.upkeep(bigint, bigint) from public;

-- The first partitions: those of attempts in one round, those of the standard class in another.
do $first$
begin
    for round in 1..2 loop
        -- nobody else can know of it yet, so any key will do
        perform from {schema}.upkeep(0);
    end loop;
end
$first$;
