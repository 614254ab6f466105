"""Names of streams and queues.

Invariants: both are values. Two streams with one key and different namespaces are independent.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["QueueId", "StreamId"]

QueueId = str
"""The name of a queue, a `str`: `prefix-number`, unique in its provider."""


class StreamId(NamedTuple):
    """The identity of a stream within one provider. `str(stream_id)` is `namespace/key`.

    Attributes:
        namespace: name of the `StreamNamespace`.
        key: key of the stream.
    """

    namespace: str
    key: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.key}"
