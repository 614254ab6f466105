"""Running the checks.

Owns: the list of all checks, and running one. Invariant: what a check opened is closed.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.runtime import ConfigError
from millstream.streams.contracts.mapping import QueueMapper

from .bench import AdapterBench, Generated
from .check import AdapterCheck
from .checks.acknowledgements import acknowledging
from .checks.crashes import dying
from .checks.leases import leases
from .checks.life import life
from .checks.mappers import placing
from .checks.push_sources import pushing
from .checks.reads import reading
from .checks.rewinds import rewinding
from .checks.seals import sealing
from .checks.writes import writing
from .hooks import AdapterHooks, Make
from .verdict import ContractBroken, NotRun

__all__ = ["ADAPTER_CHECKS", "run_adapter_check"]

ADAPTER_CHECKS: Sequence[AdapterCheck] = (
    *life,
    *placing,
    *writing,
    *reading,
    *acknowledging,
    *dying,
    *leases,
    *pushing,
    *rewinding,
    *sealing,
)


async def run_adapter_check(
    check: AdapterCheck,
    make: Make,
    generated: Generated | None = None,
    mapper: QueueMapper | None = None,
    hooks: AdapterHooks | None = None,
) -> str:
    """Run one check on a provider with empty queues, and close what was opened.

    Args:
        check: one of `ADAPTER_CHECKS`.
        make: makes a factory; called once per silo and restart, all over the same stored content.
        generated: where the provider refuses `enqueue`: gives the first so many items of a queue,
            whose messages have one item each.
        mapper: the queues of the provider, if `queue-0` and `queue-1` will not do.
        hooks: what the suite cannot do to the provider by itself.
    Returns: "" if the rule holds. Else why the check was not run, which is printed as well: what
        does not apply to the provider, or `not run: the hook ... is not given`.
    Raises: ContractBroken (an AssertionError): the rule does not hold. ConfigError: a shape or
        capabilities that no silo would take.
    """
    bench = AdapterBench(make, generated, mapper, hooks)
    try:
        await bench.open()
        why = check.why_skipped(bench) or await outcome(check, bench)
        if why:
            is_open = why.startswith("not run: ")
            print(f"{'' if is_open else 'skipped: '}{check.name}: {why}")
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


async def outcome(check: AdapterCheck, bench: AdapterBench) -> str:
    """Run a check; why it could not be run, empty if the rule holds."""
    try:
        await check.run(bench)
    except NotRun as none:
        return str(none)
    return ""
