"""Who has a lease: which message an operation with a token is for, or why it is refused; and what
becomes of messages whose work was not done.

Owns: `Leasing`. Not: the operations themselves (`core`).
Invariants: at `now >= deadline` a lease is over, whether or not anybody has noticed.
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
        message = self.contents.by_id.get(id)
        if message is None:
            raise MessageNotFound(
                self.queue, f"no message {show_value(id)}: it never was, or was collected"
            )
        return message

    def find_leased(self, id: str, token: LeaseToken, step: Step | None) -> Message:
        """The message that runs under this lease, or whose lease ended by this very step."""
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
            return LeaseLost(self.queue, f"{who} is over, {lease.token.epoch} came after it")
        if lease.ended is None or lease.ended is Step.EXPIRED:
            return LeaseLost(self.queue, f"{who} is over, its time has passed")
        if message.is_finished:
            return self.make_finished_error(message)
        return LeaseLost(self.queue, f"{who} is over, it was {lease.ended}")

    def make_finished_error(self, message: Message) -> MessageFinished:
        what = f"message {message.id!r} is {message.state.name.lower()} and stays so"
        return MessageFinished(self.queue, what)

    def give_back(self, message: Message, step: Step, due_ms: int, reason: str = "") -> None:
        """A lease ended and the work is not done: T8, T9, T13."""
        contents = self.contents
        if not message.attempts_left:
            until_ms = contents.now_ms + contents.settings.retention_ms
            contents.move(message, ERRORED, step, until_ms, reason)
        elif due_ms:
            contents.move(message, INVISIBLE, step, due_ms, reason)
        else:
            contents.move(message, PENDING, step, 0, reason)

    def sweep(self, steps: int) -> int:
        """T3, T8, T9: what became visible, and leases that are over."""
        contents, done_count = self.contents, 0
        while done_count < steps and (message := contents.due.due(contents.now_ms)) is not None:
            if message.state is INVISIBLE:
                contents.move(message, PENDING, Step.VISIBLE)
            else:
                self.give_back(message, Step.EXPIRED, 0)
            done_count += 1
        return done_count


def is_of(token: LeaseToken, last: LeaseToken) -> bool:
    """It may be a lease of the message whose last lease is given: both numbers rise together.

    Earlier leases are not kept, so a foreign token whose numbers are both lower is taken for one of
    them, and refused with `LeaseLost` instead of `LeaseForeign`, which is one, too.
    """
    return token == last or (token.epoch < last.epoch and 1 < token.version < last.version)
