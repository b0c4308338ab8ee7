"""Keeping arguments from those who look: besides what tasks redact, what the dashboard was told to.

A name is looked for in arguments, results and at any depth of them; what stood under it is blotted out of errors and notes as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rota.blot import MASK, blotted, forms
from rota.errors import ConfigurationError
from rota.jobs.bulk.view import Bulk
from rota.jobs.facets import Facets
from rota.jobs.job import AttemptError, Job
from rota.jobs.letters import Letter
from rota.jobs.redact import texts_in
from rota.pollers.inspect import ParkedRow
from rota.projections.inspect import ProjectionStatus, ProjectionView
from rota.projections.parked import ParkedEvent
from rota.schedules.history import ScheduleRun
from rota.schedules.view import Schedule

__all__ = ["Redaction"]

_EVERYTHING = "*"


class Redaction:
    """What `redact=` says."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        names = (names,) if isinstance(names, str) else tuple(names)
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError(f'redact cannot be {names!r}: it is names of arguments, or "*" for all of them.')
        self._names = frozenset(names)
        self._all = _EVERYTHING in self._names

    def check_search(self, *, error: str | None = None, args: Mapping[str, Any] | None = None) -> None:
        """Refuse to look for what is not to be seen: whoever may guess piece by piece need not read. Raises ConfigurationError."""
        if error is not None and self._names:
            raise ConfigurationError("Errors cannot be searched here, as they may quote arguments that are redacted.")
        hidden = [path for path in args or () if self._all or self._names & set(path.split("."))]
        if hidden:
            raise ConfigurationError(f"Nothing can be found by {', '.join(hidden)} here: it is redacted.")
        # an object or an array, as PostgreSQL writes it, holds what is redacted further down
        whole = [path for path, value in (args or {}).items() if self._names and str(value).lstrip()[:1] in ("{", "[")]
        if whole:
            raise ConfigurationError(
                f"Nothing can be found by all of {', '.join(whole)} here, as part of it may be redacted: search for one value of it, "
                f"such as {whole[0]}.id=1."
            )

    @property
    def is_active(self) -> bool:
        return bool(self._names)

    def job(self, job: Job[Any]) -> Job[Any]:
        """The job as it may be seen."""
        if not self._names:
            return job
        secrets = self._secrets(job.args, job.result)
        return replace(
            job,
            args=self._masked(job.args),
            result=_blot(self._masked(job.result), secrets),
            errors=tuple(_error(each, secrets) for each in job.errors),
            key=_blot(job.key, secrets),
            tags=tuple(_blot(tag, secrets) for tag in job.tags),
            reason=_blot(job.reason, secrets),
            progress_note=_blot(job.progress_note, secrets),
        )

    def letter(self, letter: Letter) -> Letter:
        if not self._names:
            return letter
        secrets = self._secrets(letter.args)
        return replace(
            letter,
            args=self._masked(letter.args),
            error_message=_blot(letter.error_message, secrets),
            error_trace=_blot(letter.error_trace, secrets),
            key=_blot(letter.key, secrets),
            tags=tuple(_blot(tag, secrets) for tag in letter.tags),
            note=_blot(letter.note, secrets),
        )

    def schedule(self, schedule: Schedule) -> Schedule:
        if not self._names:
            return schedule
        secrets = self._secrets(schedule.args)
        return replace(
            schedule,
            args=self._masked(schedule.args),
            key=_blot(schedule.key, secrets),
            problem=_blot(schedule.problem, secrets),
            note=_blot(schedule.note, secrets),
        )

    def projection(self, view: ProjectionView) -> ProjectionView:
        """What it failed at may be quoted by its error, and nobody knows what that was."""
        if not self._names:
            return view
        parts = tuple(replace(each, **_hush(each)) for each in view.partitions)
        return replace(view, partitions=parts, **_hush(view))

    def status(self, status: ProjectionStatus) -> ProjectionStatus:
        """Statements of other sessions are nobody's business here: of who holds it up, what is known of any session is told."""
        held_by = status.held_by
        if held_by is not None and held_by.pid is not None:
            held_by = replace(held_by, query=None)
        rebuild = None if status.rebuild is None else self.status(status.rebuild)
        return replace(status, view=self.projection(status.view), held_by=held_by, rebuild=rebuild)

    def parked_event(self, event: ParkedEvent) -> ParkedEvent:
        return replace(event, **_hush(event)) if self._names else event

    def parked_row(self, row: ParkedRow) -> ParkedRow:
        return replace(row, **_hush(row)) if self._names else row

    def payload(self, value: Any) -> Any:
        """What an event holds."""
        return self._masked(value) if self._names else value

    def bulk(self, bulk: Bulk) -> Bulk:
        """An error that jobs were chosen by may quote an argument, and so may what PostgreSQL said."""
        if not self._names:
            return bulk
        told = {name: MASK if name == "error" else value for name, value in (bulk.filter or {}).items()}
        return replace(
            bulk, filter=None if bulk.filter is None else told, trouble=None if bulk.trouble is None else MASK
        )

    def run(self, run: ScheduleRun) -> ScheduleRun:
        """Of what it died of the kind alone: its arguments, which that may quote, are not known here."""
        return replace(run, error=run.error.partition(":")[0]) if self._names and run.error else run

    def facets(self, facets: Facets) -> Facets:
        """Without tags, which may have been made of arguments: of all these jobs nobody knows whose."""
        return replace(facets, tags={}) if self._names else facets

    def sentences(self, job: Job[Any], sentences: Sequence[str]) -> tuple[str, ...]:
        """What is said of a job that was not redacted yet."""
        secrets = self._secrets(job.args, job.result) if self._names else []
        return tuple(_blot(each, secrets) for each in sentences)

    def _masked(self, value: Any) -> Any:
        if self._all and value is not None:
            return MASK
        if isinstance(value, dict):
            return {name: MASK if name in self._names else self._masked(held) for name, held in value.items()}
        if isinstance(value, list):
            return [self._masked(held) for held in value]
        return value

    def _secrets(self, *values: Any) -> list[str]:
        return forms(text for value in values for text in self._hidden(value))

    def _hidden(self, value: Any) -> Iterator[str]:
        if self._all:
            yield from texts_in(value)
        elif isinstance(value, dict):
            for name, held in value.items():
                yield from texts_in(held) if name in self._names else self._hidden(held)
        elif isinstance(value, list):
            for held in value:
                yield from self._hidden(held)


def _blot(value: Any, secrets: Sequence[str]) -> Any:
    """The same without these texts in it, whatever it is."""
    if isinstance(value, str):
        return blotted(value, secrets) if secrets else value
    if isinstance(value, dict):
        return {name: _blot(held, secrets) for name, held in value.items()}
    if isinstance(value, list):
        return [_blot(held, secrets) for held in value]
    return value


def _hush(failed: Any) -> dict[str, Any]:
    """What there is to say of a failure, without its words."""
    return {name: MASK for name in ("error_message", "error_trace") if getattr(failed, name)}


def _error(error: AttemptError, secrets: Sequence[str]) -> AttemptError:
    return replace(error, message=_blot(error.message, secrets), trace=_blot(error.trace, secrets))
