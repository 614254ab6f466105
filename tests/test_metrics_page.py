"""The pages about metrics have exactly the metrics of a silo with every part, in their words."""

from __future__ import annotations

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
