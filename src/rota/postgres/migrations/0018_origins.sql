-- older workers: fine
-- What was made of a job is found also once that has settled or died: a job that was tried again does not come back when a bulk is
-- undone. A job that repeats none has no entry in these.

create index history_origin on {schema}.history (origin) where origin is not null;
create index dead_origin on {schema}.dead (origin) where origin is not null;
