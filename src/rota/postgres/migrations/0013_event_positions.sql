-- older workers: fine
-- Where a person says from which position a projection is to read again, that event is looked for by its position alone. Positions
-- follow the pages of the table, so that a few ranges of them lead there; an append pays next to nothing for it.
create index events_position on {schema}.events using brin (position) with (pages_per_range = 16, autosummarize = on);
