"""Each broken adapter is refused by the check of the rule that it breaks, and none hangs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contract.broken import (
    dying,
    lenders,
    mappers,
    positions,
    readers,
    receivers,
    retainers,
    sources,
    writers,
)
from tests.contract.broken.fault import FAULTS, Fault, SourceFault
from tests.contract.in_virtual_time import in_virtual_time

from millstream.streams.testing import ADAPTER_CHECKS, ContractBroken, run_adapter_check

ROOT = Path(__file__).parent.parent.parent
MODULES = (
    *(writers, receivers, positions, lenders, readers, retainers),
    *(dying, mappers, sources),
)
CHECKS = {check.name: check for check in ADAPTER_CHECKS}


def refusal(fault: Fault | SourceFault) -> str:
    """Return the suite's refusal of a broken adapter; fail if the adapter passes."""
    make, hooks = fault.planted()
    with pytest.raises(ContractBroken) as caught:
        check = CHECKS[fault.check]
        in_virtual_time(lambda: run_adapter_check(check, make, hooks=hooks))
    return str(caught.value)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_broken_adapter_is_refused(fault: Fault | SourceFault) -> None:
    said = refusal(fault)
    check = CHECKS[fault.check]
    assert said.startswith(f"{check.name}: {check.rule} Expected: ")
    assert "Got: " in said


def test_every_check_refuses_something() -> None:
    """A check that no broken adapter fails may check nothing."""
    elsewhere = {"a_provider_without_messages_of_others_refuses_them"}  # see test_generator.py
    assert set(CHECKS) - {fault.check for fault in FAULTS} == elsewhere


WITHOUT_ASSERTS = """
from tests.contract.test_broken import FAULTS, refusal
if __debug__: raise SystemExit("asserts are on")
said = [refusal(fault) for fault in FAULTS[::9]]
print(len(said))
"""


@pytest.mark.real
def test_broken_adapters_are_refused_without_assert_statements() -> None:
    command = [sys.executable, "-O", "-c", WITHOUT_ASSERTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(len(FAULTS[::9]))], done.stderr


WITH_A_SEED = """
from tests.contract.broken.mappers import HashesTexts
from tests.contract.test_broken import FAULTS, refusal
[fault] = [fault for fault in FAULTS if fault.part is HashesTexts]
print(refusal(fault).partition(":")[0])
"""


@pytest.mark.real
@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_mapper_by_hash_is_refused_whatever_the_seed_of_the_tests(seed: str) -> None:
    """The other process has another seed."""
    command, seeded = [sys.executable, "-c", WITH_A_SEED], {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=seeded)
    assert done.stdout == "a_mapper_answers_alike_in_every_process\n", done.stderr


def test_what_swallows_cancellation_is_left_behind() -> None:
    """The suite ends a read that ignores its cancellation, so that no task is left in the loop."""
    fault = next(one for one in FAULTS if one.part is receivers.SwallowsCancellation)

    async def left() -> set[asyncio.Task[Any]]:
        with pytest.raises(ContractBroken):
            await run_adapter_check(CHECKS[fault.check], fault.planted()[0])
        return {one for one in asyncio.all_tasks() if one is not asyncio.current_task()}

    assert not in_virtual_time(left)
