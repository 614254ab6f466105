"""One queue in one epoch, as the agent that reads it knows it.

Owns: `QueueEpoch`: the names of both, and whether a newer epoch has fenced this one. Not: the queue
record, and what follows from it (`ownership`).
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.streams.contracts.identity import QueueId

__all__ = ["QueueEpoch"]


class QueueEpoch:
    """The ownership of one queue.

    Args:
        silo: the address of the agent's silo.
        changed: called when the owner of the queue should decide anew.

    Attributes:
        where: names provider and queue.
        extra: fields of each line of the log.
        is_fenced: another silo reads the queue in a newer epoch.
    """

    __slots__ = ("_changed", "extra", "is_fenced", "number", "provider", "queue", "silo", "where")

    def __init__(
        self,
        provider: str,
        queue: QueueId,
        number: int,
        silo: str,
        changed: Callable[[QueueId], None],
    ) -> None:
        self.provider, self.queue, self.number, self.silo = provider, queue, number, silo
        self.where = f"{provider}: {queue}"
        self.extra = {"silo": silo, "queue": queue, "epoch": number}
        self.is_fenced = False
        self._changed = changed

    def decide_again(self) -> None:
        """Something about the queue changed: its owner should decide anew."""
        self._changed(self.queue)

    def fence(self) -> None:
        """Another silo reads the queue in a newer epoch: write nothing more."""
        self.is_fenced = True
        self._changed(self.queue)
