"""The items of the table, each a function from a run to the rows it fills."""
