"""Dead letters by what they died of: the same failure a thousand times is one thing to decide about.

Letters are grouped when someone looks, by reading them: deaths are rare, and nothing is written for it. A look reads the newest
`most` open letters and says whether those were all; whoever resolves a group walks through all of them.

A group is tried with a few of its letters first, as canaries: how those fare is told with it until they are forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rota.errors import ConfigurationError, NotPossible
from rota.jobs.fingerprint import Fingerprint, fingerprint
from rota.jobs.inspect import database_time
from rota.jobs.job import JobId
from rota.jobs.letters import Filters
from rota.jobs.resolve import acknowledge_chosen, retry_chosen
from rota.postgres.query import Query, Steps, many, statement

__all__ = ["GroupStep", "Groups", "LetterGroup", "acknowledge_group", "check_canary", "group_letters", "retry_group"]

_DAYS = 30
_CANARIES_FOR = timedelta(days=7)
_MOST_CANARIES = 2_000
MOST = 10_000  # letters in one look: about a third of a second


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Open letters that died of the same thing. `message` is what their messages have in common, `last_message` is one of them.

    `frame` is where the error came from in your code, `days` how many died on each of the last thirty days, today last. `retried` is
    what became, by state, of letters of this group that were retried in the last week: how its canaries fare.
    """

    id: str
    error_type: str
    message: str
    frame: str
    letters: int
    first_at: datetime
    last_at: datetime
    last_id: JobId
    last_message: str | None
    tasks: dict[str, int]
    queues: dict[str, int]
    releases: dict[str, int]
    days: tuple[int, ...]
    retried: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups, the largest first. Unless `exact`, only the newest letters were looked at, and there may be more of each."""

    groups: tuple[LetterGroup, ...]
    letters: int
    exact: bool


class _Read(NamedTuple):
    id: JobId
    task: str
    queue: str
    reason: str
    error_type: str | None
    error_message: str | None
    trace: str | None
    died_at: datetime
    release: str | None
    state: str | None

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint(self.reason, self.error_type, self.error_message, self.trace)


# the innermost frames are the last of a trace
_COLUMNS = """
    select
        letter.id, letter.task, letter.queue, letter.reason, letter.error_type, left(letter.error_message, 2000),
        right(letter.error_trace, 8000), letter.died_at,
        coalesce(member.app_release, member.release)
"""
_LETTERS = """
    from {schema}.dead as letter
    left join {schema}.members as member on member.id = letter.member
"""
_FITTING = """
      and (%(queue)s::text is null or letter.queue = %(queue)s)
      and (%(task)s::text is null or letter.task = %(task)s)
"""

OPEN = statement(
    "read_open_letters",
    _COLUMNS
    + ", null"
    + _LETTERS
    + "where letter.resolved_at is null"
    + _FITTING
    + """
      and letter.id < %(before)s
    order by letter.id desc
    limit %(most)s
    """,
)

RETRIED = statement(
    "read_retried_letters",
    _COLUMNS  # noqa: S608 - all parts are written out here
    + """
        , coalesce(
            (select job.state from {schema}.jobs as job where job.id = letter.successor),
            (select 'dead' from {schema}.dead as again where again.id = letter.successor),
            (select done.state from {schema}.history as done where done.id = letter.successor),
            'forgotten'
        )
    """
    + _LETTERS
    + "where letter.resolved_at >= %(since)s and letter.resolution = 'retried'"
    + _FITTING
    + """
    order by letter.resolved_at desc
    limit %(most)s
    """,
)

_NEWEST = 2**63 - 1


def _open(filters: Filters, before: JobId, most: int) -> Query[list[_Read]]:
    params = {"queue": filters.queue, "task": filters.task, "before": before, "most": most}
    return OPEN.query(params, read=many(_Read))


def group_letters(filters: Filters, *, most: int = MOST) -> Steps[Groups]:
    """The groups of the newest open letters of a queue, a task, or all."""
    now: datetime = yield database_time()
    letters: list[_Read] = yield _open(filters, _NEWEST, most + 1)
    is_exact = len(letters) <= most
    del letters[most:]
    params = {"queue": filters.queue, "task": filters.task, "since": now - _CANARIES_FOR, "most": _MOST_CANARIES}
    retried: list[_Read] = yield RETRIED.query(params, read=many(_Read))
    by_print: dict[Fingerprint, list[_Read]] = {}
    for letter in letters:
        by_print.setdefault(letter.fingerprint, []).append(letter)
    fared: dict[str, Counter[str]] = {}
    for letter in retried:
        fared.setdefault(letter.fingerprint.id, Counter())[letter.state or "forgotten"] += 1
    groups = [_group(seen, found, now, fared.get(seen.id, {})) for seen, found in by_print.items()]
    groups.sort(key=lambda group: (-group.letters, group.id))
    return Groups(tuple(groups), len(letters), is_exact)


def _group(seen: Fingerprint, letters: Sequence[_Read], now: datetime, fared: dict[str, int]) -> LetterGroup:
    newest = letters[0]
    days = Counter((now.astimezone(UTC).date() - letter.died_at.astimezone(UTC).date()).days for letter in letters)
    return LetterGroup(
        seen.id,
        seen.error_type,
        seen.message,
        seen.frame,
        len(letters),
        min(letter.died_at for letter in letters),
        max(letter.died_at for letter in letters),
        newest.id,
        newest.error_message,
        _counted(letter.task for letter in letters),
        _counted(letter.queue for letter in letters),
        _counted(letter.release for letter in letters if letter.release is not None),
        tuple(days[back] for back in range(_DAYS - 1, -1, -1)),
        dict(fared),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


@dataclass(frozen=True, slots=True)
class GroupStep:
    """How far a change of a group is: how many letters are resolved, the jobs made of them, and before which id to go on."""

    resolved: int = 0
    jobs: tuple[JobId, ...] = ()
    before: JobId = _NEWEST
    found: bool = False
    finished: bool = False


def check_canary(canary: int | None) -> int | None:
    if canary is not None and (not isinstance(canary, int) or isinstance(canary, bool) or canary < 1):
        raise ConfigurationError(f"canary cannot be {canary!r}: it is how many letters of the group are tried first.")
    return canary


def retry_group(group: str, so_far: GroupStep, channel: str, actor: str, canary: int | None) -> Steps[GroupStep]:
    """Retry the next letters of the group, the newest first; with `canary` only so many in all."""

    def retry(ids: Sequence[JobId]) -> Steps[Sequence[JobId]]:
        if canary is None:
            return retry_chosen(ids, channel, actor, {"group": group})
        return retry_chosen(ids[: canary - so_far.resolved], channel, actor, {"group": group, "canary": canary})

    done = yield from _resolve(group, so_far, retry)
    if canary is not None and done.resolved >= canary:
        return replace(done, finished=True)
    return done


def acknowledge_group(group: str, so_far: GroupStep, actor: str, note: str) -> Steps[GroupStep]:
    """Put the next letters of the group away."""
    done = yield from _resolve(group, so_far, lambda ids: acknowledge_chosen(ids, actor, note, {"group": group}))
    return replace(done, jobs=())


def _resolve(
    group: str, so_far: GroupStep, resolve: Callable[[Sequence[JobId]], Steps[Sequence[JobId]]]
) -> Steps[GroupStep]:
    letters: list[_Read] = yield _open(Filters(), so_far.before, 1_000)
    ids = [letter.id for letter in letters if letter.fingerprint.id == group]
    done: Sequence[JobId] = (yield from resolve(ids)) if ids else ()
    finished, found = len(letters) < 1_000, so_far.found or bool(ids)
    if finished and not found:
        raise NotPossible(f"No open letter is in the group {group!r}. `rota dead groups` tells which groups there are.")
    before = letters[-1].id if letters else so_far.before
    return GroupStep(so_far.resolved + len(done), (*so_far.jobs, *done), before, found, finished)
