-- older workers: fine
-- Queues whose successes need not be on disk before the next job begins. Older workers write theirs down as ever.

alter table {schema}.queues add column relaxed boolean not null default false;
