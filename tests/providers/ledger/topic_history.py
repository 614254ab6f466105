"""The history of a topic, and the checks that it is allowed.

Producers send sequences in order and repeat them until they are acknowledged. Owners change. The
final contents are put together from every ledger that a topic's row ever listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from tests.providers.ledger.worlds import World

from millstream.providers.ledger.inspection import StoredMessage, TopicRecord, head_of
from millstream.providers.ledger.topic.form import TopicMessage, messages_of
from millstream.providers.ledger.topic.record import FIRST_NUMBER, LedgerSpan
from millstream.runtime import Etag
from millstream.runtime.extending import unseal

__all__ = ["History", "Sent"]

TOPIC_KEY = "ledger/c/topics/t"


@dataclass
class Sent:
    """One append. `numbers` is the answer, or None after an error of the kind `failed`."""

    epoch: int
    messages: list[TopicMessage]
    began: int
    ended: int = 0
    numbers: list[int | None] | None = None
    failed: str = ""


@dataclass
class History:
    """Appends, reads, acknowledgements and openings, in the order of their observation."""

    world: World
    sent: list[Sent] = field(default_factory=list)
    seen: dict[int, TopicMessage] = field(default_factory=dict)
    opened: list[tuple[int, int]] = field(default_factory=list)  # epoch, end
    acknowledged: set[int] = field(default_factory=set)
    spans: dict[int, LedgerSpan] = field(default_factory=dict)
    step: int = 0

    def watch(self) -> None:
        """Record each written row of the topic."""
        put = self.world.store.put

        def watched(key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
            etag = put(key, data, expect, fence)
            if key == TOPIC_KEY:
                self.listed(msgspec.msgpack.decode(unseal(key, data).content, type=TopicRecord))
            return etag

        self.world.store.put = watched  # type: ignore[method-assign]

    def listed(self, record: TopicRecord) -> None:
        """Check a written list of ledgers: it has no gap, and all ledgers exist."""
        next_number = record.trimmed
        for span in record.spans:
            assert span.first == next_number, record
            known = self.spans.get(span.ledger)
            assert known is None or not known.is_sealed or known == span, (known, span)
            self.spans[span.ledger] = span
            next_number = span.end
            was_deleted = span.ledger in self.world.bookies.deleted
            assert not was_deleted, f"{span} is listed and was deleted"
        assert all(span.is_sealed for span in record.spans[:-1]), record

    def read(self, found: list[StoredMessage]) -> None:
        """Check messages that a reader read: a number has the same message for all readers."""
        for one in found:
            assert self.seen.setdefault(one.number, one.message) == one.message, one

    def log(self) -> dict[int, TopicMessage]:
        """Return all messages in the sealed ledgers, by number."""
        log: dict[int, TopicMessage] = {}
        for span in self.spans.values():
            if not span.is_sealed:
                continue
            stored = self.world.bookies.graveyard.get(span.ledger)
            stored = stored or self.world.bookies.ledgers[span.ledger]
            for payload in stored.entries[: span.last + 1]:
                for number, message in enumerate(messages_of(payload), head_of(payload).first):
                    assert number not in log, f"two messages have number {number}"
                    log[number] = message
        return log

    def judge(self) -> None:
        """Judge the history after all owners have ended and the last one has closed the topic."""
        log = self.log()
        # no number is missing
        assert sorted(log) == list(range(FIRST_NUMBER, FIRST_NUMBER + len(log)))
        self.judge_acknowledged(log)
        self.judge_reads(log)
        self.judge_producers(log)
        self.judge_owners()

    def judge_acknowledged(self, log: dict[int, TopicMessage]) -> None:
        """Check that acknowledged messages are stored, in the order of real time."""
        stored = set(log.values())
        firsts = self.firsts()
        for sent in self.sent:
            for number, message in zip(sent.numbers or (), sent.messages, strict=False):
                if number is None:
                    assert message in stored, f"{message} was acknowledged, and is lost"
                else:
                    assert log.get(number) == message, (number, message, log.get(number))
        ended = sorted((one for one in self.sent if one.numbers), key=lambda one: one.ended)
        for sent in firsts:
            before = max(highest_of(one) for one in ended if one.ended < sent.began)
            assert highest_of(sent) > before, (sent, before)

    def firsts(self) -> list[Sent]:
        """Return successful appends of new messages that began after an earlier append
        succeeded.
        """
        known: set[TopicMessage] = set()
        found: list[Sent] = []
        ended = [one.ended for one in self.sent if one.numbers]
        for sent in self.sent:
            is_new = known.isdisjoint(sent.messages)
            known |= set(sent.messages)
            if is_new and sent.numbers and min(ended) < sent.began:
                found.append(sent)
        return found

    def judge_reads(self, log: dict[int, TopicMessage]) -> None:
        """Check that each message that was read before its ledger was closed is in the result."""
        for number, message in self.seen.items():
            assert log.get(number) == message, (number, message, log.get(number))

    def judge_producers(self, log: dict[int, TopicMessage]) -> None:
        """Check that the sequences of each producer rise, so that each is stored at most once."""
        last: dict[str, int] = {}
        for number in sorted(log):
            message = log[number]
            assert message.seq > last.get(message.producer, 0), (number, message)
            last[message.producer] = message.seq

    def judge_owners(self) -> None:
        """Check that messages that an owner acknowledged are before the start of later owners."""
        for epoch, end in self.opened:
            for sent in self.sent:
                if sent.epoch < epoch and sent.numbers:
                    assert all(number is None or number < end for number in sent.numbers), sent


def highest_of(sent: Sent) -> int:
    """The highest number in the answer to an append."""
    return max((number or 0 for number in sent.numbers or ()), default=0)
