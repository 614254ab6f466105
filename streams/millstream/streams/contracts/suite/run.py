"""Running the checks.

Owns: the list of all checks, and running one. Invariant: what a check opened is closed.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.runtime import ConfigError
from millstream.streams.contracts.mapping import QueueMapper

from .acknowledging import acknowledging
from .bench import AdapterBench, Forget, Generated, Make
from .check import AdapterCheck
from .leases import leases
from .life import life
from .reading import reading
from .rewinding import rewinding
from .sealing import sealing
from .verdict import ContractBroken
from .writing import writing

__all__ = ["ADAPTER_CHECKS", "run_adapter_check"]

ADAPTER_CHECKS: Sequence[AdapterCheck] = (
    *life,
    *writing,
    *reading,
    *acknowledging,
    *leases,
    *rewinding,
    *sealing,
)


async def run_adapter_check(
    check: AdapterCheck,
    make: Make,
    generated: Generated | None = None,
    mapper: QueueMapper | None = None,
    forget: Forget | None = None,
) -> str:
    """Run one check on a provider with empty queues, and close what was opened.

    Args:
        check: one of `ADAPTER_CHECKS`.
        make: makes a factory; called once per silo and restart, all over the same stored content.
        generated: where the provider refuses `enqueue`: gives the first so many items of a queue,
            whose messages have one item each.
        mapper: the queues of the provider, if `queue-0` and `queue-1` will not do.
        forget: makes the provider lose the first so many messages of a queue, as its retention
            would; without it the check of that is skipped.
    Returns: "" if the rule holds, else why the check was skipped, which is printed as well.
    Raises: ContractBroken (an AssertionError): the rule does not hold. ConfigError: a shape or
        capabilities that no silo would take.
    """
    bench = AdapterBench(make, generated, mapper, forget)
    try:
        await bench.open()
        why = check.why_skipped(bench)
        if why:
            print(f"skipped: {check.name}: {why}")
        else:
            await check.run(bench)
        return why
    except ContractBroken as broken:
        broken.check, broken.rule = check.name, check.rule
        raise
    except ConfigError:
        raise
    except Exception as error:  # an answer that a check stumbles over
        odd = ContractBroken("no error", f"{type(error).__name__}: {error}")
        odd.check, odd.rule = check.name, check.rule
        raise odd from error
    finally:
        await bench.aclose()
