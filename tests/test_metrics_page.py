"""The pages about metrics have exactly the metrics of a silo with every part, in their words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.imports import ROOT

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.priority import MemoryStore, PriorityQueues
from millstream.providers.priority.jobs import Jobs
from millstream.runtime import Grain, Metrics, Silo, reminder
from millstream.runtime.extending import Metric
from millstream.streams import PersistentStreams

PAGE = ROOT / "docs" / "operations" / "metrics.md"
ROW = re.compile(r"^\| `(millstream_\w+)` \|.*$", re.M)


class Reminded(Grain):
    @reminder
    async def remind(self, occurrence: object) -> None:
        return None


async def list_metrics(directory: Path) -> list[Metric]:
    """Return the metrics of a silo with every part that has some."""
    ledger = LedgerQueues(directory / "ledger")
    streams = PersistentStreams(ledger, balancer=DeploymentBalancer())
    async with Silo(
        grains=[Reminded],
        streams={"default": streams},
        parts={"metrics": Metrics(), "priority": PriorityQueues(MemoryStore()), "jobs": Jobs()},
    ) as silo:
        return list(silo.services.metrics.metrics)


def show_row(metric: Metric) -> str:
    """Return the row of a metric in the page."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |"


async def test_the_page_has_the_row_of_each_metric_and_no_other(tmp_path: Path) -> None:
    wanted = {metric.name: show_row(metric) for metric in await list_metrics(tmp_path)}
    found = {match[1]: match[0] for match in ROW.finditer(PAGE.read_text())}
    assert found == wanted


def rows_in(text: str) -> Iterator[str]:
    yield from (match[1] for match in ROW.finditer(text))


def test_no_row_is_there_twice() -> None:
    rows = list(rows_in(PAGE.read_text()))
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("line", ["| `millstream_calls_total` | counter | | Calls. |"])
def test_a_row_is_found(line: str) -> None:
    assert list(rows_in(line)) == ["millstream_calls_total"]


# -- the dashboard and the alert rules

NAME = re.compile(r"\bmillstream_\w+")
BY = re.compile(r"\bby \(([\w, ]+)\)")
WHERE = re.compile(r"\b(millstream_\w+)\{([^}]*)\}")
ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds."""
SUFFIXES = ("_bucket", "_count", "_sum")


def expressions(name: str) -> list[str]:
    """Return the expressions of a file."""
    path = PAGE.parent / name
    if path.suffix == ".json":
        panels = json.loads(path.read_text())["panels"]
        return [one["expr"] for panel in panels for one in panel.get("targets", ())]
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra `docs`)")
    (group,) = yaml.safe_load(path.read_text())["groups"]
    return [rule["expr"] for rule in group["rules"]]


def misuses(expression: str, metrics: dict[str, Metric]) -> Iterator[str]:
    """Find names and labels that no metric has, and functions that do not fit its type."""
    known: set[str] = set()
    for name in NAME.findall(expression):
        metric = metrics.get(name)
        if metric is None:
            base = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), "")
            metric = metrics.get(base)
            if metric is None or metric.type != "histogram":
                yield name
                continue
        is_rated = re.search(rf"(rate|increase)\({name}\b", expression) is not None
        if is_rated is not (metric.type != "gauge"):
            yield f"{name} is a {metric.type}"
        known |= set(metric.labels)
        for _, inside in (one for one in WHERE.findall(expression) if one[0] == name):
            used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", inside))
            yield from (f"{name}{{{label}}}" for label in used - set(metric.labels) - ADDED)
    for labels in BY.findall(expression):
        yield from set(re.split(r",\s*", labels)) - known - ADDED


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
async def test_the_dashboard_and_the_rules_use_metrics_as_they_are(
    name: str, tmp_path: Path
) -> None:
    metrics = {metric.name: metric for metric in await list_metrics(tmp_path)}
    found = expressions(name)
    assert len(found) > 10
    wrong = {one: [*misuses(one, metrics)] for one in found}
    assert {one: errors for one, errors in wrong.items() if errors} == {}


async def test_the_ten_metrics_are_in_the_first_row_of_the_dashboard(tmp_path: Path) -> None:
    text = PAGE.read_text().partition("## Ten metrics that matter")[2].partition("\n## ")[0]
    ten = re.findall(r"^\| [^|]+\? \| `(\w+)` \|", text, re.M)
    assert len(ten) == 10
    assert set(ten) <= {metric.name for metric in await list_metrics(tmp_path)}
    panels = json.loads((PAGE.parent / "grafana.json").read_text())["panels"]
    rows = [at for at, panel in enumerate(panels) if panel["type"] == "row"]
    shown = [one["expr"] for panel in panels[: rows[1]] for one in panel.get("targets", ())]
    for name in ten:
        assert any(re.search(rf"\b{name}(_bucket)?\b", expression) for expression in shown), name


def test_the_panels_of_the_dashboard_have_places_and_numbers_of_their_own() -> None:
    panels = json.loads((PAGE.parent / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not covered & cells
        cells |= covered


def test_each_rule_says_what_is_wrong_and_what_to_do() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra `docs`)")
    (group,) = yaml.safe_load((PAGE.parent / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert rule["annotations"].keys() == {"summary", "action"}, rule
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        by = BY.findall(rule["expr"])
        if by:
            assert used <= set(re.split(r",\s*", by[0])), rule


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("millstream_nothing > 0", ["millstream_nothing"]),
        ("sum by (key) (rate(millstream_calls_total[5m]))", ["key"]),
        ("rate(millstream_activations[5m])", ["millstream_activations is a gauge"]),
        ("millstream_calls_total > 5", ["millstream_calls_total is a counter"]),
        ('millstream_activations{key="a"}', ["millstream_activations{key}"]),
        ("rate(millstream_calls_total_bucket[5m])", ["millstream_calls_total_bucket"]),
        ("sum by (grain_type, le) (rate(millstream_call_duration_seconds_bucket[5m]))", []),
    ],
)
async def test_a_misuse_is_found(expression: str, wrong: list[str], tmp_path: Path) -> None:
    metrics = {metric.name: metric for metric in await list_metrics(tmp_path)}
    assert [*misuses(expression, metrics)] == wrong
