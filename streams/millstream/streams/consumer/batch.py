"""A delivery and its reply, as they go between the agent and the consumer.

Owns: `WireBatch`, `ByHand`, `Delivered`. Not: what is sent when (`agent`), running it (`run`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["ByHand", "Delivered", "WireBatch"]


class ByHand(msgspec.Struct, array_like=True, frozen=True):
    """What a delivery is accompanied by where its consumer acknowledges by hand.

    `silo`: whose agent of `provider` is to be told. `unacked_from`: the first event that was
    delivered before these, and is not acknowledged.
    """

    silo: str
    provider: str
    unacked_from: Token | None = None


class WireBatch(msgspec.Struct, array_like=True, frozen=True):
    """A delivery: consecutive undelivered events of one stream for one subscription."""

    subscription: str
    handler: str
    namespace: str
    key: str
    queue: str
    epoch: int
    attempt: int
    redelivered: bool
    items: Sequence[Item]
    timeout_s: float = 60.0
    rewinds: bool = False  # it was resumed further back: what was seen comes again
    has_positions: bool = True  # tokens rise and stay: what is at or below the last one is known
    redriven: bool = False  # given up, and here again by hand
    where: str = ""  # the filter that is still to be asked
    give_up_on: tuple[str, ...] = ()  # of an explicit subscription: what is not to be tried again
    gap: tuple[Token | None, Token] | None = None  # just before the items: behind, and before these
    by_hand: ByHand | None = None
    commit_with: str = ""  # of an explicit subscription: the state that is written with it


class Delivered(msgspec.Struct, array_like=True, frozen=True):
    """The reply: the first `done` items are done; `error` is an encoded error, or empty;
    `is_final`: the item is not to be tried again. By hand: `acked`: up to here it is acknowledged;
    `is_anew`: this activation has not had what was delivered before, so it takes nothing yet."""

    done: int
    error: bytes = b""
    is_fenced: bool = False
    is_final: bool = False
    acked: Token | None = None
    is_anew: bool = False
