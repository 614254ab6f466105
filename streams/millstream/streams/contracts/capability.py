"""What a queue provider can do: declared by its factory, used by the runtime, checked by the suite.

Owns: `Capability`, and which go together. Invariant: the runtime asks for nothing that is not
declared, and a combination that cannot work is refused before a provider is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

__all__ = ["Capability", "contradiction", "has_positions"]


class Capability(Enum):
    """A promise of a provider. What is not declared is not used."""

    DURABLE = "durable"  # an accepted message survives the death of every silo
    ORDERED = "ordered"  # messages of one stream are read in the order of acceptance
    STABLE_TOKENS = "stable_tokens"  # a message that is read again has the same token
    WAKEUP = "wakeup"  # `read` returns as soon as something is there: no polling
    REWIND = "rewind"  # the adapter is `Rewinds`: what was acknowledged can be read again
    ITEM_ACK = "item_ack"  # `ack(also=...)` and `release` take single messages
    LEASED = "leased"  # what was read comes again after `QueueMessage.lease_s`, if not extended
    OWN_POSITION = "own_position"  # the provider keeps what was acknowledged; else the runtime does
    FENCED = "fenced"  # `start` and `ack` refuse an older epoch
    DEDUP = "dedup"  # a producer's sequence that was accepted is dropped, for ever
    SEALED = "sealed"  # the adapter is `Seals`: the number of queues may change while running


def has_positions(declared: Collection[Capability]) -> bool:
    """Is a token a position: do tokens rise within a queue, and does a message keep its own?

    Without, nothing may be taken for known because of its token.
    """
    return {Capability.ORDERED, Capability.STABLE_TOKENS} <= set(declared)


def contradiction(declared: Collection[Capability]) -> str:
    """Why these capabilities cannot go together; empty if they can (spec/contract.md 5)."""
    one = Capability
    has_log = has_positions(declared)
    if one.REWIND in declared and not has_log:
        return "REWIND needs ORDERED and STABLE_TOKENS: a position must mean one place"
    if one.LEASED in declared and one.ITEM_ACK not in declared:
        return "LEASED needs ITEM_ACK: each lease is given back by itself"
    if one.LEASED in declared and one.ORDERED in declared:
        return "LEASED excludes ORDERED: a lease that runs out comes again behind later messages"
    if one.OWN_POSITION not in declared and not has_log:
        return (
            "without OWN_POSITION the runtime keeps the position, which needs ORDERED and "
            "STABLE_TOKENS"
        )
    return ""
