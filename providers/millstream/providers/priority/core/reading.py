"""Reads of one queue. They change nothing.

Owns `Reading`. Each read names its cost; n is the number of uncollected messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from .body import Pairs, check_number, check_pairs
from .contents import Contents
from .errors import FilterNotReady, MessageNotFound
from .index.filters import MessageSource
from .message import Message, Metadata, State
from .results import LeaseGrant, MessageView, Moving
from .shards import home_of, split_name
from .strays import StraySearch

__all__ = ["ANSWER_BYTES_MAX", "Reading", "is_large"]

COUNT_MAX = 1_000
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Payload bytes in one answer, so that it can be sent.

The message that reaches the limit is the last one.
"""


class Reading:
    """Reads of one queue, as its operations left it."""

    def __init__(self, queue: str, contents: Contents) -> None:
        self.queue = queue
        self._contents = contents
        self._strays = StraySearch()

    def get(self, id: str) -> MessageView:
        """Return one message, in O(1). Raises `MessageNotFound`."""
        message = self._contents.by_id.get(id)
        if message is None:
            raise MessageNotFound(
                self.queue, f"no message {id!r}: it never existed, or was collected"
            )
        return view(message)

    def peek(self, count: int = 1, wanted: Pairs = ()) -> list[MessageView]:
        """The messages that a dequeue would lease if nothing were due.

        It costs as much as the dequeue.
        """
        check_number(self.queue, "count", count, 1, COUNT_MAX)
        return views(self._source(wanted).iter_ordered(), count)

    def _source(self, wanted: Pairs) -> MessageSource:
        """The messages that fit a filter. Raises `FilterNotReady` or `RequestInvalid`."""
        pairs = check_pairs(self.queue, "wanted", wanted)
        if pairs and not self._contents.is_ready_for(pairs):
            raise self._not_ready()
        return self._contents.filters.source(pairs)

    def _not_ready(self) -> FilterNotReady:
        what = "the index of the filter is being built: try again"
        return FilterNotReady(self.queue, what)

    def heads(self, count: int = 1, wanted: Pairs = ()) -> list[int]:
        """The priorities of the messages that `peek` shows."""
        check_number(self.queue, "count", count, 1, COUNT_MAX)
        messages = islice(self._source(wanted).iter_ordered(), count)
        return [message.priority for message in messages]

    def page(
        self,
        count: int = 100,
        *,
        after: int = 0,
        state: State | None = None,
        wanted: Pairs = (),
    ) -> list[MessageView]:
        """Return messages after a sequence, in the order of their enqueue. Costs O(n).

        A page with fewer than `count` messages is the last one, unless the answer `is_large`.
        """
        check_number(self.queue, "count", count, 1, COUNT_MAX)
        pairs = set(check_pairs(self.queue, "wanted", wanted))
        found = (
            message
            for sequence, message in self._contents.messages.items()
            if sequence > after
            and (state is None or message.state is state)
            and pairs.issubset(message.metadata)
        )
        return views(found, count)

    def depth(self, wanted: Pairs = (), *, value: str | None = None) -> dict[State, int]:
        """The number of messages in each state.

        With `wanted`, the cost is O(1) if the keys are a shape, and otherwise O(n), at most
        `SCAN_MAX` messages. With `value`, it is O(1). Raises `FilterNotReady` or `RequestInvalid`.
        """
        pairs = check_pairs(self.queue, "wanted", wanted)
        contents = self._contents
        if value is not None and not pairs:
            return by_state(contents.by_value.get(value, [0] * len(State)))
        if value is not None:
            key = contents.settings.exclusivity_key
            if key is None or dict(pairs).get(key, value) != value:
                return by_state([0] * len(State))
            pairs = tuple(sorted({*pairs, (key, value)}))
        return by_state(self._counts(pairs) if pairs else contents.counts)

    def _counts(self, pairs: Metadata) -> list[int]:
        if not self._contents.is_ready_for(pairs, is_count=True):
            raise self._not_ready()
        counts = self._contents.filters.counts(pairs)
        if counts is None:
            counts, wanted = [0] * len(State), set(pairs)
            for message in self._contents.messages.values():
                counts[message.state] += wanted.issubset(message.metadata)
        return counts

    def values(self) -> dict[str, dict[State, int]]:
        """The number of messages in each state for each exclusivity value: O(number of values)."""
        return {value: by_state(counts) for value, counts in self._contents.by_value.items()}

    def moving(self) -> Moving:
        """Whether messages, including finished ones, may belong to another shard.

        It checks at most `STEPS` of them.
        """
        contents, (_, shard) = self._contents, split_name(self.queue)
        shards, layout = contents.settings.shards, contents.settings.layout

        def belongs(one: Message) -> bool:
            return home_of(one.id if one.value is None else one.value, shards) == shard

        has_strays = self._strays.has_any(layout, contents.messages, belongs)
        return Moving(has_strays, contents.epoch)

    def parkings(self) -> int:
        """How often a held value was put aside since the queue was opened."""
        holds = self._contents.holds
        return holds.parkings if holds is not None else 0


def by_state(counts: list[int]) -> dict[State, int]:
    return {state: counts[state] for state in State}


def views(messages: Iterable[Message], count: int) -> list[MessageView]:
    """As many messages as an answer can hold, at most `count`."""
    found, left_bytes = [], ANSWER_BYTES_MAX
    for message in islice(messages, count):
        found.append(view(message))
        left_bytes -= len(message.payload)
        if left_bytes <= 0:
            break
    return found


def is_large(answer: Sequence[MessageView] | Sequence[LeaseGrant]) -> bool:
    """Whether the answer has reached the maximum size, so that more messages may follow."""
    return sum(len(one.payload) for one in answer) >= ANSWER_BYTES_MAX


def view(message: Message) -> MessageView:
    lease = message.lease
    return MessageView(
        message.id,
        message.state,
        message.priority,
        message.sequence,
        message.metadata,
        message.payload,
        message.version,
        message.attempts,
        message.attempts_left,
        message.due_ms,
        message.created_ms,
        message.changed_ms,
        lease.worker if lease else "",
        lease.token if lease else None,
        lease.reason if lease else "",
    )
