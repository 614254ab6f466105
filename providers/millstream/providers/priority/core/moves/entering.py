"""Enqueued messages: new ones, known ones and refused ones.

Owns `Entering`, and the ids of copies. The form of bodies is in `body`.

Invariants: a body is stored once under its id. An enqueue with `all_or_nothing` changes nothing if
one message is refused. A copy without an id of its own gets the same id each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from millstream.providers.priority.core.body import Body, MessageFields, New, check_body
from millstream.providers.priority.core.contents import Contents
from millstream.providers.priority.core.errors import (
    EnqueueBlocked,
    MessageExists,
    Moved,
    PriorityQueueError,
    PriorityQueueFull,
)
from millstream.providers.priority.core.message import Message
from millstream.providers.priority.core.results import Enqueued, EnqueuedMany, make_refused
from millstream.providers.priority.core.settings import TEXT_BYTES_MAX
from millstream.providers.priority.core.shards import home_of, split_name

__all__ = ["Entering"]

AGAIN = "~again-"
IDS_AGAIN = 1_000
"""Ids that are tried to find one that belongs to the shard.

With 64 shards, the search fails once in seven million cases.
"""
ROOT = re.compile(rf"(.*){AGAIN}\d+(?:\.\d+)?", re.S)


NONE_KNOWN: Mapping[str, Enqueued] = {}


class Entering:
    """The way into one queue."""

    __slots__ = ("contents", "queue", "shard")

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.queue = contents.queue
        _, self.shard = split_name(contents.queue)

    def one(self, new: New, reason: str = "") -> Enqueued:
        """Store one message."""
        body = check_body(self.queue, self.contents.settings, new)
        return self._enqueue(body, reason, new.floor)

    def many(
        self,
        news: Sequence[New],
        all_or_nothing: bool,
        known: Mapping[str, Enqueued] = NONE_KNOWN,
    ) -> EnqueuedMany:
        """Store messages in order.

        `known` has the messages stored under the same request id before, by id.
        """
        if all_or_nothing:
            return EnqueuedMany(tuple(self._all_of(news, known)))
        return self._each(news, known)

    def _each(self, news: Sequence[New], known: Mapping[str, Enqueued]) -> EnqueuedMany:
        answers: list[Enqueued | None] = []
        refusals = []
        taken: dict[str, Body] = {}
        for index, new in enumerate(news):
            try:
                before = find_known(new, known)
                answers.append(self._before(new, before, taken) if before else self.one(new))
            except PriorityQueueError as error:
                answers.append(None)
                refusals.append(make_refused(index, error))
        return EnqueuedMany(tuple(answers), tuple(refusals))

    def again(self, message: Message, new_id: str | None) -> Enqueued:
        """Store a copy of a finished message, with all its attempts."""
        fields, terms = (message.payload, message.priority, message.metadata), message.terms
        id = self._id_again(message) if new_id is None else new_id
        new = MessageFields(id, *fields, 0, terms.lease_ms, terms.attempts)
        return self.one(new, f"again {message.id}")

    def _id_again(self, message: Message) -> str:
        """The id of a copy: the same each time, and one that belongs to this shard."""
        settings, turns = self.contents.settings, range(IDS_AGAIN)
        made = (id_again(message.id, message.sequence, turn) for turn in turns)
        others = (id for id in made if id != message.id)
        if message.value is not None or not settings.layout:
            return next(others)
        ids = list(others)
        layouts = {settings.shards, settings.shards_before or settings.shards}
        known = (id for id in ids if id in self.contents.by_id)
        own = (id for id in ids if all(home_of(id, one) == self.shard for one in layouts))
        return next(known, None) or next(own, ids[0])

    def _enqueue(self, body: Body, reason: str, floor: int | None) -> Enqueued:
        found = self.contents.by_id.get(body.id)
        if found is not None:
            self._refuse_other(body, found)
            return Enqueued(found.id, found.state, found.version, False)
        settings = self.contents.settings
        if settings.layout:
            self._refuse_moved(body, floor)
        self._refuse_more(1, len(body.payload))
        if floor is not None:
            self.contents.epoch = max(self.contents.epoch, floor)
        _, invisible_ms, attempts = body.terms
        message = self.contents.begin(
            body,
            settings.attempts if attempts is None else attempts,
            settings.invisible_ms if invisible_ms is None else invisible_ms,
            reason,
        )
        return Enqueued(body.id, message.state, 1, True)

    def _refuse_moved(self, body: Body, floor: int | None) -> None:
        """Refuse a message that belongs to another shard, or must be offered to another shard
        first.
        """
        contents, key = self.contents, body.id if body.value is None else body.value
        settings = contents.settings
        if home_of(key, settings.shards) != self.shard:
            if body.value is None or not contents.has_unfinished(body.value):
                what = f"message {body.id!r} belongs to another shard"
                raise Moved(self.queue, what, contents.epoch)
        elif settings.shards_before and floor is None:
            if home_of(key, settings.shards_before) != self.shard:
                what = f"message {body.id!r} must be offered to its former shard first"
                raise Moved(self.queue, what, contents.epoch)

    def _refuse_more(self, count: int, payload_bytes: int) -> None:
        """Refuse messages if the queue is blocked or full."""
        contents, settings = self.contents, self.contents.settings
        if settings.enqueue_blocked:
            raise EnqueueBlocked(self.queue, "enqueue_blocked is set, so it accepts no messages")
        size, most = len(contents.by_id), settings.messages_max
        if size + count > most:
            what = f"it has {size} uncollected messages, messages_max is {most}"
            raise PriorityQueueFull(self.queue, what)
        if contents.payload_bytes + payload_bytes > settings.bytes_max:
            what = (
                f"it has {contents.payload_bytes} bytes of payload, and {payload_bytes} more "
                f"exceed the limit: bytes_max is {settings.bytes_max}"
            )
            raise PriorityQueueFull(self.queue, what)

    def _refuse_other(self, body: Body, found: Message) -> None:
        first = found.first_priority
        priority = found.priority if first is None else first
        is_same = (
            found.has_payload(body.payload)
            and priority == body.priority
            and found.metadata == body.metadata
            and found.terms == body.terms
        )
        if not is_same:
            what = f"message {body.id!r} exists with another body (version {found.version})"
            raise MessageExists(self.queue, what)

    def _before(self, new: New, answer: Enqueued, taken: dict[str, Body]) -> Enqueued:
        """The answer for a message that was stored before.

        Of several messages with its id, the first one counts.
        """
        body = check_body(self.queue, self.contents.settings, new)
        first = taken.setdefault(body.id, body)
        if body != first:
            raise MessageExists(
                self.queue, f"message {body.id!r} was given twice, with different bodies"
            )
        return answer._replace(is_changed=body is first)

    def _all_of(self, news: Sequence[New], known: Mapping[str, Enqueued]) -> list[Enqueued]:
        taken: dict[str, Body] = {}
        found = [
            before and self._before(new, before, taken)
            for new in news
            for before in [find_known(new, known)]
        ]
        rest = iter(self._all([new for new in news if find_known(new, known) is None]))
        return [next(rest) if one is None else one for one in found]

    def _all(self, news: Sequence[New]) -> list[Enqueued]:
        bodies = [check_body(self.queue, self.contents.settings, new) for new in news]
        fresh: dict[str, Body] = {}
        for body in bodies:
            found = self.contents.by_id.get(body.id)
            if found is not None:
                self._refuse_other(body, found)
            elif fresh.setdefault(body.id, body) != body:
                raise MessageExists(
                    self.queue, f"message {body.id!r} was given twice, with different bodies"
                )
        if self.contents.settings.layout:
            floors = {new.id: new.floor for new in news}
            for body in fresh.values():
                self._refuse_moved(body, floors[body.id])
        if fresh:
            self._refuse_more(len(fresh), sum(len(body.payload) for body in fresh.values()))
        return [self._enqueue(body, "", new.floor) for body, new in zip(bodies, news, strict=True)]


def find_known(new: New, known: Mapping[str, Enqueued]) -> Enqueued | None:
    return known.get(new.id) if known and isinstance(new.id, str) else None


def id_again(id: str, sequence: int, turn: int = 0) -> str:
    """The id of a copy of the message with this sequence.

    A long id loses the end of the original part.
    """
    found = ROOT.fullmatch(id)
    end = f"{AGAIN}{sequence}.{turn}" if turn else f"{AGAIN}{sequence}"
    root = (found[1] if found else id).encode()[: TEXT_BYTES_MAX - len(end)]
    return root.decode(errors="ignore") + end
