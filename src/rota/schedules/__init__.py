"""Work that comes back: when it is due, and that each slot becomes one run."""
