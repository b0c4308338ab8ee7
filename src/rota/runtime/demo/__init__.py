"""What `rota demo` shows: `tasks` is the app, `feed` gives it work, `slots` watches its schedule, `crew` are its workers, and
`tour` is the whole of it.
"""
