"""What can be done, by what it is done to; `actions` lists all of it."""
