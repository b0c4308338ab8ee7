"""The dashboard: web pages over everything Rota holds, and the JSON API beneath them. See `app.dashboard()`.

A surface: what it shows comes from the functions that the command line prints, and what it does goes through those that a user
would call.

    request ──▶ hardened ──▶ guard ──▶ page ──▶ its regions, each read under a deadline, and drawn by a template
                (headers)    (who,      │
                              rights)   └─ POST: action ──▶ the same functions, on record under the user's name

`page` is what a page is made of, `pages/` are those there are; `actions` are the changes, for pages and the API alike.
"""

from rota.dashboard.rights import RIGHTS, User

__all__ = ["RIGHTS", "User"]
