"""Writes docs/reference/ from the code: `python docs/make_reference.py`.

The pages are checked in, and a test compares them with what this makes, so they cannot say what the code does not.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import logging
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import click

import rota
import rota.embedded
import rota.testing
from rota import errors, facts
from rota.cli.main import rota as command
from rota.dashboard.api.openapi import text as openapi_text
from rota.events.logs import EventLogs
from rota.events.types import EventTypes
from rota.integrations.logging import words
from rota.jobs.batches import Batches
from rota.jobs.bulk.bulks import Bulks
from rota.jobs.dead import Dead
from rota.jobs.definition import BoundTask
from rota.jobs.facets import Facets
from rota.jobs.groups import Groups, LetterGroup
from rota.jobs.middleware import Middleware
from rota.jobs.queue import Jobs
from rota.jobs.queues import Queues
from rota.jobs.rounds import RoundSettings
from rota.jobs.search import JobsFound
from rota.jobs.trends import Depth, HeatCell, Trend, TrendBucket, Trends
from rota.jobs.wanted import JobFilters
from rota.jobs.worker import WorkerSettings
from rota.leases.inspect import LeaderLane, LeaderView, TermView
from rota.leases.leaders import Leaders
from rota.leases.leadership import Leadership
from rota.leases.lock import Lock
from rota.leases.marks import Mark
from rota.leases.member_view import MemberView
from rota.leases.steer import Members
from rota.leases.trust import LeaseSettings
from rota.on_event import OnEvent
from rota.pollers.check import PollerCheck
from rota.pollers.index import MissingIndex
from rota.pollers.inspect import Backlog
from rota.pollers.pollers import Pollers
from rota.pollers.tally import Durations, PollerTally
from rota.postgres.audit import Audit, AuditEntry, AuditPage
from rota.postgres.vitals import HorizonHeld, OpenTransaction, TableVitals, Vitals
from rota.projections.feed import Lag
from rota.projections.horizon import HorizonHolder
from rota.projections.projections import Projections
from rota.schedules.declare import Declarations
from rota.schedules.definition import ScheduleOptions
from rota.schedules.emit import Emit
from rota.schedules.schedules import Schedules
from rota.schedules.timeline import ScheduleLane, Timeline
from rota.service.resources import Resources
from rota.testing import plugin

FOLDER = Path(__file__).parent / "reference"
SOURCE = Path(rota.__file__).parent
OPENAPI = SOURCE / "dashboard" / "api" / "openapi.json"
MADE = "<!-- Made by docs/make_reference.py from the code; change the code, then run `make docs`. -->"

VARIABLES = {
    "ROTA_DATABASE_URL": "The database. Beats `DATABASE_URL`, which beats libpq's own variables (`PGHOST`, `PGSERVICE` and so on).",
    "ROTA_SCHEMA": "The schema of Rota's tables. Default: `rota`.",
    "ROTA_ENVIRONMENT": "A label such as `production`. A database that carries another label is refused.",
    "ROTA_LEASE": "How long a silent process is believed to be alive, such as `15s`. At least 1.5 seconds. Default: 15 seconds.",
    "ROTA_SCHEDULE_POLL": "How often the scheduler looks although nothing told it to, such as `30s`: what a lost message may cost. "
    "From 0.1 seconds to an hour. Default: 5 seconds.",
    "ROTA_RELEASE": "What you call this version of your code, such as a tag or a commit: it marks deploys.",
    "ROTA_JOB_LOGS": "From which level on what bodies log is kept with their jobs: `debug`, `info`, `warning`, `error`, `critical`, a "
    "number, or `off`. Default: `warning`.",
    "ROTA_DRAIN_WINDOW": "How long a web process serves requests after a signal, such as `5s`. Default: 5 seconds.",
    "ROTA_GRACE": "How long jobs and open requests of a web process have to finish after a signal. Default: 25 seconds.",
    "ROTA_DASHBOARD_AUTH": "Who may come into `rota dashboard`: `user:password`, or a token.",
    "ROTA_DRAIN_TOKEN": "Opens `POST /health/drain` of a web process to who sends it as `Authorization: Bearer ...`.",
    "ROTA_HEALTH_PORT": "The port that `rota worker` serves health on, and that `rota health` asks.",
    "ROTA_HEALTH_URL": "Where `rota health` asks, if not on this machine.",
    "ROTA_LIVE_LIMIT": "How long an event loop or the thread that keeps the lease may stand still until `/health/live` is 503, such "
    "as `30s`. Default: 30 seconds.",
    "ROTA_LOG_FORMAT": "How Rota's own commands log: `text` or `json`. Default: `text`.",
    "ROTA_LOG_LEVEL": "From which level on they do: `debug`, `info`, `warning`, `error` or `critical`. Default: `info`.",
    "ROTA_POSTGRES_BIN": "Folder of the PostgreSQL programs the embedded server runs.",
    "ROTA_POSTGRES_DATA": "Folder of the embedded server. Default: `.rota/postgres` in the current folder.",
    "ROTA_POSTGRES_TCP": "With `1` the embedded server listens on loopback TCP, with a password, instead of a Unix socket.",
    "ROTA_POSTGRES_PRIVILEGES": "`namespace` or `nobody`: how root gives up root for new data. It exists for Rota's own tests.",
    "ROTA_EPOCH": "Set by `rota leaders exec` for the program it runs: the epoch of its term.",
    "ROTA_LEADERSHIP": "Set by `rota leaders exec` for the program it runs: the name that it leads.",
    "ROTA_TEST_DATABASE_URL": "The server the pytest plugin makes its databases on, instead of an embedded one.",
}

MADE_BY_US = {
    *("rota.Task", "rota.RunningJob", "rota.Transaction", "rota.Term"),
    *("rota.Poller", "rota.RunningPoll", "rota.PollTransaction"),
    *("rota.EventLog", "rota.EventTable"),
    "rota.Projection",
}  # nobody else calls their constructors
OUR_CALLS = {
    "Rota": {"around", "enqueue_plan"},
    "Package": {"needs"},
    "Resources": {"add", "check", "given", "join", "overridden", "plan"},
    "Middleware": {"admit", "admit_all", "run", "wants"},
    "Term": {"end", "give_up", "give_up_sync", "look", "loss", "patience"},
    "Declarations": {"definitions", "kept"},
    "Pollers": {"definitions"},
    "EventLog": {"decode", "source"},
    "EventTable": {"decode"},
    "EventTypes": {"bind", "decode"},
    "Projections": {"definitions"},
}  # methods that only the library itself calls

OBJECTS: dict[str, tuple[str, Any]] = {
    "jobs": ("`app.jobs`: find jobs, wait for them, end them, and ask why they do not run", Jobs),
    "filters": ("What `app.jobs.search()` and `app.jobs.count()` choose by", JobFilters),
    "found": ("What `app.jobs.search()` returns", JobsFound),
    "facets": ("What `app.jobs.count()` returns", Facets),
    "dead": ("`app.dead`: dead letters", Dead),
    "groups": ("What `app.dead.groups()` returns", Groups),
    "group": ("A group of dead letters", LetterGroup),
    "schedules": ("`app.schedules`: schedules at run time", Schedules),
    "timeline": ("What `app.schedules.timeline()` returns", Timeline),
    "lane": ("A lane of it", ScheduleLane),
    "options": ("The options of a schedule", ScheduleOptions),
    "declared": ("`app.cron` and `app.every`: schedules in code", Declarations),
    "emit": ("`app.emit`: events that schedules listen to", Emit),
    "override": ("`app.override`: what stands in for a resource", Resources),
    "middleware": ("`app.middleware`: what goes around every job", Middleware),
    "pollers": ("`app.poller` and `app.pollers`: tables of yours that are polled", Pollers),
    "check": ("What `poller.check()` returns", PollerCheck),
    "missing": ("An index that a check misses", MissingIndex),
    "backlog": ("What `poller.backlog()` returns", Backlog),
    "tally": ("What `app.pollers.tally()` has for each poller", PollerTally),
    "durations": ("The durations of a tally", Durations),
    "events": ("`app.event_log` and `app.event_table`: events, in logs and in tables of yours", EventLogs),
    "types": ("`log.event` and `log.upcast`: the types of events", EventTypes),
    "projections": ("`app.projection` and `app.projections`: readers of events", Projections),
    "on_event": ("`app.on_event`: a job for each event", OnEvent),
    "lag": ("What waits for a projection", Lag),
    "horizon": ("Who keeps a projection from reading", HorizonHolder),
    "leadership": ("What `app.leadership(name)` returns", Leadership),
    "lock": ("What `app.lock(name)` returns", Lock),
    "leaders": ("`app.leaders`: who leads what", Leaders),
    "queues": ("`app.queues`: pausing, limiting and weighing queues", Queues),
    "trends": ("`app.trends`: how much was done when, and how long it took", Trends),
    "trend": ("What `app.trends.series()` returns", Trend),
    "bucket": ("A bucket of a trend", TrendBucket),
    "heat": ("What `app.trends.heat()` lists", HeatCell),
    "depth": ("What `app.trends.depths()` lists", Depth),
    "mark": ("What `app.trends.marks()` lists", Mark),
    "vitals": ("What `app.vitals()` returns", Vitals),
    "table": ("A table in it", TableVitals),
    "transaction": ("An open transaction in it", OpenTransaction),
    "held": ("Who holds back the removal of dead rows", HorizonHeld),
    "audit": ("`app.audit`: who changed what by hand", Audit),
    "page": ("What `app.audit.list()` returns", AuditPage),
    "entry": ("An entry of the audit", AuditEntry),
    "batches": ("`app.batches`: many jobs under one handle", Batches),
    "bulk": ("`app.bulk`: many jobs changed at once", Bulks),
    "leader": ("What `app.leaders.list()` lists", LeaderView),
    "term": ("What `app.leaders.terms()` lists", TermView),
    "leader_lane": ("What `app.leaders.lanes()` lists", LeaderLane),
    "facts": ("`app.facts`: hear what happens", facts.Facts),
    "using": ("What `task.using(...)` returns", BoundTask),
    "members": ("`app.members`: which processes there are, and having one rest or end", Members),
    "member": ("What `app.members()` lists", MemberView),
}

SAMPLES: dict[str, Any] = {
    "abandoned": 0,
    "action": "cancel",
    "added": ("nightly-report",),
    "attempt": 1,
    "bulk": 7,
    "by": "ana",
    "changed": (),
    "concurrency": 20,
    "created": 3,
    "done": 1000,
    "dropped": 1,
    "elsewhere": 0,
    "ends": 7,
    "epoch": 1767225600000,
    "error": "server closed the connection",
    "events": 500,
    "failed": 0,
    "fate": "queued",
    "find": "select feeds.digest from public.feeds where pg_column_size(jsonb_build_array(...)) > 2635",
    "finished": 12,
    "given_out": 12,
    "handed_back": 3,
    "hindered": (),
    "holder": "web-1:4711",
    "hook": "switch",
    "ids": (7, 8),
    "job": 42,
    "jobs": 12,
    "key": [7],
    "kind": "resigned",
    "roles": ("shop_jobs",),
    "skipped": 3,
    "state": "finished",
    "statements": 9,
    "left": (),
    "lines": 1200,
    "losses": 1,
    "member": UUID("6ba7b810-9dad-41d1-80b4-00c04fd430c8"),
    "name": "web-1:4711",
    "number": 1,
    "order_xid": 7412,
    "parked": False,
    "part": "jobs: claim",
    "pause": 600.0,
    "poller": "fetch_feeds",
    "position": 1205,
    "projection": "totals",
    "build": 1,
    "partition": None,
    "problem": "cron='61 * * * *': the minute cannot be '61': 61 is not within 0-59.",
    "queue": "mail",
    "queues": None,
    "reason": "suspected",
    "removed": 250,
    "retry_in": 1.5,
    "rows": 100,
    "runs": 1,
    "seconds": 0.25,
    "stack": '  File "tasks.py", line 12, in resize\n    time.sleep(60)',
    "waited": 0.2,
    "task": "send_welcome",
    "tasks": ("send_welcome",),
    "token": 1,
    "version": 1,
    "wish": "quiet",
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")
    OPENAPI.write_text(openapi_text(), "utf-8")


def pages() -> dict[str, str]:
    """The text of every reference page, by file name."""
    made = {
        "cli.md": cli(),
        "api.md": api(),
        "testing.md": testing(),
        "settings.md": settings(),
        "errors.md": errors_page(),
        "facts.md": facts_page(),
    }
    return {name: f"{MADE}\n\n{text.strip()}\n" for name, text in made.items()}


def cli() -> str:
    lines = ["# The command line", "", "Look up every command and option. Data go to stdout, words to stderr.", ""]
    for context, each in commands(command, None):
        lines += [f"## {context.command_path}", "", f"`{usage(context, each)}`", "", paragraphs(each.help or ""), ""]
        records = [record for option in each.params if (record := option.get_help_record(context))]
        lines += [f"- `{names}`{f': {text}' if text else ''}".replace("  [", " [") for names, text in records]
        lines.append("")
    return "\n".join(lines)


def commands(each: click.Command, parent: click.Context | None) -> Iterator[tuple[click.Context, click.Command]]:
    context = click.Context(each, info_name="rota" if parent is None else each.name, parent=parent)
    yield context, each
    if isinstance(each, click.Group):
        for name in each.list_commands(context):
            child = each.get_command(context, name)
            assert child is not None
            yield from commands(child, context)


def usage(context: click.Context, each: click.Command) -> str:
    return " ".join([context.command_path, *each.collect_usage_pieces(context)])


def api() -> str:
    lines = [
        "# The Python API",
        "",
        "Look up every public name of `rota`, and the objects that hang on an app. Where a method has a twin that ends in",
        "`_sync`, the plain name is for async code and the twin does the same for sync code. Wherever a duration is taken, it is",
        'a number of seconds, a `timedelta`, or text such as `"90s"`, `"5m"` or `"1h 30m"`.',
        "",
    ]
    for name in rota.__all__:
        value = getattr(rota, name)
        if name == "__version__" or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        lines += described(f"rota.{name}", value)
        if name == "Rota":
            lines += [
                "#### app.task, app.resource",
                "",
                "`@app.task` and `@app.resource` are [`Package.task` and `Package.resource`](#rotapackage) of the app's own tasks.",
                "",
            ]
    for title, value in OBJECTS.values():
        lines += described(title, value, plain_title=True)
    lines += ["## Errors", "", "All errors are listed in [Errors and exit codes](errors.md).", ""]
    return "\n".join(lines)


def testing() -> str:
    lines = [
        "# The test kit",
        "",
        "Look up the fixtures of the pytest plugin and the names of `rota.testing`.",
        "",
        "## Fixtures",
        "",
    ]
    for name, value in vars(plugin).items():
        function = getattr(value, "__wrapped__", None) or getattr(value, "_get_wrapped_function", lambda: None)()
        if name.startswith("rota_") and function is not None and name != "rota_run_folder":
            lines += [f"### {name}", "", paragraphs(function.__doc__), ""]
    lines += ["The ini option `rota_app` names your app, as in `myproject.jobs:app`.", ""]
    for name in rota.testing.__all__:
        lines += described(f"rota.testing.{name}", getattr(rota.testing, name))
    return "\n".join(lines)


def described(title: str, value: Any, *, plain_title: bool = False) -> list[str]:
    """A class with its public methods, or a function: signature as written in the code, then its docstring."""
    lines = [f"## {title}" if plain_title else f"## `{title}`", ""]
    if not inspect.isclass(value):
        return [*lines, signature(value, title), "", paragraphs(value.__doc__), ""]
    tree = definition(value)
    constructor = next((node for node in functions(tree) if node.name == "__init__"), None)
    if constructor is not None and not plain_title and title not in MADE_BY_US:
        lines += [written(title, constructor, value), ""]
    lines += [paragraphs(own_doc(value)), ""]
    if constructor is not None and (said := ast.get_docstring(constructor)):
        lines += [paragraphs(said), ""]
    if dataclasses.is_dataclass(value) or typing.is_typeddict(value):
        lines += [*(f"- `{field}`" for field in fields(value)), ""]
    known = {node.name for node in functions(tree)}
    for node in functions(tree):
        if node.name.startswith("_") or node.name.removesuffix("_sync") in known - {node.name} or is_overload(node):
            continue
        if node.name in OUR_CALLS.get(value.__name__, ()):
            continue
        twin = next((n for n in functions(tree) if n.name == f"{node.name}_sync"), None)
        lines += [f"#### {node.name}" + (f" and {twin.name}" if twin else ""), ""]
        said = ast.get_docstring(node) or (ast.get_docstring(twin) if twin else None)
        lines += [written(node.name, node, value), "", *([paragraphs(said), ""] if said else [])]
    return lines


def definition(cls: type) -> ast.ClassDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return tree


def functions(tree: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).endswith("overload") for each in node.decorator_list)


def signature(function: Any, title: str) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return written(title, node, function)


def written(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: Any) -> str:
    """The call as its author wrote it, without `self`; a property as its type."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return f"`{name}: {returns.removeprefix(' -> ')}`"
    # `**unknown` is there to be refused with words
    arguments = ", ".join(
        each for each in parameters(node.args, owner) if each not in ("self", "cls", "**unknown: Any")
    )
    streams = any(isinstance(part, ast.Yield) for part in ast.walk(node))
    asked = ("async for … in " if streams else "await ") if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"`{asked}{name}({arguments.removeprefix('/, ')}){returns}`"


def parameters(given: ast.arguments, owner: Any) -> Iterator[str]:
    by_position = [*given.posonlyargs, *given.args]
    without = len(by_position) - len(given.defaults)
    for place, each in enumerate(by_position):
        yield parameter(each, given.defaults[place - without] if place >= without else None, owner)
        if place + 1 == len(given.posonlyargs):
            yield "/"
    if given.vararg is not None:
        yield f"*{ast.unparse(given.vararg)}"
    elif given.kwonlyargs:
        yield "*"
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield parameter(each, default, owner)
    if given.kwarg is not None:
        yield f"**{ast.unparse(given.kwarg)}"


def parameter(given: ast.arg, default: ast.expr | None, owner: Any) -> str:
    if default is None:
        return ast.unparse(given)
    # a constant of the module says nothing to a reader; its value does
    known = vars(inspect.getmodule(owner)).get(default.id) if isinstance(default, ast.Name) else None
    value = ast.unparse(default) if known is None else repr(known)
    return f"{ast.unparse(given)} = {value}" if given.annotation is not None else f"{given.arg}={value}"


def fields(cls: Any) -> Iterator[str]:
    for node in definition(cls).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
            yield f"{node.target.id}: {ast.unparse(node.annotation)}{default}"


def own_doc(cls: type) -> str:
    """A dataclass without a docstring is given its signature as one, which tells nothing here."""
    said = inspect.cleandoc(cls.__doc__ or "")
    return "" if said.startswith(f"{cls.__name__}(") else said


def paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("<", "&lt;")


def settings() -> str:
    used = {name for file in SOURCE.rglob("*.py") for name in re.findall(r"ROTA_[A-Z_]*[A-Z]", file.read_text("utf-8"))}
    if used != set(VARIABLES):
        raise SystemExit(
            f"docs/make_reference.py describes other variables than the code reads: {used ^ set(VARIABLES)}"
        )
    lines = [
        "# Settings and environment variables",
        "",
        "Look up what can be set, and why each default is what it is. Arguments beat the environment; the arguments of",
        "`Rota(...)` are in [the Python API](api.md#rotarota).",
        "",
        "## Environment variables",
        "",
        "| variable | what it says |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in VARIABLES.items()),
        "",
        "## The lease",
        "",
        "The length is set by `Rota(lease=...)` or `ROTA_LEASE`; the rest follows from it.",
        "",
        *commented(LeaseSettings),
        "",
        "## A worker",
        "",
        "Queues and concurrency are arguments of `app.work` and `rota worker`; the rest is fixed today.",
        "",
        *commented(WorkerSettings, RoundSettings),
        "",
    ]
    return "\n".join(lines)


def commented(*classes: Any) -> Iterator[str]:
    """The fields of settings classes with the reasons that stand beside them in the code."""
    yield "| setting | default | why |"
    yield "|---|---|---|"
    # a value the formatter broke over three lines reads as one
    source = re.sub(r"\(\n\s+(\S+)(\s+#.*)\n\s+\)", r"\1\2", "".join(map(inspect.getsource, classes)))
    for name, default, why in re.findall(r"^ {4}(\w+): [^=\n]+ = (.+?)(?:  #\s*(.*))?$", source, re.MULTILINE):
        yield f"| `{name}` | `{default}` | {why} |"


def errors_page() -> str:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    classes = [getattr(errors, name) for name in errors.__all__]
    lines = [
        "# Errors and exit codes",
        "",
        "Look up what to catch, and what an exit code of `rota` means. Every message says what happened, why, and what to do next.",
        "",
        "## The tree",
        "",
        "```text",
        textwrap.dedent(tree),
        "```",
        "",
        "The names in `rota.__all__` are imported from `rota`, the others from `rota.errors`.",
        "",
        "## Exit codes of `rota`",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | failed: any error that is not named below, `ForeignDatabase` among them |",
        "| 2 | wrong usage, or something in the configuration cannot work |",
        '| 3 | someone else leads, or a term was lost: `on_held="exit"`, `rota leaders exec`; also a lock that was not free |',
        "| 4 | the database is unavailable |",
        "| 5 | the schema needs `rota migrate`, or is too new |",
        "| 6 | `rota health`: the process is not well, or does not answer; `rota doctor` found a problem; `rota postgres status`: no "
        "server is running |",
        "",
        "## Which error ends with which code",
        "",
        "| error | code | what it means |",
        "|---|---|---|",
        *(f"| `{each.__name__}` | {each.exit_code} | {own_doc(each)} |" for each in classes),
        "",
    ]
    return "\n".join(lines)


def facts_page() -> str:
    lines = [
        "# Facts",
        "",
        "Look up what Rota tells about itself: each fact, its fields, and the line that `rota.integrations.logging` makes of it.",
        "[Operating](../guides/operating.md#facts-and-logging) shows how to listen.",
        "",
    ]
    for name in sorted(facts.__all__):
        cls = getattr(facts, name)
        if name in ("Fact", "Facts"):
            continue
        lines += [f"## {name}", "", own_doc(cls), ""] if own_doc(cls) else [f"## {name}", ""]
        lines += [*(f"- `{field}`" for field in fields(cls)), ""]
        said = words(sample(cls))
        if said is not None:
            lines += ["```text", f"{logging.getLevelName(said[0])}  {said[1]}", "```", ""]
    return "\n".join(lines)


def sample(cls: Any) -> facts.Fact:
    values = {name: SAMPLES[name] for name in cls.__match_args__}
    if cls in (facts.JobFailed, facts.JobRaisedAfterSuccess):
        values["error"] = TimeoutError("bank busy")
    if cls in (facts.RowFailed, facts.RowRaisedAfterSuccess):
        values["error"] = TimeoutError("no answer from example.com")
    if cls in (facts.ProjectionFailed, facts.ProjectionStopped, facts.EventParked):
        values["error"] = KeyError("sum")
    if cls is facts.HookHindered:
        values["error"] = TimeoutError("canceling statement due to lock timeout")
    if cls is facts.ProjectionHindered:
        values |= {
            "holder": "pid 4711 (idle in transaction, open for 600 s in database shop): update stock ...",
            "seconds": 5.0,
        }
    if cls is facts.ProjectionStalled:
        values["seconds"] = 30.0
    if cls is facts.RowPolled:
        values |= {"fate": "gone", "changed": False}
    if cls is facts.PollerHindered:
        values["error"] = "PostgreSQL refused a statement of Rota's: permission denied for table feeds"
    if cls is facts.JobLost:
        values["error"] = "its worker 6ba7b810-9dad-41d1-80b4-00c04fd430c8 was lost"
    if cls is facts.JobCancelled:
        values["reason"] = "the user is gone"
    if cls in (
        facts.LeadershipGained,
        facts.LeadershipEnded,
        facts.StandingBy,
        facts.SingletonFailed,
        facts.TakeoverHindered,
    ):
        values["name"] = "indexer"
    if cls.__name__.startswith("Schedule") and "name" in values:
        values["name"] = "nightly-report"
    if cls is facts.LeadershipEnded:
        values["reason"] = "it was resigned"
    if cls is facts.SingletonFailed:
        values |= {"error": TimeoutError("index busy"), "pause": 1.5}
    if cls is facts.SchedulesNotDeclared:
        values |= {"error": TimeoutError("a row is locked"), "pause": 30.0}
    if cls is facts.MigrationApplied:
        values["name"] = "kernel"
    if cls.__name__.startswith("Stage"):
        values["name"] = "pollers"
    if cls is facts.StageFailed:
        values["error"] = TimeoutError("it was not done within 10 s")
    if cls is facts.EndingBegan:
        values["reason"] = "SIGTERM"
    if cls in (facts.LoopBlocked, facts.LoopFree, facts.Ended):
        values["seconds"] = 1.5
    assert values.keys() == set(cls.__match_args__)
    made: facts.Fact = cls(**values)
    return made


if __name__ == "__main__":
    main()
