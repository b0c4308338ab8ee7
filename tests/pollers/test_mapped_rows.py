"""Rows as objects of SQLAlchemy: they are what a query would have given, and a session takes them as such."""

import dataclasses
import enum
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import (
    CHAR,
    Column,
    Enum,
    Float,
    ForeignKey,
    Integer,
    Numeric,
    String,
    Table,
    Uuid,
    create_engine,
    event,
    func,
    inspect,
    join,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, INT4RANGE, JSONB, Range
from sqlalchemy.engine import Engine
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    column_property,
    composite,
    mapped_column,
    reconstructor,
    registry,
    relationship,
)
from sqlalchemy.orm.exc import DetachedInstanceError
from sqlalchemy.types import TypeDecorator

from rota.errors import ConfigurationError
from rota.pollers.rows import RowReader, columns_for, reader_of


class Base(DeclarativeBase): ...


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Shouted(TypeDecorator[str]):
    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value and value.lower()

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value and value.upper()


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Owner(Base):
    __tablename__ = "owners"
    id: Mapped[int] = mapped_column(primary_key=True)
    sources: Mapped[list["Source"]] = relationship(back_populates="owner")


class Source(Base):
    __tablename__ = "sources"

    number: Mapped[int] = mapped_column("id", primary_key=True)
    link: Mapped[str] = mapped_column("The URL")
    colour: Mapped[Colour | None]
    colours: Mapped[list[Colour] | None] = mapped_column(ARRAY(Enum(Colour, name="colour")))
    shouted: Mapped[str | None] = mapped_column(Shouted)
    data: Mapped[dict[str, Any] | None] = mapped_column(MutableDict.as_mutable(JSONB))
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    weight: Mapped[float | None] = mapped_column(Numeric(10, 2, asdecimal=False))
    ratio: Mapped[float | None] = mapped_column(Float)
    token: Mapped[uuid.UUID | None]
    token_text: Mapped[str | None] = mapped_column(Uuid(as_uuid=False))
    span: Mapped[Range[int] | None] = mapped_column(INT4RANGE)
    seen: Mapped[datetime | None]
    every: Mapped[timedelta | None]
    padded: Mapped[str | None] = mapped_column(CHAR(4))
    raw: Mapped[bytes | None]
    at: Mapped[Point] = composite(mapped_column("x", Integer), mapped_column("y", Integer))
    body: Mapped[str | None] = mapped_column(Shouted, deferred=True)
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))
    owner: Mapped[Owner | None] = relationship(back_populates="sources")
    length: Mapped[int] = column_property(func.length(link))

    @reconstructor
    def loaded(self) -> None:
        self.woken = f"loaded {self.number}"
        self.shouted = self.shouted or "SILENT"  # taken for loaded, and not for a change


COLUMNS = [column.name for column in Source.__table__.columns]


@pytest.fixture
def engine(rota_database: str) -> Iterator[Engine]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(rota_database))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Owner(id=1))
        session.flush()
        session.add(
            Source(
                number=7,
                link="https://example.org",
                colour=Colour.BLUE,
                colours=[Colour.RED, Colour.BLUE],
                shouted="LOUD",
                data={"a": [1]},
                price=Decimal("1.50"),
                weight=2.5,
                ratio=0.5,
                token=uuid.UUID(int=5),
                token_text=str(uuid.UUID(int=6)),
                span=Range(1, 5),
                seen=datetime(2026, 1, 2, 3, 4, 5),
                every=timedelta(minutes=5),
                padded="ab",
                raw=b"\x00\x01",
                at=Point(1, 2),
                body="LONG",
                owner_id=1,
            )
        )
        session.add(Source(number=8, link="", at=Point(0, 0)))
        session.commit()
    yield engine
    engine.dispose()


def reading(annotation: Any) -> RowReader:
    def handler(row): ...

    handler.__annotations__["row"] = annotation
    return reader_of(handler, "fetch")


def row_of(dsn: str, table: str, key: int, *columns: str) -> dict[str, Any]:
    chosen = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns))
    query = psycopg.sql.SQL("select {} from {} where id = %s").format(chosen, psycopg.sql.Identifier(table))
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        row = connection.execute(query, [key]).fetchone()
    assert row is not None
    return row


def source_of(dsn: str, key: int = 7) -> Source:
    reader = reading(Source)
    columns = columns_for(reader, COLUMNS, poller="fetch", table="sources")
    built = reader.build(row_of(dsn, "sources", key, *columns))
    assert isinstance(built, Source)
    return built


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def test_columns_are_those_of_the_table_by_their_own_names_but_what_is_deferred() -> None:
    reader = reading(Source)

    assert reader.kind == "mapped class"
    assert reader.fields == tuple(name for name in COLUMNS if name != "body")
    assert {"id", "The URL", "x", "y"} <= set(reader.fields)
    assert reader.optional == frozenset()


@pytest.mark.one_server
@pytest.mark.parametrize("key", [7, 8])
def test_object_is_what_a_query_gives(engine: Engine, rota_database: str, key: int) -> None:
    built = source_of(rota_database, key)

    with Session(engine) as session:
        loaded = session.get_one(Source, key)
        session.expunge(loaded)
    attributes = set(inspect(Source).column_attrs.keys()) - {"body", "length"}
    assert {name: getattr(built, name) for name in attributes} == {name: getattr(loaded, name) for name in attributes}
    assert {name: type(getattr(built, name)) for name in attributes} == {
        name: type(getattr(loaded, name)) for name in attributes
    }
    assert (built.at, built.woken) == (loaded.at, loaded.woken)
    assert inspect(built).identity_key == inspect(loaded).identity_key
    assert inspect(built).detached
    assert (inspect(built).modified, inspect(loaded).modified) == (False, False)
    assert "Source object" in repr(built)


@pytest.mark.one_server
def test_added_object_is_not_read_again_and_only_what_changed_is_written(engine: Engine, rota_database: str) -> None:
    built = source_of(rota_database)

    with Session(engine) as session, statements(engine) as seen:
        session.add(built)
        session.flush()
        built.link = "new"
        session.commit()

    assert seen == ['UPDATE sources SET "The URL"=%(The_URL)s::VARCHAR WHERE sources.id = %(sources_id)s::INTEGER']
    assert row_of(rota_database, "sources", 7, "The URL", "shouted", "body") == {
        "The URL": "new",
        "shouted": "loud",
        "body": "long",
    }


@pytest.mark.one_server
def test_merged_object_writes_only_what_changed(engine: Engine, rota_database: str) -> None:
    built = source_of(rota_database)

    with Session(engine) as session, statements(engine) as seen:
        merged = session.merge(built)
        session.flush()
        merged.colour = Colour.RED
        session.commit()

    assert [each.split(" ")[0] for each in seen] == ["SELECT", "UPDATE"]
    assert "SET colour=" in seen[1]
    assert "," not in seen[1]


@pytest.mark.one_server
def test_change_inside_a_mutable_value_is_noticed(engine: Engine, rota_database: str) -> None:
    built = source_of(rota_database)
    assert built.data is not None

    with Session(engine) as session:
        session.add(built)
        built.data["b"] = 2
        session.commit()

    assert row_of(rota_database, "sources", 7, "data") == {"data": {"a": [1], "b": 2}}


@pytest.mark.one_server
def test_what_was_not_loaded_comes_with_a_session_and_not_before(engine: Engine, rota_database: str) -> None:
    built = source_of(rota_database)

    for name in ("body", "owner", "length"):
        with pytest.raises(DetachedInstanceError):
            getattr(built, name)
    with Session(engine) as session:
        session.add(built)
        assert (built.body, built.length) == ("LONG", 19)
        assert built.owner is not None
        assert built.owner.sources == [built]


def test_column_that_is_a_poller_s_own_is_left_alone() -> None:
    built = reading(Owner).build({"id": 3, "last_fetched_at": None})

    assert built.id == 3
    assert not hasattr(built, "last_fetched_at")


def test_table_that_lacks_a_mapped_column_is_told() -> None:
    with pytest.raises(ConfigurationError, match="takes a mapped class that needs id, and the table has only key"):
        columns_for(reading(Owner), ["key"], poller="fetch", table="owners")


def test_object_that_is_a_dataclass_too_is_shown_and_compared_like_one() -> None:
    class Root(MappedAsDataclass, DeclarativeBase): ...

    class Item(Root):
        __tablename__ = "items"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(init=False)

    reader = reading(Item)

    assert (reader.kind, reader.fields) == ("mapped class", ("id", "name"))
    assert repr(reader.build({"id": 1, "name": "n"})).endswith("Item(id=1, name='n')")


def test_key_is_loaded_even_if_it_is_deferred() -> None:
    class Root(DeclarativeBase): ...

    class Item(Root):
        __tablename__ = "items"
        id: Mapped[int] = mapped_column(primary_key=True, deferred=True)

    assert inspect(reading(Item).build({"id": 3})).identity == (3,)
    assert reading(Item).fields == ("id",)


def test_class_that_is_mapped_imperatively_has_the_columns_it_maps() -> None:
    class Thing:
        def __init__(self) -> None:
            raise AssertionError("a row that is loaded is not made anew")

    mapping = registry()
    table = Table(
        "things",
        mapping.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer, key="k"),
        Column("z", Integer),
    )
    mapping.map_imperatively(Thing, table, properties={"name": table.c.k}, exclude_properties=["z"])

    reader = reading(Thing)
    built = reader.build({"id": 1, "n": 2})

    assert reader.fields == ("id", "n")
    assert (built.id, built.name, inspect(built).identity) == (1, 2, (1,))


def test_class_may_refer_to_one_that_is_defined_after_the_poller() -> None:
    class Root(DeclarativeBase): ...

    class Child(Root):
        __tablename__ = "children"
        id: Mapped[int] = mapped_column(primary_key=True)
        parent_id = mapped_column(ForeignKey("parents.id"))
        parent: Mapped["Parent"] = relationship()

    reader = reading(Child)

    class Parent(Root):
        __tablename__ = "parents"
        id: Mapped[str] = mapped_column(Shouted, primary_key=True)

    assert reader.build({"id": 1, "parent_id": "p"}).parent_id == "P"


def test_class_that_is_mapped_to_no_table_is_refused() -> None:
    class Root(DeclarativeBase): ...

    one = Table("ones", Root.metadata, Column("id", Integer, primary_key=True))
    two = Table("twos", Root.metadata, Column("one", ForeignKey("ones.id"), primary_key=True))

    class Both(Root):
        __table__ = join(one, two)
        id = column_property(one.c.id, two.c.one)

    class Chosen(Root):
        __table__ = select(one).subquery()

    for mapped in (Both, Chosen):
        with pytest.raises(ConfigurationError, match="mapped to no table of its own"):
            reading(mapped)


class Kind(enum.Enum):
    PLAIN = 1
    BIG = 2
    APART = 3
    UNKNOWN = 4
    SHARP = 5


class Animal(Base):
    __tablename__ = "animals"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": Kind.PLAIN}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[Kind | None] = mapped_column("type")
    name: Mapped[str]


class Whale(Animal):
    __mapper_args__ = {"polymorphic_identity": Kind.BIG}  # noqa: RUF012
    size: Mapped[int | None]


class Shark(Animal):
    __mapper_args__ = {"polymorphic_identity": Kind.SHARP}  # noqa: RUF012
    teeth: Mapped[int | None]


class Bird(Animal):
    __tablename__ = "birds"
    __mapper_args__ = {"polymorphic_identity": Kind.APART}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("animals.id"), primary_key=True)
    wings: Mapped[int]


def test_row_of_a_subclass_in_the_same_table_is_an_object_of_it() -> None:
    reader = reading(Animal)
    plain, whale, bird, none = (
        reader.build({"id": 1, "type": kind, "name": "n", "size": 9}) for kind in ("PLAIN", "BIG", "APART", None)
    )

    assert reader.fields == ("id", "type", "name", "size", "teeth")
    assert [type(each) for each in (plain, whale, bird, none)] == [Animal, Whale, Bird, Animal]
    assert whale.size == 9
    assert "size" not in vars(plain)
    assert inspect(bird).unloaded == {"wings"}
    assert inspect(bird).identity_key == inspect(plain).identity_key


def test_columns_of_a_sibling_in_the_same_table_are_none_of_its_own() -> None:
    assert reading(Whale).fields == ("id", "type", "name", "size")


@pytest.mark.parametrize("kind", ["PLAIN", "SHARP", "APART", "UNKNOWN"])
def test_row_of_another_class_is_the_row_s_failure(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"type = <Kind.{kind}: .>, which is no kind of Whale"):
        reading(Whale).build({"id": 1, "type": kind, "name": "n", "size": 9})


def test_subclass_with_a_table_of_its_own_has_the_columns_of_that() -> None:
    reader = reading(Bird)
    built = reader.build({"id": 1, "wings": 2})

    assert reader.fields == ("id", "wings")
    assert (type(built), built.id, built.wings) == (Bird, 1, 2)
    assert inspect(built).unloaded == {"kind", "name"}
    assert inspect(built).identity_key[1:2] == ((1,),)
    assert "Bird object" in repr(built)
