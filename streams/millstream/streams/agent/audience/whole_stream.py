"""All subscriptions of a stream at once: they are paused with it, and go on with it.

Owns: `follow_stream`. Not: who says so, and keeping it (`subscribers`, the rendezvous grain).
Invariants: what was said last holds, also for those that come meanwhile; who is paused or faulted
by itself stays so when the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.agent.delivery.subscriber import Subscriber

from .fan_out import AT_ONCE
from .stream_entry import StreamEntry, parts

__all__ = ["follow_few", "follow_stream"]


async def follow_stream(entry: StreamEntry, deliveries: Dispatch) -> None:
    """Let all subscriptions wait, or go on, as is known of the stream."""
    many = parts(list(entry.subscribers.values()), AT_ONCE)
    for number, part in enumerate(many):
        if number:
            await asyncio.sleep(0)
        _follow(part, deliveries, is_paused=entry.is_paused)


def follow_few(entry: StreamEntry, deliveries: Dispatch) -> None:
    """As `follow_stream`, for a stream with few subscriptions."""
    _follow(entry.subscribers.values(), deliveries, is_paused=entry.is_paused)


def _follow(part: Iterable[Subscriber], deliveries: Dispatch, *, is_paused: bool) -> None:
    for one in part:
        if one.is_paused is is_paused:
            continue
        one.is_paused = is_paused
        if is_paused:
            deliveries.hold(one)
        else:
            deliveries.retry(one)
