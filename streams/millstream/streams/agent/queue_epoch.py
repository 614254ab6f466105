"""One queue in one epoch, as its agent knows it.

Owns `QueueEpoch`: the names of both, and whether a newer epoch has fenced this one. `ownership` has
the queue record.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.streams.contracts.identity import QueueId

__all__ = ["QueueEpoch"]


class QueueEpoch:
    """The ownership of one queue.

    Args:
        silo: the address of the agent's silo.
        changed: called when the owner of the queue should decide again.

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
        """Let the owner of the queue decide again, because something changed."""
        self._changed(self.queue)

    def fence(self) -> None:
        """Write nothing more: another silo reads the queue in a newer epoch."""
        self.is_fenced = True
        self._changed(self.queue)
