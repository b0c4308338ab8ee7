"""Texts that would be more than text on a careless page, in every column of every table that takes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

#: No element, attribute or name of ours has this in it.
MARK = "zq"
CORPUS = (
    "<script>window.zq=1</script>",
    '"><zq onzq=1 autofocus onfocus="window.zq=1" tabindex=1>',
    "'><zq onzq=1 onmouseover='window.zq=1'>",
    '" onzq="1" onfocus="window.zq=1" autofocus x="',
    "' onzq='1' style='color:expression(window.zq=1)",
    "<svg/onload=window.zq=1><zq>",
    '<img src=x onerror="window.zq=1"><zq>',
    "javascript:window.zq=1//",
    "</script><script>window.zq=1</script><zq>",
    "</title></textarea></style></pre></template><zq><script>window.zq=1</script>",
    "]]><zq>",
    "<!--><zq><!--",
    "<a href=javascript:window.zq=1><zq>zq</a>",
    "{{ 7*7 }}{% zq %}${zq}#{zq}<%= zq %>",
    "&lt;zq&gt;&#60;zq&#62;",
    "\u202e\u2066<zq>\u2069\ufeff",
    "\uff1czq\uff1e\u2028\u2029<zq\u00a0onzq=1>",
    "\t\r\n<zq\nonzq=1>\v",
    "data:text/html,<script>window.zq=1</script>",
    "../../zq?a=b&c=d#<zq>",
)
WHOLE = "\n".join(CORPUS)
#: Where a name may have no more than so many characters, and where next to none.
SHORTER = "\"><zq onzq=1><script>window.zq=1</script>'</script>{{zq}}javascript:window.zq=1"
SHORTEST = '"><zq onzq>'

#: What is not written over: with another text here, nothing is read at all.
KEPT = {
    ("meta", "database"): "a database that is not the one it says it is, is refused",
    ("meta", "environment"): "a database of another environment is refused",
    ("migrations", "name"): "a schema that is not known is refused",
    ("migrations", "checksum"): "a schema that is not known is refused",
}
#: In these anything may be; all others have a shape, of which the texts are written over.
PAYLOADS = {"args", "result", "saved", "inputs", "details", "data", "metadata"}

COLUMNS = """
    select class.relname, attribute.attname, format_type(attribute.atttypid, null)
    from pg_attribute as attribute
    join pg_class as class on class.oid = attribute.attrelid
    where class.relnamespace = 'rota'::regnamespace
      and class.relkind in ('r', 'p')
      and not class.relispartition
      and class.relname <> 'test_clock'
      and attribute.attnum > 0
      and not attribute.attisdropped
      and attribute.attgenerated = ''
      and format_type(attribute.atttypid, null) in ('text', 'text[]', 'jsonb', 'json', 'character varying', 'name')
    order by 1, attribute.attnum
"""


#: One row in each table that a shop may do without.
ROWS = """
    insert into rota.batches (total, gives, on_failure, name) values (1, 'summary', 'block', 'a');
    insert into rota.bulks (action, filter, options, actor, undo_until, total, trouble)
    values ('cancel', '{"error": "a"}', '{"reason": "a"}', 'ana', now(), 1, 'a');
    insert into rota.bulk_jobs (bulk, job, before) select bulk.id, dead.id, '{"queue": "a"}' from rota.bulks as bulk, rota.dead;
    insert into rota.depths values (date_trunc('minute', now()), 'mail', 1, 1, 1, 1, false);
    insert into rota.limits (task, running) values ('send', 1);
    insert into rota.lines (id, task, key, queue) values (gen_random_uuid(), 'send', 'a', 'mail');
    insert into rota.logs (job_id, token, logged_at, attempt, number, level, logger, message)
    select id, 1, now(), 1, 1, 30, 'shop', 'a' from rota.dead;
    insert into rota.poll_intervals (poller, key, pace, due_at) values ('fetch', '["a"]', '1 hour', now());
    insert into rota.queues (name, paused_at, paused_by, pause_reason) values ('mail', now(), 'ana', 'a');
    insert into rota.schedule_ends (schedule, outcome) values ('a', 'none');
    insert into rota.schedule_feed (child, parent, job_id, slot_at) values ('a', 'b', 1, now());
    insert into rota.schedule_parents (child, parent) values ('a', 'b');
    insert into rota.slots (schedule, slot_at, cause, job_id) select 'a', now(), 'due', id from rota.dead;
    insert into rota.standbys (name, member) select 'a', id from rota.members limit 1;
    insert into rota.tallies (span, at, queue, task, succeeded, failed)
    values ('hour', date_trunc('hour', now()), 'mail', '', 1, 1), ('hour', date_trunc('hour', now()), '', 'send', 1, 1);
    insert into rota.wishes (member, wish, asked_by) select id, 'quiet', 'ana' from rota.members;
    insert into rota.uniques (key) values (gen_random_uuid());
"""
#: They belong to others by name, which by now is another.
AGAIN = """
    update rota.slots set schedule = (select min(name) from rota.schedules);
    update rota.schedule_parents set child = (select min(name) from rota.schedules), parent = parent || '!';
    update rota.standbys set name = (select min(name) from rota.leases);
"""


@dataclass
class Planted:
    """The columns that took such a text, those that refused it by a check, and the tables that had no row."""

    taken: set[tuple[str, str]] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)


def plant(dsn: str) -> Planted:
    """Over what is there, as nobody does who keeps to the functions: each is to be shown as what it is."""
    planted = Planted()
    with psycopg.connect(dsn, autocommit=True) as connection:
        # also what refers to another row, which is written over as well, and what would be told of it
        connection.execute("set session_replication_role = replica")
        for statement in ROWS.split(";\n"):
            with contextlib.suppress(psycopg.errors.UniqueViolation):  # there is one already
                connection.execute(statement)
        for table, column, kind in connection.execute(COLUMNS).fetchall():
            if (table, column) in KEPT:
                continue
            query = SQL("select tableoid::regclass::text, ctid::text, {} from rota.{}").format(
                Identifier(column), Identifier(table)
            )
            rows = connection.execute(query).fetchall()
            if not rows and _insert_one(connection, table):
                rows = connection.execute(query).fetchall()
            if not rows:
                planted.empty.add(table)
            elif sum(_write(connection, table, column, kind, number, *row) for number, row in enumerate(rows)):
                planted.taken.add((table, column))
            else:
                planted.refused.add((table, column))
        connection.execute(AGAIN)
    return planted


NEEDED = """
    select attribute.attname, format_type(attribute.atttypid, null)
    from pg_attribute as attribute
    where attribute.attrelid = format('rota.%%I', %s::text)::regclass
      and attribute.attnum > 0
      and not attribute.attisdropped
      and attribute.attnotnull
      and not attribute.atthasdef
      and attribute.attidentity = ''
"""
PLAIN = {"text": "a", "uuid": "00000000-0000-0000-0000-000000000001", "boolean": "true", "jsonb": "{}", "text[]": "{a}"}


def _insert_one(connection: psycopg.Connection[Any], table: str) -> bool:
    """A row of the least that a table takes; whether it took it."""
    needed = connection.execute(NEEDED, [table]).fetchall()
    values = [PLAIN.get(kind, "now" if kind.startswith(("time", "date")) else "1") for _, kind in needed]
    names = SQL(", ").join(Identifier(name) for name, _ in needed)
    places = SQL(", ").join(SQL("%s") for _ in needed)
    try:
        connection.execute(SQL("insert into rota.{} ({}) values ({})").format(Identifier(table), names, places), values)
    except psycopg.errors.CheckViolation:
        return False
    return True


def _write(
    connection: psycopg.Connection[Any], table: str, column: str, kind: str, number: int, home: str, ctid: str, old: Any
) -> bool:
    """The longest form that is taken; the number keeps what is unique so."""
    for text in (WHOLE, SHORTER, SHORTEST):
        for value in _values(column, kind, f"{text}{number}", old):
            try:
                connection.execute(
                    SQL("update rota.{} set {} = %s where tableoid = %s::regclass and ctid = %s::tid").format(
                        Identifier(table), Identifier(column)
                    ),
                    [value, home, ctid],
                )
            except (psycopg.errors.CheckViolation, psycopg.errors.ProgramLimitExceeded):
                continue
            return True
    return False


def _values(column: str, kind: str, text: str, old: Any) -> Iterator[Any]:
    if kind == "text[]":
        yield [text, "plain"]
    elif kind not in ("jsonb", "json"):
        yield text
    elif column in PAYLOADS:
        yield json.dumps({text: text, "nested": [{"deep": text}]})
    else:
        yield json.dumps(_with_texts(old, text))


def _with_texts(value: Any, text: str) -> Any:
    """The same with this text in place of every text."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [_with_texts(each, text) for each in value]
    if isinstance(value, dict):
        return {name: _with_texts(each, text) for name, each in value.items()}
    return value


class Reader(HTMLParser):
    """Reads a page as a browser does, and keeps what must not be there: elements, attributes and addresses that came from a text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if MARK in tag:
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if MARK in name or name.startswith("on") or name == "style":
                self.found.append(f"{tag} {name}={value}")
            if name in ("href", "src", "action", "formaction", "xlink:href") and urlsplit((value or "").strip()).scheme:
                self.found.append(f"{tag} {name}={value}")
        if tag == "script" and dict(attrs).get("src") is None:
            self.found.append("a script within the page")

    def handle_comment(self, data: str) -> None:
        self.found.append(f"<!--{data}-->")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader
