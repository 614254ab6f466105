"""What tests of streams use: the contract suite of queue adapters, who owns which queue, and what
happens to events, written down.

Authors of adapters run the suite against their own:

    @pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
    async def test_my_queues_keep_the_contract(check, tmp_path):
        why = await run_adapter_check(check, lambda: MyQueues(tmp_path))
        if why:
            pytest.skip(why)

Owns: its public names.
"""

from __future__ import annotations

from millstream.runtime.extending import publish

from .contracts.suite.bench import AdapterBench
from .contracts.suite.check import AdapterCheck
from .contracts.suite.hooks import AdapterHooks
from .contracts.suite.run import ADAPTER_CHECKS, run_adapter_check
from .contracts.suite.verdict import ContractBroken
from .owners import owners, wait_owned
from .recording import record_providers

__all__ = [
    "ADAPTER_CHECKS",
    "AdapterBench",
    "AdapterCheck",
    "AdapterHooks",
    "ContractBroken",
    "owners",
    "record_providers",
    "run_adapter_check",
    "wait_owned",
]

publish(__name__)
