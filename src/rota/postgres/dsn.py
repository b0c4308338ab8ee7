"""Where the database is: found in one order everywhere, and never shown with its password."""

from __future__ import annotations

import re
from collections.abc import Mapping

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rota.errors import InvalidDsn

__all__ = ["Dsn", "dsn_from_environment"]

_LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE", "PGSERVICEFILE")
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class Dsn:
    """A database address. Its text form is what may be shown; `conninfo` is what connects."""

    __slots__ = ("conninfo", "parameters")

    def __init__(self, text: str, source: str = "dsn") -> None:
        """Accepts libpq's key=value form and URLs, also `postgres://` and SQLAlchemy's `postgresql+driver://`."""
        if not isinstance(text, str):
            raise InvalidDsn(
                f"{source} is a {type(text).__name__}, not text. Write postgresql://user@host:5432/database."
            )
        normalised = re.sub(r"^postgres(?:ql)?(?:\+\w+)?://", "postgresql://", text.strip())
        if re.match(r"^(?!postgresql:)\w[\w+]*://", normalised):
            raise InvalidDsn(
                f"{source} starts with {normalised.split('://')[0]!r}, and Rota speaks to PostgreSQL only. "
                "Give an address such as postgresql://user@host/database."
            )
        try:
            self.parameters: dict[str, str] = {k: str(v) for k, v in conninfo_to_dict(normalised).items()}
        except (ProgrammingError, UnicodeError, ValueError):
            # libpq's message repeats the text, and the text may hold a password: it is left out
            raise InvalidDsn(
                f"{source} cannot be read as a PostgreSQL address. Write postgresql://user:password@host:5432/database "
                "(reserved characters percent-encoded) or host=... dbname=... user=...."
            ) from None
        if "@" in self.parameters.get("host", ""):
            # what stands before it is the end of a password, and would be shown as the host
            raise InvalidDsn(
                f"{source} holds more than one '@': in a user name or a password it is written %40, as in postgresql://ana:p%40ss@host/database."
            )
        self.conninfo = make_conninfo(**self.parameters)

    def with_defaults(self, **defaults: str) -> str:
        """The connection string, with these parameters where the address does not set them itself."""
        return make_conninfo(**{**defaults, **self.parameters})

    @property
    def database(self) -> str:
        return self.parameters.get("dbname", "")

    @property
    def without_secrets(self) -> str:
        """What still connects where libpq finds the password elsewhere: in PGPASSWORD, or in ~/.pgpass."""
        return make_conninfo(**{name: value for name, value in self.parameters.items() if name not in _SECRETS})

    def __str__(self) -> str:
        return make_conninfo(**{k: "***" if k in _SECRETS else v for k, v in self.parameters.items()})

    def __repr__(self) -> str:
        return f"Dsn({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dsn) and other.parameters == self.parameters

    def __hash__(self) -> int:
        return hash(self.conninfo)


def dsn_from_environment(environment: Mapping[str, str]) -> Dsn | None:
    """ROTA_DATABASE_URL, then DATABASE_URL, then libpq's own variables; None when there is none of them."""
    for name in ("ROTA_DATABASE_URL", "DATABASE_URL"):
        if environment.get(name):
            return Dsn(environment[name], source=name)
    if any(environment.get(name) for name in _LIBPQ_VARIABLES):
        return Dsn("", source="PG*")  # libpq reads its variables itself
    return None
