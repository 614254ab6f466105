"""What a handler gets: one event.

Owns: `Event`. Invariant: an event is frozen; its token is comparable within its stream only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from millstream.streams.contracts.token import Token

__all__ = ["Event"]

T_co = TypeVar("T_co", covariant=True)


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
