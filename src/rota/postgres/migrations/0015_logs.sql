-- older workers: fine
-- Job logs: what bodies log, kept with their runs for as long as jobs of their class are.

-- No identity: tables that are made apart and attached would have one of their own.
create sequence {schema}.log_ids;

-- Append-only, except that a run which logs very much lets go of lines between its first and its newest.
create table {schema}.logs (
    -- in the order in which lines came here: who follows goes on after the last one seen
    id bigint not null default nextval($name${schema}.log_ids$name$::regclass),
    job_id bigint not null,
    -- of the claim, as an attempt that was handed back has the number of the next
    token bigint not null,
    logged_at timestamptz not null,
    attempt integer not null,
    -- among all lines of its claim: where some are missing, so many were dropped
    number integer not null,
    level smallint not null,
    logger text not null,
    message text not null,
    retention text
) partition by list (retention);

create table {schema}.logs_standard partition of {schema}.logs for values in (null, 'standard')
    partition by range (logged_at);
create table {schema}.logs_standard_rest partition of {schema}.logs_standard default;
create table {schema}.logs_rest partition of {schema}.logs default;
create index log_lines_of_job on {schema}.logs (job_id, id);
create index log_lines_standard_rest_age on {schema}.logs_standard_rest (logged_at);
create index log_lines_rest_age on {schema}.logs_rest (logged_at);

-- As it was, for a timeline of any column.
create or replace function {schema}.add_partitions(timeline regclass, net regclass, history interval, net_limit bigint)
    returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set datestyle = 'ISO'
    set timezone = 'UTC'
as $add_partitions$
declare
    today constant timestamptz := date_trunc('day', {schema}.now());
    -- one day, or longer for what is kept longer than a month: who looks for a job by its id looks into every partition
    width constant interval := make_interval(days => greatest(1, floor(extract(epoch from history) / 86400 / 30))::integer);
    -- the column that it is partitioned by
    moment constant text := (
        select quote_ident(attribute.attname)
        from pg_partitioned_table as part
        join pg_attribute as attribute on attribute.attrelid = part.partrelid and attribute.attnum = part.partattrs[0]
        where part.partrelid = timeline
    );
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
            'select count(*) from (select from %1$s where %2$s >= $1 and %2$s < $2 limit 5001) as rows', net, moment
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
            'with stray as (delete from %1$s where %2$s >= $1 and %2$s < $2 returning *) '
            'insert into %3$s select * from stray',
            net, moment, name
        ) using start, stop;
        execute format('alter table %s attach partition %s for values from (%L) to (%L)', timeline, name, start, stop);
        made := made + 1;
        start := stop;
    end loop;
    return made;
end
$add_partitions$;

-- Gives the logs of a class tables of their own, as `add_class` does for its history; returns how many partitions it made.
create function {schema}.add_log_class(class text, history interval, net_limit bigint) returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $add_log_class$
declare
    home constant text := $name${schema}$name$;
    timeline constant text := format('%s.%I', home, 'logs_' || class);
    net constant text := format('%s.%I', home, 'logs_' || class || '_rest');
    strays integer;
    made integer;
begin
    select count(*) into strays
    from (select from {schema}.logs_rest as line where line.retention = add_log_class.class limit 5001) as rows;
    if strays > 5000 or pg_relation_size(format('%s.logs_rest', home)::regclass) > net_limit then
        raise lock_not_available using message = format('%s.logs_rest holds too much to be moved under a lock', home);
    end if;

    execute format('create table %s (like %s.logs including all) partition by range (logged_at)', timeline, home);
    execute format('create table %s partition of %s default', net, timeline);
    execute format('create index on %s (logged_at)', net);
    made := {schema}.add_partitions(timeline::regclass, net::regclass, history, net_limit);
    -- lines of the class that are written now are let into the net first, and what follows, or reads, waits for the table
    lock table only {schema}.logs in access exclusive mode;
    execute format(
        'with stray as (delete from %s.logs_rest where retention = $1 returning *) insert into %s select * from stray',
        home, timeline
    ) using class;
    execute format('alter table %s.logs attach partition %s for values in (%L)', home, timeline, class);
    return made;
end
$add_log_class$;

-- The timelines of logs, one for each class that has tables, each with its net and how long its lines are kept.
create function {schema}.log_timelines() returns table (timeline regclass, net regclass, history interval)
    language sql stable
    set search_path = pg_catalog, pg_temp
as $log_timelines$
    select part.partrelid, part.partdefid, rules.history
    from pg_partitioned_table as part
    join pg_class as class on class.oid = part.partrelid
    join pg_inherits as child on child.inhrelid = part.partrelid
    cross join lateral {schema}.rules_for(substr(class.relname, length('logs_') + 1)) as rules
    where child.inhparent = $name${schema}.logs$name$::regclass
$log_timelines$;

-- A round of upkeep of the logs, which follows that of the history and goes by the same rules: short, and the next may follow at
-- once if it is `unfinished`. Who comes while another is at it gets no row.
create function {schema}.keep_logs(lock_key bigint, net_limit bigint default 33554432)
    returns table (created integer, dropped integer, deleted integer, hindered text[], unfinished boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '100ms'
    set enable_seqscan = off
    set jit = off
as $keep_logs$
declare
    batch constant integer := 5000;
    clock constant timestamptz := {schema}.now();
    kept record;
    touched integer;
begin
    if not pg_try_advisory_xact_lock(lock_key) then
        return;
    end if;
    created := 0;
    dropped := 0;
    deleted := 0;
    hindered := array[]::text[];
    unfinished := false;

    for kept in select line.net, clock - line.history as before from {schema}.log_timelines() as line loop
        begin
            execute format(
                'delete from %1$s where ctid = any (array('
                'select ctid from %1$s where logged_at < $1 order by logged_at limit $2 for update skip locked))',
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
        delete from {schema}.logs_rest
        where ctid = any (array(
            select old.ctid
            from {schema}.logs_rest as old
            cross join lateral {schema}.rules_for(old.retention) as rules
            where old.logged_at < clock - (select min(shortest.history) from {schema}.retention as shortest)
              and old.logged_at < clock - rules.history
            order by old.logged_at
            limit batch
            for update of old skip locked
        ));
        get diagnostics touched = row_count;
        deleted := deleted + touched;
        unfinished := unfinished or touched = batch;
    exception when lock_not_available or deadlock_detected then
        hindered := hindered || format('deleting from logs_rest: %s', sqlerrm);
    end;

    -- locks are held to the end of the transaction, so it is the tables of one timeline
    for kept in select * from {schema}.log_timelines() loop
        begin
            created := {schema}.add_partitions(kept.timeline, kept.net, kept.history, net_limit);
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('adding partitions to %s: %s', kept.timeline, sqlerrm);
        end;
        begin
            dropped := {schema}.drop_partitions(kept.timeline, clock - kept.history);
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
          and to_regclass(format('%s.%I', $name${schema}$name$, 'logs_' || rules.class)) is null
        order by rules.class
    loop
        exit when created + dropped > 0;
        begin
            created := {schema}.add_log_class(kept.class, kept.history, net_limit);
        exception when lock_not_available or deadlock_detected then
            hindered := hindered || format('adding tables for logs of class %s: %s', kept.class, sqlerrm);
        end;
    end loop;
    unfinished := unfinished or created + dropped > 0;
    return next;
end
$keep_logs$;

revoke execute on function {schema}.keep_logs(bigint, bigint) from public;

-- The first partitions. Nobody else can know of it yet, so any key will do.
do $first$
begin
    perform from {schema}.keep_logs(0);
end
$first$;
