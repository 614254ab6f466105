"""Messages that come into a queue: which are new, which are there already, which are refused.

Owns: `Entering`. Not: the form of bodies (`body`).
Invariants: a body is taken once under its id; all or nothing changes nothing if one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from .body import Body, NewMessage, checked_body
from .contents import Contents
from .errors import EnqueueBlocked, MessageExists, PriorityQueueError, PriorityQueueFull
from .message import Message
from .results import Enqueued, EnqueuedMany, refused

__all__ = ["Entering"]


class Entering:
    """The way into one queue."""

    __slots__ = ("contents", "queue")

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.queue = contents.queue

    def one(self, new: NewMessage, reason: str = "") -> Enqueued:
        return self._enqueue(checked_body(self.queue, self.contents.settings, new), reason)

    def each(self, news: Sequence[NewMessage]) -> EnqueuedMany:
        answers: list[Enqueued | None] = []
        refusals = []
        for index, new in enumerate(news):
            try:
                answers.append(self.one(new))
            except PriorityQueueError as error:
                answers.append(None)
                refusals.append(refused(index, error))
        return EnqueuedMany(tuple(answers), tuple(refusals))

    def _enqueue(self, body: Body, reason: str = "") -> Enqueued:
        found = self.contents.by_id.get(body.id)
        if found is not None:
            self._refuse_other(body, found)
            return Enqueued(found.id, found.state, found.version, False)
        self._refuse_blocked()
        self._refuse_full(1)
        return self._begin(body, reason)

    def _begin(self, body: Body, reason: str = "") -> Enqueued:
        terms, settings = body.terms, self.contents.settings
        attempts, invisible_ms = terms.attempts, terms.invisible_ms
        message = self.contents.begin(
            body,
            settings.attempts if attempts is None else attempts,
            settings.invisible_ms if invisible_ms is None else invisible_ms,
            reason,
        )
        return Enqueued(body.id, message.state, 1, True)

    def _refuse_blocked(self) -> None:
        if self.contents.settings.enqueue_blocked:
            raise EnqueueBlocked(self.queue, "enqueue_blocked is set, it takes no messages")

    def _refuse_full(self, count: int) -> None:
        size, most = len(self.contents.by_id), self.contents.settings.messages_max
        if size + count > most:
            what = f"it has {size} uncollected messages, messages_max is {most}"
            raise PriorityQueueFull(self.queue, what)

    def _refuse_other(self, body: Body, found: Message) -> None:
        first = found.first_priority
        priority = found.priority if first is None else first
        is_same = (
            found.payload == body.payload
            and priority == body.priority
            and found.metadata == body.metadata
            and found.terms == body.terms
        )
        if not is_same:
            what = f"message {body.id!r} exists with another body, in version {found.version}"
            raise MessageExists(self.queue, what)

    def all_of(self, news: Sequence[NewMessage]) -> list[Enqueued]:
        bodies = [checked_body(self.queue, self.contents.settings, new) for new in news]
        fresh: dict[str, Body] = {}
        for body in bodies:
            found = self.contents.by_id.get(body.id)
            if found is not None:
                self._refuse_other(body, found)
            elif fresh.setdefault(body.id, body) != body:
                raise MessageExists(self.queue, f"message {body.id!r} comes with two bodies")
        if fresh:
            self._refuse_blocked()
            self._refuse_full(len(fresh))
        return [self._enqueue(body) for body in bodies]
