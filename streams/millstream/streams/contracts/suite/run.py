"""Running the checks.

Owns: the list of all checks, and running one. Invariant: everything that a check opened is closed.
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
"""Every check of the contract suite, in order."""


async def run_adapter_check(
    check: AdapterCheck,
    make: Make,
    generated: Generated | None = None,
    mapper: QueueMapper | None = None,
    hooks: AdapterHooks | None = None,
) -> str:
    """Run one check on a provider with empty queues, and close everything that was opened.

    Each call of the adapter may take 10 s (`start` 120 s, `read` 10 s beyond `wait_s`). After that
    the call is abandoned and the check fails. The provider needs room for 100 messages, and leases
    of at most 5 s.

    Args:
        check: one of `ADAPTER_CHECKS`.
        make: makes a factory; called once per silo and restart, all over the same stored content.
        generated: for a provider that refuses `enqueue`: a function from queue and count to the
            first items of the queue. The messages have one item each.
        mapper: the queues of the provider, if `queue-0` and `queue-1` are not suitable. The mapper
            is also asked in another process.
        hooks: actions on the provider that the suite cannot do itself.

    Returns:
        An empty text if the rule holds. Otherwise why the check was not run, which is printed as
            well: why it does not apply, or `not run: the hook ... is not given`.

    Raises:
        ContractBroken: the rule does not hold.
        ConfigError: no silo would accept the shape or the capabilities.
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
    except Exception as error:  # an answer that a check cannot handle
        odd = ContractBroken("no error", f"{type(error).__name__}: {error}")
        odd.check, odd.rule = check.name, check.rule
        raise odd from error
    finally:
        await bench.aclose()


async def outcome(check: AdapterCheck, bench: AdapterBench) -> str:
    """Run a check; returns why it could not be run, empty if the rule holds."""
    try:
        await check.run(bench)
    except NotRun as none:
        return str(none)
    return ""
