"""Programs outside a cluster that work on its queues as Spark does use this, beside the public
names of `millstream.streams`.

Owns: nothing; it names publishing of numbered messages, reading of ranges, and staged writes as an
operator sees them.
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
