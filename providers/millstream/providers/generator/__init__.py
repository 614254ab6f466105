"""Queues that generate their own events, for tests, benchmarks and first experiments.

Owns the adapter, the options, the order and the rate of the events, and their items.
Reading starts at `adapter.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .adapter import GeneratorQueues
from .events import Generated, GeneratedEvent
from .options import GeneratorOptions

__all__ = ["Generated", "GeneratedEvent", "GeneratorOptions", "GeneratorQueues"]

publish(__name__)
