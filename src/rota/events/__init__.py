"""Event logs: what happened, in streams, for projections to read."""
