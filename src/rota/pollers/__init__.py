"""Claimable work from a table of the user's."""
