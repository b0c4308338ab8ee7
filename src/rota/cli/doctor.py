"""`rota doctor`: what is wrong, why it matters, and what mends it. The checks are in `rota.runtime.doctor`."""

from __future__ import annotations

import os
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Iterable

import click
from click.core import ParameterSource

from rota.app import Rota
from rota.cli.output import json_option, print_json, say
from rota.cli.target import database_options, find_app
from rota.errors import InvalidDsn
from rota.postgres.dsn import dsn_from_environment
from rota.runtime.budgets import read_budgets
from rota.runtime.doctor import Budgets, Diagnosis, Finding, Patient, examine
from rota.runtime.doctor.finding import Grade

__all__ = ["doctor"]

_CODE = "from the code of the app"
_COUNTED: tuple[Grade, ...] = ("problem", "warning")
_seconds = click.FloatRange(min=0)


@click.command()
@click.argument("app", required=False)
@click.option("--verbose", "-v", is_flag=True, help="Each check with its reason, also where all is well.")
@json_option
@click.option(
    "--old-transaction", type=_seconds, default=300.0, show_default=True, help="Seconds from which one is called old."
)
@click.option(
    "--drain-window",
    type=_seconds,
    help="As told to rota serve; 0 without a web server. [env: ROTA_DRAIN_WINDOW; default: 5]",
)
@click.option("--grace", type=_seconds, help="As told to rota worker or serve. [env: ROTA_GRACE; default: 25]")
@click.option("--graceful-timeout", type=_seconds, default=0.0, help="Of the web server: timeout_graceful_shutdown.")
@click.option("--pre-stop", type=_seconds, default=0.0, help="Seconds that a preStop hook takes.")
@click.option("--probe-period", type=_seconds, help="Seconds between readiness probes; its budget is then checked.")
@click.option("--failure-threshold", type=click.IntRange(min=1), default=3, show_default=True, help="Of these probes.")
@click.option("--termination-grace", type=_seconds, help="terminationGracePeriodSeconds, TimeoutStopSec; then checked.")
@database_options
def doctor(
    app: str | None,
    verbose: bool,
    as_json: bool,
    old_transaction: float,
    drain_window: float | None,
    grace: float | None,
    graceful_timeout: float,
    pre_stop: float,
    probe_period: float | None,
    failure_threshold: int,
    termination_grace: float | None,
    dsn: str | None,
    schema: str | None,
) -> None:
    """What is wrong with this database, this machine and APP, if one is named, and the command that mends it.

    Changes nothing, and takes a second or two whatever is queued. Exits with 0 if nothing is a problem, else with 6; with 4 when
    the database cannot be reached, and with 5 when its tables do not fit.
    """
    told = read_budgets(drain_window, grace)
    budgets = Budgets(
        told.window, told.grace, graceful_timeout, pre_stop, probe_period, failure_threshold, termination_grace
    )
    patient = _patient(click.get_current_context(), app, dsn, schema)
    patient.budgets, patient.old_transaction = budgets, old_transaction
    with patient.app:
        diagnosis = examine(patient)
    if as_json:
        print_json({"exit_code": diagnosis.exit_code, "seconds": diagnosis.seconds, "findings": diagnosis.findings})
    else:
        _print(diagnosis, verbose)
    sys.exit(diagnosis.exit_code)


def _patient(context: click.Context, path: str | None, dsn: str | None, schema: str | None) -> Patient:
    """An app that cannot be imported is a finding, and no reason not to look at the rest."""
    broken = None
    found: Rota | None = None
    if path is not None:
        try:
            found = find_app(path, dsn, schema)
        except InvalidDsn:
            raise
        except (Exception, SystemExit) as error:
            broken = f"{path} cannot be had: {type(error).__name__}: {error}{_place(error)}"
    app = found or Rota(dsn, schema=schema)
    brought = context.get_parameter_source("app") is ParameterSource.DEFAULT_MAP
    source = _source(app, dsn, brought)
    return Patient(
        app,
        path,
        broken,
        source,
        program=context.parent.command_path if context.parent else "rota",
        brings_app=brought,
        named=dsn is not None,
        coded=source == _CODE,
    )


def _place(error: BaseException) -> str:
    """The last line of the user's code that was reached, if any was."""
    ours = (os.path.dirname(__file__), os.path.dirname(os.__file__), "<frozen")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _source(app: Rota, dsn: str | None, brought: bool) -> str:
    """Where the address comes from."""
    if dsn is not None:
        return "from --dsn"
    if brought:
        return "from the settings of the project"
    if app.settings.dsn is None:
        return "the embedded server"
    if app.settings.dsn != dsn_from_environment(os.environ):
        return _CODE
    named = next((name for name in ("ROTA_DATABASE_URL", "DATABASE_URL") if os.environ.get(name)), "PG*")
    return f"from {named}"


def _print(diagnosis: Diagnosis, verbose: bool) -> None:
    for finding in diagnosis.findings:
        if finding.grade != "unknown" or verbose:
            _print_one(finding, verbose)
    if not verbose:
        _print_unknown(finding for finding in diagnosis.findings if finding.grade == "unknown")
    counts = Counter(finding.grade for finding in diagnosis.findings)
    said = [f"{counts[grade]} {grade}{'' if counts[grade] == 1 else 's'}" for grade in _COUNTED if counts[grade]]
    left_out = f"; {counts['unknown']} could not be made" if counts["unknown"] else ""
    say(
        f"{len(diagnosis.findings)} checks in {diagnosis.seconds:.1f} s: {', '.join(said) or 'nothing is wrong'}{left_out}"
    )


def _print_one(finding: Finding, verbose: bool) -> None:
    name = finding.check.replace("_", " ")
    click.echo(f"{finding.grade:8} {name:22} {finding.found}")
    if finding.grade in ("warning", "problem") or verbose:
        if finding.why:
            click.echo(textwrap.indent(textwrap.fill(finding.why, 110), " " * 9))
        for way in finding.mend:
            click.echo(f"         -> {way}")


def _print_unknown(findings: Iterable[Finding]) -> None:
    """What could not be looked at for one reason, on one line."""
    reasons: dict[str, list[Finding]] = {}
    for finding in findings:
        reasons.setdefault(finding.found, []).append(finding)
    for reason, alike in reasons.items():
        click.echo(f"{'?':8} {', '.join(each.check.replace('_', ' ') for each in alike)}: {reason}")
        for way in alike[0].mend:
            click.echo(f"         -> {way}")
