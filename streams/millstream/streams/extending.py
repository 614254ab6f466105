"""Names for programs outside the cluster that work on its queues, as Spark and `millstream` do.

Such programs use these names in addition to the public names of `millstream.streams`. They publish
numbered messages, read ranges of queues, and inspect staged writes. Owns: nothing; it only
re-exports.
"""

from __future__ import annotations

from millstream.runtime.extending import publish

from .publishing.ingest import IngestMessage
from .publishing.numbered import NumberedPublisher, encode_messages
from .rewinding.outside import QueueReads
from .staging.outside import StagedWrites
from .staging.rows import RefusedMessage
from .staging.status import WriterStatus

__all__ = [
    "IngestMessage",
    "NumberedPublisher",
    "QueueReads",
    "RefusedMessage",
    "StagedWrites",
    "WriterStatus",
    "encode_messages",
]

publish(__name__)
