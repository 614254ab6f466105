"""The arguments of handlers: an event, or the report of a gap.

Owns: `Event`, `Gap`. Invariants: both are frozen. A token is comparable within its stream only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from millstream.runtime.extending import extension_at
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = ["Event", "Gap"]

T_co = TypeVar("T_co", covariant=True)


class Acknowledger(Protocol):
    """The part of an activation that receives its deliveries: its extension `streams`."""

    def acknowledge(self, event: Event[object], /) -> None: ...


class Event(msgspec.Struct, Generic[T_co], frozen=True):
    """One event of a stream, as a handler gets it.

    Attributes:
        item: the published item.
        token: the position of the event in its stream.
        key: the key of the stream.
        attempt: number of this attempt, from 1.
        headers: the headers that the publisher gave.
        redelivered: the event may have been delivered before: after a failure, a lost reply, or a
            hand-over that was not clean. Events that were read and not delivered are not marked
            when their queue is handed over.
        subscription: id of the subscription that delivers the event.
        redriven: the event was given up, and an operator delivers it again, outside of the order.
    """

    item: T_co
    token: Token
    key: str
    attempt: int
    headers: Mapping[str, str]
    redelivered: bool = False
    subscription: str = ""
    redriven: bool = False

    def acknowledge_at(self, home: object, /) -> None:
        """Acknowledge the event in an activation; `self.context.ack(event)` calls this.

        Args:
            home: the activation.

        Raises:
            ValueError: no subscription with `ack="manual"` has delivered the event to that
                activation.
        """
        consumer: Acknowledger | None = extension_at(home, "streams")
        if consumer is not None:
            consumer.acknowledge(self)


class Gap(msgspec.Struct, frozen=True):
    """Events of a stream may be missing, because the provider no longer has them.

    The provider cannot tell how many events of this stream are missing, or whether any is: the
    queue has lost a range, and the range may have had none of them.

    Attributes:
        stream: the stream.
        subscription: id of the subscription that may have lost events.
        after: the last event that the subscription had, or the last position known to be before the
            gap. None: neither is known.
        first: the position where the stream continues. The next event is there or after it.
    """

    stream: StreamId
    subscription: str
    after: Token | None
    first: Token
