"""Changing many jobs at once, as something that is tracked, paced, stopped and undone.

When a bulk begins, the jobs that fit are written down by one statement: what comes to fit later is not among them. Any worker
then takes turns with it. A turn is one short transaction: it locks the bulk, takes the next few hundred of its jobs, looks whether
each still fits, changes those by the same statements as one job is changed by, writes down what they were, and moves the place
from which the next turn goes on. So it does not matter who takes a turn, or whether they die in the middle of it: what is committed
is done and counted, the rest is not, and whoever comes next goes on from there. Jobs that run are left alone.

A bulk that nobody is at is found by the look for chores that every worker has every few seconds (`jobs/chores`).

To undo is to take turns once more over what was done, and to put each job back where it was if it is still where the bulk put it.
"""
