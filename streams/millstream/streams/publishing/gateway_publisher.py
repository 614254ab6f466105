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
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.token import Token

from .ingest import IngestMessage, IngestTarget
from .split import PublishLimits, check_size, split_items

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

    def split(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> list[Sequence[bytes]]:
        """Cut a list of items into messages; the gateway cuts them again as its queues need."""
        return split_items(bodies, self._limits, OutMessage(stream, (), headers or {}))

    async def publish(
        self,
        stream: StreamId,
        parts: Sequence[Sequence[bytes]],
        headers: Mapping[str, str] | None,
    ) -> Token | None:
        """Send messages in order. Raises ValueError (too large), NotHosted (no silo has the
        provider)."""
        sent_headers = dict(headers) if headers else None
        for bodies in parts:
            check_size(OutMessage(stream, bodies, sent_headers or {}), self._limits)
        sent = 0
        for bodies in parts:
            try:
                await self._send(stream, bodies, sent_headers)
            except StreamError as error:
                error.accepted_events += sent
                raise
            sent += len(bodies)
        return None

    async def _send(
        self, stream: StreamId, bodies: Sequence[bytes], headers: dict[str, str] | None
    ) -> None:
        items = [msgspec.Raw(body) for body in bodies]
        messages = [IngestMessage(stream.key, 0, items, headers)]
        publish, namespace = IngestTarget.publish, stream.namespace
        try:
            await self._gateway.call(str(stream), self._target, publish, namespace, "", messages)
        except NotHosted as error:
            raise NotHosted(
                f"stream {stream}: the cluster has no stream provider {self._provider!r}. Try "
                "again if its silos are being restarted; else mend StreamNamespace(provider=...), "
                f"or Silo(streams=...); {error}"
            ) from None
