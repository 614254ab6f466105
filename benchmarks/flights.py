"""The flights example without Spark: three silo processes over one ledger, every figure compared.

It uses only the command line, so that it runs in any revision's tree.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

__all__ = ["csv"]

TREE = Path(__file__).parent.parent
HAS_EXAMPLE = (TREE / "examples" / "flights").is_dir()
DEMO = ("examples.flights",) if HAS_EXAMPLE else ("millstream.console", "demo", "flights")
COMMAND = ("-m", *DEMO, "--source", "csv", "--json")


async def csv(work: Path) -> dict[str, float]:
    """Return events per second, and CPU of all processes per event, from start to end."""
    demo = await asyncio.create_subprocess_exec(
        sys.executable, *COMMAND, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await demo.communicate()
    assert demo.returncode == 0, f"the demo ended with {demo.returncode}"
    found, used = json.loads(answer), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "flights_events_s": found["events_per_s"],
        "flights_cpu_us": (used.ru_utime + used.ru_stime) / found["delivered"] * 1e6,
    }
