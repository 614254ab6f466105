"""The suite accepts an adapter that keeps all rules, with any capabilities."""

from __future__ import annotations

import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.contract.reference import (
    KINDS,
    Broker,
    MappedAdapter,
    PromptAdapter,
    ReferenceQueues,
    hooks_of,
)

from millstream.streams.testing import ADAPTER_CHECKS, AdapterCheck, run_adapter_check


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
def test_the_reference_keeps_the_contract(check: AdapterCheck, kind: str) -> None:
    broker = Broker()

    def make() -> ReferenceQueues:
        return ReferenceQueues(broker, KINDS[kind])

    why = in_virtual_time(lambda: run_adapter_check(check, make, hooks=hooks_of(broker)))
    assert not why.startswith("not run")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["ledger", "tags"])
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
def test_one_that_stores_at_once_keeps_the_contract(check: AdapterCheck, kind: str) -> None:
    broker = Broker()

    def make() -> ReferenceQueues:
        queues = ReferenceQueues(broker, KINDS[kind])
        queues.adapter_class = PromptAdapter
        return queues

    why = in_virtual_time(lambda: run_adapter_check(check, make, hooks=hooks_of(broker)))
    assert not why.startswith("not run")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
def test_one_that_brings_its_mapper_keeps_the_contract(check: AdapterCheck) -> None:
    broker = Broker()

    def make() -> ReferenceQueues:
        queues = ReferenceQueues(broker, KINDS["log"])
        queues.adapter_class = MappedAdapter
        return queues

    why = in_virtual_time(lambda: run_adapter_check(check, make, hooks=hooks_of(broker)))
    assert not why.startswith("not run")
