"""The choice of a dequeue: the most urgent messages whose values are free.

Owns `Taking`. Finding messages is in `index`, and the arguments are checked in `core`.

Invariant: a batch that may contain a value several times counts its values only at the end.
"""

from __future__ import annotations

from millstream.providers.priority.core.contents import Contents
from millstream.providers.priority.core.index.filters import MessageSource
from millstream.providers.priority.core.message import SEQUENCE_BITS, Message
from millstream.providers.priority.core.reading import ANSWER_BYTES_MAX
from millstream.providers.priority.core.results import LeaseGrant, PollStatus

__all__ = ["STEPS_INLINE_MAX", "Taking"]

STEPS_INLINE_MAX = 512
"""Maximum number of due steps of one operation, and of held values that a dequeue passes."""


class Taking:
    """The way out of one queue."""

    __slots__ = ("_contents",)

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def take(
        self,
        source: MessageSource,
        worker: str,
        count: int,
        lease_ms: int | None,
        same_value_ok: bool,
        bound: int,
    ) -> list[LeaseGrant]:
        """Lease up to `count` messages.

        A batch that may contain a value several times counts its values only at the end.
        """
        holds = self._contents.holds
        if holds is not None:
            holds.parkings_left = STEPS_INLINE_MAX
        if count == 1:
            message = source.first()
            if message is None or message.key >> SEQUENCE_BITS > bound:
                return []
            return [self._lease(message, worker, lease_ms, False)]
        leases: list[LeaseGrant] = []
        taken: set[str] = set()
        held: list[str] = []
        left_bytes = ANSWER_BYTES_MAX
        while len(leases) < count and left_bytes > 0:
            message = source.first(taken)
            if message is None or message.key >> SEQUENCE_BITS > bound:
                break
            left_bytes -= len(message.payload)
            if message.value is not None:
                (held.append if same_value_ok else taken.add)(message.value)
            leases.append(self._lease(message, worker, lease_ms, bool(held)))
        for value in held:
            assert holds is not None, "only messages of exclusive queues have values"
            holds.hold(value)
        if taken:
            source.restore_skipped()
        return leases

    def _lease(
        self, message: Message, worker: str, lease_ms: int | None, is_held_later: bool
    ) -> LeaseGrant:
        contents = self._contents
        if lease_ms is None:
            lease_ms = message.terms.lease_ms
            if lease_ms is None:
                lease_ms = contents.settings.lease_ms
        contents.lease(message, worker, contents.now_ms + lease_ms, is_held_later)
        assert message.lease is not None
        return LeaseGrant(
            message.id,
            message.payload,
            message.key >> SEQUENCE_BITS,
            message.metadata,
            message.lease.token,
            message.due_ms,
            message.attempts - message.attempts_left,
            message.attempts_left,
        )

    def why_no_more(self, now: int, next_ms: int | None) -> PollStatus:
        """Why no more messages were leased. `next_ms` is when something is due next."""
        holds = self._contents.holds
        is_swept = next_ms is None or next_ms > now
        is_searched = holds is None or holds.parkings_left > 0
        return PollStatus.EMPTY if is_swept and is_searched else PollStatus.MORE
