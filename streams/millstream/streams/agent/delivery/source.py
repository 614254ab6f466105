"""What a dispatch asks of its agent.

Owns: `Source`, `Caution`.
"""

from __future__ import annotations

from typing import Protocol

from millstream.streams.agent.lagging.behind import SubscriptionKey
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.token import Token

__all__ = ["Caution", "Source"]


class Source(Protocol):
    """Where the items come from: the agent of one queue."""

    @property
    def queue(self) -> QueueId: ...
    @property
    def epoch(self) -> int: ...
    @property
    def has_positions(self) -> bool:
        """Do tokens rise within the queue, and does a message keep its own?"""
        ...

    @property
    def repeats_upto(self) -> int:
        """Index of the last message in the cache that a former owner may have delivered."""
        ...

    def give_back(self, token: Token, delay_s: float, /) -> None:
        """A handler has failed at a message that the queue gives out again."""
        ...

    def fetch(self) -> None:
        """A subscription has come to items that are to be read anew."""
        ...

    def progressed(self) -> None:
        """A delivery moved: there may be room, and something to acknowledge."""
        ...

    def fenced(self) -> None:
        """A consumer knows an owner of a newer epoch."""
        ...

    def look_again(self) -> None:
        """The queue's owner should decide anew: a call that was out has ended while nothing new is
        sent, or an event is to be named in the record."""
        ...


class Caution(Protocol):
    """How careful the agent is."""

    @property
    def is_on(self) -> bool: ...
    def deaths_of(self, key: SubscriptionKey, token: Token, /) -> int: ...
    def may_send(self, key: SubscriptionKey, token: Token, deaths: int, /) -> bool: ...
    def done(self, key: SubscriptionKey, token: Token, /) -> None: ...
