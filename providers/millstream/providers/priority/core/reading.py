"""What can be looked at in a queue. Nothing is changed.

Owns: `Reading`. Costs are with each read; n is the number of uncollected messages.
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
"""Payloads in one answer, so that it can be sent; the message that reaches it is the last one."""


class Reading:
    """Looks into one queue, as its operations left it."""

    def __init__(self, queue: str, contents: Contents) -> None:
        self.queue = queue
        self._contents = contents
        self._strays = StraySearch()

    def get(self, id: str) -> MessageView:
        """One message: O(1). Raises: `MessageNotFound`."""
        message = self._contents.by_id.get(id)
        if message is None:
            raise MessageNotFound(self.queue, f"no message {id!r}: it never was, or was collected")
        return view(message)

    def peek(self, count: int = 1, wanted: Pairs = ()) -> list[MessageView]:
        """What a dequeue of so many would lease, were nothing due: cost as of that."""
        check_number(self.queue, "count", count, 1, COUNT_MAX)
        return views(self._source(wanted).iter_ordered(), count)

    def _source(self, wanted: Pairs) -> MessageSource:
        """Raises: `FilterNotReady`, `RequestInvalid`."""
        pairs = check_pairs(self.queue, "wanted", wanted)
        if pairs and not self._contents.is_ready_for(pairs):
            raise self._not_ready()
        return self._contents.filters.source(pairs)

    def _not_ready(self) -> FilterNotReady:
        what = "the index of the filter is being built: ask again"
        return FilterNotReady(self.queue, what)

    def heads(self, count: int = 1, wanted: Pairs = ()) -> list[int]:
        """The priorities of what `peek` shows."""
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
        """Messages in the order in which they were enqueued: O(n). Fewer than `count` may have
        more behind them, if the answer `is_large`.

        Args:
            after: sequence of the last one of the page before.
            state, wanted: only messages in this state, with all of these pairs.
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
        """How many messages are in each state.

        Args:
            wanted: only messages with all of these pairs: O(1) if their keys are a shape, else
                O(n), at most `SCAN_MAX` of them.
            value: only those of an exclusivity value: O(1).
        Raises: `FilterNotReady`, `RequestInvalid`.
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
        """The depth of each exclusivity value: O(number of them). Empty for a simple queue."""
        return {value: by_state(counts) for value, counts in self._contents.by_value.items()}

    def moving(self) -> Moving:
        """May messages, finished ones too, belong to another shard? At most `STEPS` of them."""
        contents, (_, shard) = self._contents, split_name(self.queue)
        shards, layout = contents.settings.shards, contents.settings.layout

        def belongs(one: Message) -> bool:
            return home_of(one.id if one.value is None else one.value, shards) == shard

        has_strays = self._strays.has_any(layout, contents.messages, belongs)
        return Moving(has_strays, contents.epoch)

    def parkings(self) -> int:
        """How often a held value was met and put aside, since the queue was opened."""
        holds = self._contents.holds
        return holds.parkings if holds is not None else 0


def by_state(counts: list[int]) -> dict[State, int]:
    return {state: counts[state] for state in State}


def views(messages: Iterable[Message], count: int) -> list[MessageView]:
    """So many, as far as an answer can hold."""
    found, left_bytes = [], ANSWER_BYTES_MAX
    for message in islice(messages, count):
        found.append(view(message))
        left_bytes -= len(message.payload)
        if left_bytes <= 0:
            break
    return found


def is_large(answer: Sequence[MessageView] | Sequence[LeaseGrant]) -> bool:
    """Is it as large as may be? Then there may be more, though fewer came than were asked for."""
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
