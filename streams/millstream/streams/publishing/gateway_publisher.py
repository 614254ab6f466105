"""Publishing from a client: events go through its gateway to the provider's `$ingest` target.

Owns: `GatewayPublisher`. Not: the target (`ingest`). Invariant: a publish returns once the provider
has accepted the message; the gateway knows the provider's own limits, here it is what a frame
allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from millstream.runtime import NotHosted, StreamError
from millstream.runtime.extending import Gateway
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

from .ingest import IngestMessage, IngestTarget
from .split import PublishLimits, messages_of

__all__ = ["GatewayPublisher"]


@cache  # a publisher is made for each publish
def limits_of_clients(frame_bytes_max: int) -> PublishLimits:
    """What a client may send: as much as in silos, but the provider's own limit."""
    return PublishLimits(message_bytes_max=frame_bytes_max).within(frame_bytes_max)


class GatewayPublisher:
    """A client's publisher."""

    def __init__(self, gateway: Gateway, provider: str) -> None:
        self._gateway = gateway
        self._provider = provider
        self._limits = limits_of_clients(gateway.frame_bytes_max)
        self._target = f"{IngestTarget.target_name}/{provider}"

    async def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Token | None:
        """Send events in order, in as many messages as they need; the gateway cuts these again as
        its queues need.

        Raises ValueError (too large), NotHosted (no silo has the provider).
        """
        parts: Sequence[Sequence[bytes]] = (bodies,)
        if self._limits.small(stream, bodies, headers) < 0:
            parts = messages_of(stream, bodies, headers, self._limits)
        given, sent = dict(headers) if headers else None, 0
        for part in parts:
            messages = [IngestMessage(stream.key, 0, [msgspec.Raw(body) for body in part], given)]
            try:
                await self._gateway.call(
                    f"{stream.namespace}/{stream.key}",
                    self._target,
                    IngestTarget.publish,
                    stream.namespace,
                    "",
                    messages,
                )
            except StreamError as error:
                error.accepted_events += sent
                raise
            except NotHosted as error:
                raise NotHosted(
                    f"stream {stream}: the cluster has no stream provider {self._provider!r}. Try "
                    "again if its silos are being restarted; else mend "
                    f"StreamNamespace(provider=...), or Silo(streams=...); {error}"
                ) from None
            sent += len(part)
        return None
