"""The promises of a queue provider: its factory declares them, the runtime uses them, the suite
tests them.

Owns: `Capability`, and which capabilities go together. Invariants: the runtime relies only on
declared capabilities. A combination that cannot work is refused before a provider is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

__all__ = ["Capability", "contradiction", "has_positions"]


class Capability(Enum):
    """A promise of a queue provider. The runtime uses only the promises that a provider declares.

    Some promises depend on others. The provider is refused when it is made unless these rules hold:

    - `REWIND` needs `ORDERED` and `STABLE_TOKENS`.
    - `LEASED` needs `ITEM_ACK` and excludes `ORDERED`.
    - A provider without `OWN_POSITION` needs `ORDERED` and `STABLE_TOKENS`.
    """

    DURABLE = "durable"
    """An accepted message survives the crash of every silo. The contract suite checks this; the
    runtime does not use it."""
    ORDERED = "ordered"
    """Messages of a stream are read in the order in which they were accepted. With `STABLE_TOKENS`,
    the runtime keeps a position and drops messages that it has seen."""
    STABLE_TOKENS = "stable_tokens"
    """A message that is read again has the same token. With `ORDERED`, the runtime drops messages
    that it has seen, and allows `commit_with`."""
    WAKEUP = "wakeup"
    """`read` returns as soon as a message is there. The runtime waits in `read` and does not
    poll."""
    REWIND = "rewind"
    """The adapter implements `Rewinds`: a message that was read can be read again,
    independently of the owner. A lagging stream may then leave the cache."""
    ITEM_ACK = "item_ack"
    """`ack(also=...)` and `release` take single messages. Processed messages are acknowledged
    before older messages are."""
    LEASED = "leased"
    """A message that was read is delivered again when its lease (`QueueMessage.lease_s`) runs out.
    The runtime extends the lease while the message waits or its handler runs."""
    OWN_POSITION = "own_position"
    """The provider keeps the acknowledged position. Without it, the runtime keeps the position in
    the queue record."""
    FENCED = "fenced"
    """`start` and `ack` refuse an older epoch. The contract suite checks this; the runtime does not
    use it."""
    DEDUP = "dedup"
    """The provider drops a producer's sequence that it has accepted before, for ever.
    `publish_with` needs this."""
    SEALED = "sealed"
    """The adapter implements `Seals`, so the number of queues can change while silos run
    (`resize`)."""


def has_positions(declared: Collection[Capability]) -> bool:
    """Whether a token is a position.

    It is one if tokens rise within a queue and a message keeps its token. Otherwise a token does
    not show whether a message is known.
    """
    return {Capability.ORDERED, Capability.STABLE_TOKENS} <= set(declared)


def contradiction(declared: Collection[Capability]) -> str:
    """Why these capabilities cannot be combined, or "" if they can."""
    one = Capability
    has_log = has_positions(declared)
    if one.REWIND in declared and not has_log:
        return "REWIND needs ORDERED and STABLE_TOKENS, so that a token is a position"
    if one.LEASED in declared and one.ITEM_ACK not in declared:
        return "LEASED needs ITEM_ACK, because each lease is released by itself"
    if one.LEASED in declared and one.ORDERED in declared:
        return (
            "LEASED excludes ORDERED, because a message whose lease ends is redelivered after "
            "later messages"
        )
    if one.OWN_POSITION not in declared and not has_log:
        return (
            "without OWN_POSITION the runtime stores the position, so ORDERED and STABLE_TOKENS "
            "are needed"
        )
    return ""
