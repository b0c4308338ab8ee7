"""What `rota demo` shows: `tasks` is the app, `feed` gives it work, `crew` are its workers, `tour` is the whole of it."""
