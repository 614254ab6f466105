"""Queues that make their own events: for tests, benchmarks and first tries."""

from millstream.runtime.extending import publish

from .adapter import GeneratorQueues
from .events import Generated, GeneratedEvent
from .options import GeneratorOptions

__all__ = ["Generated", "GeneratedEvent", "GeneratorOptions", "GeneratorQueues"]

publish(__name__)
