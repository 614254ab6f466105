"""What a handler gets: one event; or the news that some are gone.

Owns: `Event`, `Gap`. Invariant: both are frozen; a token is comparable within its stream only.
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
    """The end of a grain's deliveries: its extension `streams`."""

    def acknowledge(self, event: Event[object], /) -> None: ...


class Event(msgspec.Struct, Generic[T_co], frozen=True):
    """One event of a stream.

    `attempt` counts from 1; `redelivered` says that it may have been delivered before: after a
    failure, a lost reply, or a hand-over that was not clean. `subscription` is the id of the
    subscription that it came by. `redriven`: it was given up, and comes again by hand, outside of
    the order.
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
        """What `self.context.ack(event)` does: the grain at that home has it done.

        Raises ValueError: that activation was not given it by a subscription with `ack="manual"`.
        """
        consumer: Acknowledger | None = extension_at(home, "streams")
        if consumer is not None:
            consumer.acknowledge(self)


class Gap(msgspec.Struct, frozen=True):
    """Events of a stream may be missing: the provider does not have them any more.

    `after`: the last event that this subscription had, or the last place that is known to be
    before the gap; None: neither is known. `first`: where it goes on; the next event is there, or
    behind it. How many are missing, and whether any is, nobody can tell: the queue has lost what
    was between, and may have had none of this stream there.
    """

    stream: StreamId
    subscription: str
    after: Token | None
    first: Token
