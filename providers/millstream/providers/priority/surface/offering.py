"""The way of messages into a queue with several shards.

Owns `Offering`. `routed` reacts to a changed layout.

Invariants: a message is offered to its former shard first. Only after `Moved` it is offered to its
present shard, with the floor of the former one. Answers are in the order of the messages. A shard
may get several groups under one request id, because it answers each message by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from millstream.providers.priority.core.commands import Enqueue, EnqueueMany
from millstream.providers.priority.core.errors import Moved, RequestInvalid
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Enqueued, EnqueuedMany, Refused

from .calls import ShardCalls
from .layouts import Layout

__all__ = ["Offering"]


class Offering:
    """One enqueue by one layout. `Moved` means that the layout is outdated.

    Args:
        queue: Name of the queue.
        layout: The layout.
        shard: Returns the calls to a shard.
        until_s: End of the caller's patience.
        own: The caller's request id, if it has one.
        done: Answers by the positions of their messages, also those of earlier layouts. A message
            that was stored once keeps its first answer.
    """

    def __init__(
        self,
        queue: str,
        layout: Layout,
        shard: Callable[[int], ShardCalls],
        until_s: float,
        own: Request | None,
        done: dict[int, Enqueued],
    ) -> None:
        self._queue = queue
        self._layout = layout
        self._shard = shard
        self._until_s = until_s
        self._own = own
        self._done = done

    async def of(self, command: Enqueue | EnqueueMany) -> Enqueued | EnqueuedMany:
        """Offer the messages of a command. Raises the errors of the shards."""
        if isinstance(command, Enqueue):
            return await self._one(command)
        if command.all_or_nothing:
            return await self._whole(command)
        return await self._many(command.messages)

    async def _one(self, command: Enqueue) -> Enqueued:
        *before, home = self._homes(command)
        for shard in before:
            try:
                return cast(Enqueued, await self._ask(shard, command))
            except Moved as moved:
                command = command._replace(floor=moved.floor)
        return cast(Enqueued, await self._ask(home, command))

    def _ask(self, shard: int, command: Enqueue | EnqueueMany) -> Coroutine[Any, Any, Any]:
        return self._shard(shard).here(command, self._own, self._until_s)

    def _homes(self, command: Enqueue) -> tuple[int, ...]:
        return self._layout.homes_of(command.id, command.metadata)

    async def _whole(self, command: EnqueueMany) -> EnqueuedMany:
        """Offer all messages to one shard, because only one shard can store all or nothing."""
        homes = {self._homes(message) for message in command.messages}
        if len(homes) > 1 or any(len(one) > 1 for one in homes):
            what = (
                "needs messages of one shard: of one exclusivity value, and no change of shards in "
                "progress"
            )
            raise RequestInvalid(self._queue, "all_or_nothing", what)
        shard = homes.pop()[0] if homes else 0
        return cast(EnqueuedMany, await self._ask(shard, command))

    async def _many(self, messages: Sequence[Enqueue]) -> EnqueuedMany:
        """Offer each message to its first shard, and after `Moved` to its second one."""
        answers: list[Enqueued | None] = [None] * len(messages)
        refusals: dict[int, Refused] = {}
        left = {at: (message, self._homes(message)) for at, message in enumerate(messages)}
        while left:
            groups: dict[int, list[int]] = {}
            for at, (_, homes) in left.items():
                groups.setdefault(homes[0], []).append(at)
            offered = [
                self._group(shard, {at: left[at][0] for at in group}, answers)
                for shard, group in groups.items()
            ]
            found = {one.at: one for part in await asyncio.gather(*offered) for one in part}
            refusals |= {at: one for at, one in found.items() if one.kind != Moved.__name__}
            left = {
                at: (left[at][0]._replace(floor=one.floor), self._behind(at, left[at][1], one))
                for at, one in found.items()
                if one.kind == Moved.__name__
            }
        return EnqueuedMany(tuple(answers), tuple(refusals[at] for at in sorted(refusals)))

    async def _group(
        self, shard: int, messages: Mapping[int, Enqueue], answers: list[Enqueued | None]
    ) -> list[Refused]:
        """Offer messages to one shard, and return its refusals with their positions in the whole
        list.
        """
        command = EnqueueMany(tuple(messages.values()))
        found = cast(EnqueuedMany, await self._ask(shard, command))
        for at, answer in zip(messages, found.answers, strict=True):
            answers[at] = answer and self._done.setdefault(at, answer)
        places = list(messages)
        return [one._replace(at=places[one.at]) for one in found.refusals]

    def _behind(self, at: int, homes: tuple[int, ...], moved: Refused) -> tuple[int, ...]:
        """The remaining shards for a message. Raises `Moved` if this layout has none."""
        if len(homes) == 1:
            raise Moved(self._queue, f"message {at}: {moved.text}", moved.floor)
        return homes[1:]
