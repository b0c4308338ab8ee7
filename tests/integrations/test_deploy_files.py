"""The dashboard, the alerts and the guide speak of metrics that exist, and every alert says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rota.integrations.metric_names import METRICS

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "guides" / "observing.md"
SAMPLES = {name: metric for metric in METRICS.values() for name in metric.samples}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "docs" / "deploy" / "prometheus-alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads((ROOT / "docs" / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def named(expression: str) -> set[str]:
    return set(re.findall(r"rota_\w+", expression))


def test_the_dashboard_and_the_alerts_name_only_metrics_there_are_by_labels_they_have() -> None:
    for expression in expressions():
        metrics = [SAMPLES[name] for name in named(expression)]
        labels = {label for metric in metrics for label in metric.labels} | {"job", "instance", "le"}

        assert metrics, expression
        asked = {word for by in re.findall(r"by \(([^)]*)\)", expression) for word in re.split(r",\s*", by)}
        matched = set(re.findall(r"[{,](\w+)=", expression))
        assert asked | matched <= labels, expression


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set().union(*(named(expression) for expression in expressions()))
    shown |= named((ROOT / "docs" / "deploy" / "grafana-dashboard.json").read_text("utf-8"))

    assert [metric.name for metric in METRICS.values() if not shown & set(metric.samples)] == []


def test_what_every_process_tells_of_the_database_is_never_added_up() -> None:
    for expression in expressions():
        if any(SAMPLES[name].scope == "database" for name in named(expression)):
            assert not re.search(r"\bsum\b|\bavg\b", expression), expression


def test_what_only_grows_is_looked_at_by_its_growth() -> None:
    for expression in expressions():
        for name in named(expression):
            if SAMPLES[name].kind in ("counter", "histogram"):
                assert re.search(rf"(rate|increase)\({name}", expression), expression


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    titles = re.findall(r"^### (.*)$", (ROOT / page).read_text("utf-8"), re.M)
    assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_alert_has_a_name_of_its_own_and_every_runbook_an_alert() -> None:
    names = [rule["alert"] for rule in rules()]
    said = GUIDE.read_text("utf-8").partition("## What an alert means")[2]
    titles = {title.lower().replace(" ", "-") for title in re.findall(r"^### (.*)$", said, re.M)}

    assert len(set(names)) == len(names)
    assert titles == {rule["annotations"]["runbook"].partition("#")[2] for rule in rules()}


def test_the_guide_lists_every_metric_as_the_code_has_it() -> None:
    listed = re.findall(r"^\| `(rota_\w+)` \| (.*?) \| (.*) \|$", GUIDE.read_text("utf-8"), re.M)
    expected = [
        (
            metric.samples[0] if metric.kind == "info" else metric.name,
            ", ".join(f"`{label}`" for label in metric.labels) or "-",
            metric.help.replace("{bound}", "10,000"),
        )
        for metric in METRICS.values()
    ]

    assert listed == expected
