"""Queues that make their own events: for tests, benchmarks and first tries.

Owns the adapter, the options, the order and the rate of the events, and the items that they carry.
Reading starts at `adapter.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .adapter import GeneratorQueues
from .events import Generated, GeneratedEvent
from .options import GeneratorOptions

__all__ = ["Generated", "GeneratedEvent", "GeneratorOptions", "GeneratorQueues"]

publish(__name__)
