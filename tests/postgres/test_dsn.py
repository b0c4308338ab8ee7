from __future__ import annotations

import pytest

from rota import InvalidDsn, Rota
from rota.postgres.dsn import Dsn, dsn_from_environment


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ana:s3cret@db:5433/app",
        "postgres://ana:s3cret@db:5433/app",
        "postgresql+psycopg://ana:s3cret@db:5433/app",
        "postgresql+asyncpg://ana:s3cret@db:5433/app",
        "host=db port=5433 dbname=app user=ana password=s3cret",
    ],
)
def test_every_common_way_to_write_an_address_means_the_same(text: str) -> None:
    assert Dsn(text) == Dsn("postgresql://ana:s3cret@db:5433/app")


def test_the_password_connects_and_is_never_shown() -> None:
    dsn = Dsn("postgresql://ana:s3cret@db/app?sslpassword=k3y")
    app = Rota("postgresql://ana:s3cret@db/app")

    assert "s3cret" in dsn.conninfo
    for shown in (str(dsn), repr(dsn), f"{dsn}", repr(app), repr(app.settings), str(app.settings)):
        assert "s3cret" not in shown
        assert "k3y" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "mysql://x/y",
        "redis://x",
        "postgresql://[half/app",
        "host=a nonsense",
        "postgresql://ana:s3cret@db:x:y/app?z=s3cret",
        "postgresql://ana:p@s3cret@db/app",
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidDsn) as refused:
        Dsn(text)

    assert "s3cret" not in str(refused.value)
    assert "postgresql://" in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_environment_is_read_in_one_order() -> None:
    everything = {"ROTA_DATABASE_URL": "dbname=first", "DATABASE_URL": "dbname=second", "PGHOST": "third"}

    assert dsn_from_environment(everything) == Dsn("dbname=first")
    assert dsn_from_environment({"DATABASE_URL": "dbname=second", "PGHOST": "third"}) == Dsn("dbname=second")
    assert dsn_from_environment({"PGHOST": "third"}) == Dsn("")
    assert dsn_from_environment({"ROTA_DATABASE_URL": "", "HOME": "/"}) is None


def test_an_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", "dbname=environment")
    monkeypatch.setenv("ROTA_SCHEMA", "from_environment")

    assert Rota("dbname=argument", schema="mine").settings.dsn == Dsn("dbname=argument")
    assert Rota("dbname=argument", schema="mine").settings.schema == "mine"
    assert Rota().settings.dsn == Dsn("dbname=environment")
    assert Rota().settings.schema == "from_environment"


def test_defaults_give_way_to_what_the_address_sets() -> None:
    dsn = Dsn("dbname=app connect_timeout=1")

    assert "connect_timeout=1" in dsn.with_defaults(connect_timeout="5", keepalives="1")
    assert "keepalives=1" in dsn.with_defaults(connect_timeout="5", keepalives="1")
