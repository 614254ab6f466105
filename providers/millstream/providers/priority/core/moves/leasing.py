"""The check of leases, and the fate of messages whose work was not done.

Owns `Leasing`. The operations themselves are in `core`.

Invariant: a lease is over when `now >= deadline`, whether or not anything has noticed it.
"""

from __future__ import annotations

from millstream.providers.priority.core.contents import Contents
from millstream.providers.priority.core.errors import (
    LeaseForeign,
    LeaseLost,
    MessageFinished,
    MessageNotFound,
    PriorityQueueError,
)
from millstream.providers.priority.core.message import (
    ERRORED,
    INVISIBLE,
    PENDING,
    LastLease,
    LeaseToken,
    Message,
    Step,
)
from millstream.runtime.extending import show_value

__all__ = ["Leasing"]


class Leasing:
    """The leases of one queue."""

    __slots__ = ("contents", "queue")

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.queue = contents.queue

    def message(self, id: str) -> Message:
        """The message of an id. Raises `MessageNotFound`."""
        message = self.contents.by_id.get(id)
        if message is None:
            raise MessageNotFound(
                self.queue, f"no message {show_value(id)}: it never existed, or was collected"
            )
        return message

    def find_leased(self, id: str, token: LeaseToken, step: Step | None) -> Message:
        """The message that runs under this lease, or whose lease was ended by the same step."""
        message = self.contents.by_id.get(id) or self.message(id)
        lease = message.lease
        if lease is not None and lease.token == token:
            if lease.ended is None:
                if self.contents.now_ms < message.due_ms:
                    return message
            elif lease.ended is step:
                return message
        raise self._refusal(message, lease, token)

    def _refusal(
        self, message: Message, lease: LastLease | None, token: LeaseToken
    ) -> PriorityQueueError:
        who = f"message {message.id!r}: the lease {tuple(token)}"
        if lease is None or not is_of(token, lease.token):
            return LeaseForeign(self.queue, f"{who} was never given")
        if lease.token != token:
            return LeaseLost(self.queue, f"{who} is over: lease {lease.token.epoch} followed")
        if lease.ended is None or lease.ended is Step.EXPIRED:
            return LeaseLost(self.queue, f"{who} is over: its time has passed")
        if message.is_finished:
            return self.make_finished_error(message)
        return LeaseLost(self.queue, f"{who} is over: it was {lease.ended}")

    def make_finished_error(self, message: Message) -> MessageFinished:
        """The error for an operation on a finished message."""
        what = f"message {message.id!r} is {message.state.name.lower()}, which is final"
        return MessageFinished(self.queue, what)

    def give_back(self, message: Message, step: Step, due_ms: int, reason: str = "") -> None:
        """End a lease whose work is not done: pending, invisible until `due_ms`, or errored
        without attempts left.
        """
        contents = self.contents
        if not message.attempts_left:
            until_ms = contents.now_ms + contents.settings.retention_ms
            contents.move(message, ERRORED, step, until_ms, reason)
        elif due_ms:
            contents.move(message, INVISIBLE, step, due_ms, reason)
        else:
            contents.move(message, PENDING, step, 0, reason)

    def sweep(self, steps: int) -> int:
        """Make messages visible whose delay has passed, and end leases whose time has passed."""
        contents, done_count = self.contents, 0
        while done_count < steps and (message := contents.due.due(contents.now_ms)) is not None:
            if message.state is INVISIBLE:
                contents.move(message, PENDING, Step.VISIBLE)
            else:
                self.give_back(message, Step.EXPIRED, 0)
            done_count += 1
        return done_count


def is_of(token: LeaseToken, last: LeaseToken) -> bool:
    """Whether the token may be of an earlier lease of the message with this last lease.

    Both numbers of a token rise together. Earlier leases are not kept. A foreign token with lower
    numbers is therefore taken for one of them, and refused with `LeaseLost` instead of its subclass
    `LeaseForeign`.
    """
    return token == last or (token.epoch < last.epoch and 1 < token.version < last.version)
