"""Job logs: what a body logs, kept with its run.

`level` says what is kept, `capture` finds the job of a record, `run` bounds the lines of one attempt, `notes` gathers those of all
attempts of a process, `write` puts them into the database, from a child by way of its worker (`send`), and `read` shows them.
"""
