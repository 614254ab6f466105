"""Paused implicit subscriptions, in namespaces that need no lookup per stream."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.streams import StreamId
from millstream.streams.agent.audience.stopped_subscriptions import StoppedSubscriptions
from millstream.streams.api.subscription_rows import SubscriptionRow

A, B = StreamId("ns", "a"), StreamId("ns", "b")


def row(name: str) -> SubscriptionRow:
    return SubscriptionRow(f"implicit/ns/{name}/on", name, "k", "on", False, "here", state="paused")


class Stored:
    def __init__(self, *rows: tuple[StreamId, SubscriptionRow]) -> None:
        self.rows = rows
        self.asked = 0

    async def read_held(self, namespace: str) -> Sequence[tuple[StreamId, SubscriptionRow]]:
        self.asked += 1
        return self.rows


async def test_it_is_read_once_for_all_streams() -> None:
    stored = Stored((A, row("One")), (B, row("Two")))
    holds = StoppedSubscriptions(stored)
    assert holds.find_known(A) is None
    assert list(await holds.of(A)) == [row("One")] and holds.find_known(B) == [row("Two")]
    await holds.of(B)
    assert stored.asked == 1


async def test_what_was_told_is_newer_than_what_is_read() -> None:
    holds = StoppedSubscriptions(Stored((A, row("One")), (A, row("Two"))))
    holds.tell(A, row("One"), is_held=False)
    holds.tell(B, row("Two"), is_held=True)
    assert list(await holds.of(A)) == [row("Two")] and holds.find_known(B) == [row("Two")]
    holds.tell(A, row("Two"), is_held=False)
    holds.tell(B, row("Two"), is_held=False)
    assert holds.find_known(A) == holds.find_known(B) == []
