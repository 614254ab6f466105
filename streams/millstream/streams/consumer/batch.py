"""The messages of a delivery: the batch that an agent sends, and the consumer's reply.

The agent decides when to send a batch (`agent.delivery`). `run` calls the handler.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["ByHand", "Delivered", "WireBatch"]


class ByHand(msgspec.Struct, array_like=True, frozen=True):
    """The part of a delivery that only subscriptions with manual acknowledgement have.

    Acknowledgements go to the agent of `provider` in `silo`. `unacked_from` is the first event that
    was delivered before this batch and is not acknowledged.
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
    rewinds: bool = False  # the subscription was moved back: earlier events are delivered again
    has_positions: bool = True  # tokens rise and stay: skip items up to the last one
    redriven: bool = False  # a redrive of an event that was given up
    where: str = ""  # name of a filter that the agent could not apply
    give_up_on: tuple[str, ...] = ()  # explicit subscription: names of errors that are not retried
    gap: tuple[Token | None, Token] | None = None  # events between the two tokens are missing
    by_hand: ByHand | None = None
    commit_with: str = ""  # explicit subscription: the state that is written with its position


class Delivered(msgspec.Struct, array_like=True, frozen=True):
    """The reply to a delivery.

    The first `done` items are processed. `error` is an encoded error, or empty. If `is_final`, the
    agent must not retry the failing item. `acked` is the token up to which the grain has
    acknowledged by hand. If `is_anew`, this activation has not seen the earlier unacknowledged
    events, so it ran nothing.
    """

    done: int
    error: bytes = b""
    is_fenced: bool = False
    is_final: bool = False
    acked: Token | None = None
    is_anew: bool = False
