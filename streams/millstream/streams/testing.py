"""Tools for tests of streams: the contract suite of queue adapters, owners of queues, and
recording.

The suite checks that an adapter keeps the contract. No check relies on an `assert` statement, so
`python -O` refuses the same adapters. Authors of adapters run it against their own:

```python
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_my_queues_keep_the_contract(check, tmp_path):
    why = await run_adapter_check(check, lambda: MyQueues(tmp_path))
    if why:
        pytest.skip(why)
```

`owners`, `wait_owned` and `record_providers` are for tests with a `SimCluster`
([Testing](../guides/testing.md)). Owns: its public names.
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
