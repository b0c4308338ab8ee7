"""What can be read: each a path, its parameters, and what comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from rota.blot import MASK
from rota.dashboard.acting.bulk import read_ids
from rota.dashboard.filters import job_filters, when
from rota.dashboard.page import Look
from rota.dashboard.pages.poller import own_poller
from rota.dashboard.pages.projection import StoredEvent, own_projection
from rota.errors import ConfigurationError, NotPossible
from rota.jobs.bulk.action import ACTIONS as BULK_KINDS
from rota.jobs.bulk.start import BulkPreview
from rota.jobs.bulk.view import Bulk
from rota.jobs.explain import Explanation
from rota.jobs.facets import Facets
from rota.jobs.groups import LetterGroup
from rota.jobs.inspect import STATES
from rota.jobs.job import Job
from rota.jobs.letters import REASONS, Letter
from rota.jobs.logs.read import LogLine
from rota.jobs.queue_view import QueueView
from rota.jobs.search import JobsFound
from rota.jobs.trends import Depth, HeatCell, Trend
from rota.leases.inspect import LeaderLane, LeaderView, TermView
from rota.leases.lock_view import LockView
from rota.leases.marks import Mark
from rota.leases.member_view import MemberView
from rota.pollers.check import PollerCheck
from rota.pollers.inspect import HeldRow, ParkedRow, PollerView
from rota.postgres.audit import AuditEntry
from rota.postgres.vitals import Vitals, read_vitals
from rota.projections.inspect import ProjectionStatus, ProjectionView
from rota.projections.parked import ParkedEvent
from rota.schedules.history import ScheduleRun
from rota.schedules.view import STATES as SCHEDULE_STATES
from rota.schedules.view import Schedule

__all__ = ["ENDPOINTS", "Endpoint", "Param", "Values", "seen"]

Values = Mapping[str, Any]

_MOST = 200
_USUAL = 50
_LONGEST = 500
_GROUPED = 2_000  # letters that are looked at
_MOST_PARKED = 1_000


@dataclass(frozen=True)
class Param:
    """A parameter of the query: text, a whole number, or one of `choices`."""

    about: str
    kind: Literal["text", "number", "id"] = "text"
    choices: Sequence[str] = ()
    required: bool = False
    most: int = 2**31 - 1

    def read(self, name: str, text: str) -> Any:
        """Raises ConfigurationError for what does not fit."""
        if self.choices and text not in self.choices:
            raise ConfigurationError(f"{name} cannot be {text[:50]!r}: it is one of {', '.join(self.choices)}.")
        if self.kind == "text":
            if not 1 <= len(text) <= _LONGEST or "\0" in text:
                raise ConfigurationError(f"{name} cannot be that: it is a text of 1 to {_LONGEST} characters.")
            return text
        most = 2**63 - 1 if self.kind == "id" else self.most
        if not text.isascii() or not text.isdigit() or len(text) > 19 or not 1 <= int(text) <= most:
            raise ConfigurationError(f"{name} cannot be {text[:50]!r}: it is a whole number from 1 to {most}.")
        return int(text)

    def schema(self) -> dict[str, Any]:
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        if self.kind == "text":
            return {
                "type": "string",
                "minLength": 1,
                "maxLength": _LONGEST,
                "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$",
            }
        if self.kind == "id":
            return {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}
        return {"type": "integer", "minimum": 1, "maximum": self.most}


@dataclass(frozen=True)
class Endpoint:
    """`gives` is the type of what `read` returns; of a `page` it is that of an item, and `cursor` names where the next begins."""

    path: str
    about: str
    gives: Any
    read: Callable[[Look, Values], Awaitable[Any]]
    params: Mapping[str, Param]
    is_page: bool = False
    cursor: str = ""


_LIMIT = {"limit": Param(f"how many; {_USUAL} unless said", "number", most=_MOST)}
_PAGE = {**_LIMIT, "after": Param("the `next` of the page before", "id")}
_SINCE = {"since": Param("how long ago, such as 6h, or a time with its zone")}
_SEARCHED = {
    "state": Param("those in this state", choices=STATES),
    "queue": Param("those of this queue"),
    "task": Param("those of this task"),
    "tag": Param("those with this tag"),
    "member": Param("those run by the process of this id"),
    "attempt": Param("with so many attempts or more", "number", most=10**6),
    "arg": Param("with this argument, such as user.id=1"),
    "since": Param("settled, or else enqueued, so long ago or at this time, or later"),
    "until": Param("before that"),
}
_NAME = {"name": Param("its name", required=True)}
_LETTERS = {
    "queue": Param("those of this queue"),
    "task": Param("those of this task"),
    "tag": Param("those with this tag"),
    "reason": Param("why they died", choices=REASONS),
    "error": Param("a text in the last error"),
}
_RESOLVED = {"open": False, "resolved": True, "all": None}


def _limit(values: Values) -> int:
    return int(values.get("limit", _USUAL))


async def _jobs(look: Look, values: Values) -> Any:
    return await look.looking.jobs.list(**{**values, "limit": _limit(values)})


async def _search(look: Look, values: Values) -> Any:
    query = look.request.query_params
    filters = job_filters({name: query[name] for name in (*_SEARCHED, "error") if name in query}, look.redaction)
    found = await look.looking.jobs.search(limit=_limit(values), after=values.get("after"), **filters)
    return replace(found, jobs=tuple(look.redaction.job(job) for job in found.jobs))


async def _count(look: Look, values: Values) -> Any:
    query = look.request.query_params
    filters = job_filters({name: query[name] for name in _SEARCHED if name in query}, look.redaction)
    return look.redaction.facets(await look.looking.jobs.count(**filters))


async def _preview(look: Look, values: Values) -> Any:
    query = look.request.query_params
    filters: Any = job_filters({name: query[name] for name in (*_SEARCHED, "error") if name in query}, look.redaction)
    ids = None if "ids" not in values else read_ids(values["ids"].split(","))
    told = await look.looking.bulk.preview(values["action"], ids=ids, **filters)
    return replace(told, samples=tuple(look.redaction.job(job) for job in told.samples))


async def _bulks(look: Look, values: Values) -> Any:
    is_open = {"open": True, "ended": False}.get(values.get("which", ""))
    return await look.looking.bulk.list(open=is_open, limit=_limit(values), after=values.get("after"))


async def _logs(look: Look, values: Values) -> Any:
    lines = await look.looking.jobs.logs(
        values["id"], attempt=values.get("attempt"), after=values.get("after"), limit=_limit(values)
    )
    if not look.redaction.is_active:
        return lines
    messages = look.redaction.sentences(await look.looking.jobs.get(values["id"]), [line.message for line in lines])
    return [replace(line, message=message) for line, message in zip(lines, messages, strict=True)]


async def _series(look: Look, values: Values) -> Any:
    since = when("since", values.get("since", "6h"))
    return await look.looking.trends.series(since, queue=values.get("queue"), task=values.get("task"))


async def _audit(look: Look, values: Values) -> Any:
    since = None if "since" not in values else when("since", values["since"])
    found = await look.looking.audit.list(**{**values, "since": since, "limit": _limit(values)})
    return list(found.entries)


async def _vitals(look: Look, values: Values) -> Any:
    return await look.looking.database.run_steps(read_vitals(look.app.settings.schema))


async def _letters(look: Look, values: Values) -> Any:
    look.redaction.check_search(error=values.get("error"))
    told = {name: value for name, value in values.items() if name != "which"}
    return await look.looking.dead.list(
        **{**told, "limit": _limit(values), "resolved": _RESOLVED[values.get("which", "open")]}
    )


async def _groups(look: Look, values: Values) -> Any:
    found = await look.looking.dead.groups(queue=values.get("queue"), task=values.get("task"), most=_GROUPED)
    if not look.redaction.is_active:
        return list(found.groups)
    # what letters have in common may quote arguments
    return [replace(group, message=MASK, last_message=None) for group in found.groups]


async def _schedules(look: Look, values: Values) -> Any:
    return await look.looking.schedules.list(**{**values, "limit": _limit(values)})


async def _parked_events(look: Look, values: Values) -> Any:
    return await look.looking.projections.parked(values["name"], version=values.get("version"), limit=_limit(values))


async def _projection(look: Look, values: Values) -> Any:
    return await look.looking.projections.show(values["name"], version=values.get("version"))


async def _projection_status(look: Look, values: Values) -> Any:
    own = own_projection(look, values["name"])
    # a look declares nothing: that is for those who read for it
    await look.looking.projections.show(own.name, version=own.version)
    return await own.status()


async def _parked_payload(look: Look, values: Values) -> Any:
    own = own_projection(look, values["name"])
    position = int(values["position"])
    events = await look.looking.projections.parked(own.name, version=own.version, limit=_MOST_PARKED)
    event = next((each for each in events if each.position == position), None)
    if event is None:
        raise NotPossible(f"The event at position {position} is not parked, or not among the first {_MOST_PARKED}.")
    stored = await look.looking.projections.stored(own.name, [event.pair])
    return StoredEvent.of(event.position, stored[0], look.redaction)


async def _poller(look: Look, values: Values) -> Any:
    found = [each for each in await look.looking.pollers.list() if each.name == values["name"]]
    if not found:
        raise NotPossible(f"No process has declared a poller {values['name']!r}.")
    return found[0]


def seen(look: Look, value: Any) -> Any:
    """The value as this user may see it."""
    if isinstance(value, Job):
        return look.redaction.job(value)
    if isinstance(value, Letter):
        return look.redaction.letter(value)
    if isinstance(value, Bulk):
        return look.redaction.bulk(value)
    if isinstance(value, Schedule):
        return look.redaction.schedule(value)
    if isinstance(value, Explanation):
        reasons = look.redaction.sentences(value.job, value.reasons)
        return Explanation(look.redaction.job(value.job), value.state, reasons)
    if isinstance(value, ScheduleRun):
        return look.redaction.run(value)
    if isinstance(value, ProjectionView):
        return look.redaction.projection(value)
    if isinstance(value, ProjectionStatus):
        return look.redaction.status(value)
    if isinstance(value, ParkedEvent):
        return look.redaction.parked_event(value)
    if isinstance(value, ParkedRow):
        return look.redaction.parked_row(value)
    if isinstance(value, list):
        return [seen(look, each) for each in value]
    return value


ENDPOINTS: Sequence[Endpoint] = (
    Endpoint(
        "/jobs",
        "Jobs that fit, the newest first.",
        Job,
        _jobs,
        {
            "state": Param("those in this state", choices=STATES),
            "queue": Param("those of this queue"),
            "task": Param("those of this task"),
            "tag": Param("those with this tag"),
            **_PAGE,
        },
        is_page=True,
        cursor="id",
    ),
    Endpoint(
        "/jobs/{id}", "One job with its errors.", Job, lambda look, values: look.looking.jobs.get(values["id"]), {}
    ),
    Endpoint(
        "/jobs/{id}/explain",
        "Why a job is not running, or how it is, and what would change that.",
        Explanation,
        lambda look, values: look.looking.jobs.explain(values["id"]),
        {},
    ),
    Endpoint(
        "/jobs/search",
        "Jobs found by what they are, the newest first, without reading more than a bound: `searched_to` says how far back that was.",
        JobsFound,
        _search,
        {**_SEARCHED, "error": Param("a text in the error of any attempt"), **_PAGE},
    ),
    Endpoint("/jobs/count", "How many jobs fit, by what they are.", Facets, _count, _SEARCHED),
    Endpoint(
        "/bulk",
        "Changes of many jobs, the last first.",
        Bulk,
        _bulks,
        {"which": Param("all unless said", choices=("open", "ended")), **_PAGE},
        is_page=True,
        cursor="id",
    ),
    Endpoint(
        "/bulk/preview",
        "What a change of many jobs would do, which `actions/bulk.…` begins: how many, some of them, and what is left out and why.",
        BulkPreview,
        _preview,
        {
            "action": Param("what is to be done", choices=tuple(BULK_KINDS), required=True),
            "ids": Param("the jobs themselves, by their ids, with commas between"),
            **_SEARCHED,
            "error": Param("a text in the error of any attempt"),
        },
    ),
    Endpoint(
        "/bulk/{id}",
        "One change of many jobs: how far it is.",
        Bulk,
        lambda look, values: look.looking.bulk.get(values["id"]),
        {},
    ),
    Endpoint(
        "/jobs/{id}/logs",
        "What the body of a job logged.",
        LogLine,
        _logs,
        {"attempt": Param("of this attempt", "number"), **_PAGE},
        is_page=True,
        cursor="id",
    ),
    Endpoint(
        "/trends/series",
        "What was done over time, and how long it waited and ran.",
        Trend,
        _series,
        {**_SINCE, "queue": Param("of this queue"), "task": Param("of this task")},
    ),
    Endpoint(
        "/trends/heat",
        "What each task did in each hour.",
        HeatCell,
        lambda look, values: look.looking.trends.heat(when("since", values.get("since", "24h"))),
        _SINCE,
        is_page=True,
    ),
    Endpoint(
        "/trends/depths",
        "What waited and ran, sampled once a minute.",
        Depth,
        lambda look, values: look.looking.trends.depths(when("since", values.get("since", "1h"))),
        _SINCE,
        is_page=True,
    ),
    Endpoint(
        "/trends/marks",
        "What explains a picture: processes that started or died, failovers, what operators did.",
        Mark,
        lambda look, values: look.looking.trends.marks(when("since", values.get("since", "24h"))),
        _SINCE,
        is_page=True,
    ),
    Endpoint(
        "/dead",
        "Dead letters that fit, the newest first.",
        Letter,
        _letters,
        {**_LETTERS, "which": Param("open ones unless said", choices=tuple(_RESOLVED)), **_PAGE},
        is_page=True,
        cursor="id",
    ),
    Endpoint(
        "/dead/groups",
        "Open dead letters by what they died of, the largest group first.",
        LetterGroup,
        _groups,
        {"queue": Param("those of this queue"), "task": Param("those of this task")},
        is_page=True,
    ),
    Endpoint("/dead/{id}", "One dead letter.", Letter, lambda look, values: look.looking.dead.get(values["id"]), {}),
    Endpoint(
        "/queues",
        "Every queue; first all of them together, under the name null, if something was said about those.",
        QueueView,
        lambda look, values: look.looking.queues.list(),
        {},
        is_page=True,
    ),
    Endpoint("/queue", "One queue.", QueueView, lambda look, values: look.looking.queues.get(values["name"]), _NAME),
    Endpoint(
        "/schedules",
        "Schedules by name.",
        Schedule,
        _schedules,
        {
            "prefix": Param("those whose name begins so"),
            "state": Param("those in this state", choices=SCHEDULE_STATES),
            **_LIMIT,
            "after": Param("the `next` of the page before"),
        },
        is_page=True,
        cursor="name",
    ),
    Endpoint(
        "/schedule", "One schedule.", Schedule, lambda look, values: look.looking.schedules.get(values["name"]), _NAME
    ),
    Endpoint(
        "/schedule/preview",
        "The next slots of a schedule.",
        datetime,
        lambda look, values: look.looking.schedules.preview(values["name"], values.get("n", 10)),
        {**_NAME, "n": Param("how many; 10 unless said", "number", most=_MOST)},
        is_page=True,
    ),
    Endpoint(
        "/schedule/runs",
        "The runs of a schedule with their outcomes, the newest first.",
        ScheduleRun,
        lambda look, values: look.looking.schedules.history(
            values["name"], limit=_limit(values), after=values.get("after")
        ),
        {**_NAME, **_PAGE},
        is_page=True,
        cursor="id",
    ),
    Endpoint(
        "/members",
        "The processes that hold or may hold work, the newest first.",
        MemberView,
        lambda look, values: look.looking.members(ended=values.get("which") == "all", limit=_limit(values)),
        {"which": Param("live ones unless said", choices=("live", "all")), **_LIMIT},
        is_page=True,
    ),
    Endpoint(
        "/leaders", "Who leads what.", LeaderView, lambda look, values: look.looking.leaders.list(), {}, is_page=True
    ),
    Endpoint(
        "/leaders/lanes",
        "Who led what in the last day, and when nobody did.",
        LeaderLane,
        lambda look, values: look.looking.leaders.lanes("24h"),
        {},
        is_page=True,
    ),
    Endpoint(
        "/locks",
        "Who holds a lock of `app.lock`, and who waits for it.",
        LockView,
        lambda look, values: look.looking.leaders.locks(),
        {},
        is_page=True,
    ),
    Endpoint(
        "/leader/terms",
        "The terms of a name, the last first.",
        TermView,
        lambda look, values: look.looking.leaders.terms(values["name"], limit=_limit(values)),
        {**_NAME, **_LIMIT},
        is_page=True,
    ),
    Endpoint(
        "/audit",
        "Who changed what by hand, the last first.",
        AuditEntry,
        _audit,
        {
            "actor": Param("by whom"),
            "action": Param("what"),
            "about": Param("a text in the details"),
            **_SINCE,
            **_PAGE,
        },
        is_page=True,
        cursor="id",
    ),
    Endpoint("/database", "How the database is.", Vitals, _vitals, {}),
    Endpoint(
        "/pollers", "Every poller.", PollerView, lambda look, values: look.looking.pollers.list(), {}, is_page=True
    ),
    Endpoint("/poller", "One poller.", PollerView, _poller, _NAME),
    Endpoint(
        "/poller/held",
        "Rows of a poller that are polled now, those first that have been for longest.",
        HeldRow,
        lambda look, values: look.looking.pollers.held(values["name"], limit=_limit(values)),
        {**_NAME, **_LIMIT},
        is_page=True,
    ),
    Endpoint(
        "/poller/check",
        "How PostgreSQL finds the due rows of a poller of this app, and which index is missing for that.",
        PollerCheck,
        lambda look, values: own_poller(look, values["name"]).check(),
        _NAME,
    ),
    Endpoint(
        "/poller/parked",
        "Rows of a poller whose attempts are used up, by key.",
        ParkedRow,
        lambda look, values: look.looking.pollers.parked(values["name"], limit=_limit(values)),
        {**_NAME, **_LIMIT},
        is_page=True,
    ),
    Endpoint(
        "/projections",
        "Every version of every projection.",
        ProjectionView,
        lambda look, values: look.looking.projections.list(),
        {},
        is_page=True,
    ),
    Endpoint(
        "/projection",
        "One projection: this version of it, or the last.",
        ProjectionView,
        _projection,
        {**_NAME, "version": Param("which", "number")},
    ),
    Endpoint(
        "/projection/builds",
        "The builds of a projection that are at work: the one that readers use, and one that is to take its place.",
        ProjectionView,
        lambda look, values: look.looking.projections.builds(values["name"], version=values.get("version")),
        {**_NAME, "version": Param("which", "number")},
        is_page=True,
    ),
    Endpoint(
        "/projection/status",
        "How far behind a projection of this app is, who holds it up, and when it will have caught up.",
        ProjectionStatus,
        _projection_status,
        _NAME,
    ),
    Endpoint(
        "/projection/parked/event",
        "What a parked event of a projection of this app holds.",
        StoredEvent,
        _parked_payload,
        {**_NAME, "position": Param("its position", "id", required=True)},
    ),
    Endpoint(
        "/projection/parked",
        "Events that a projection could not take in, in the order of the log.",
        ParkedEvent,
        _parked_events,
        {**_NAME, "version": Param("which", "number"), **_LIMIT},
        is_page=True,
    ),
)
