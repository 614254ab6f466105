"""Messages on their way into a queue of several shards: each to where it belongs.

Owns: `Offering`. Not: what is done when the layout has changed (`routed`).
Invariants: a message is offered to where it belonged before, and only who is told `Moved` there
offers it to where it belongs, with the floor of before; the answers are in the order of the
messages. A shard may be asked for several groups under one request id: it answers each message.
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
    """One enqueue, by a layout; `Moved`: that is not the queue's any more.

    Args:
        until_s: when the patience of the enqueue ends.
        done: answers by their messages' places, of earlier layouts, too: what was taken once is
            answered as it was then.
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
        """Offer it. Raises as the shards."""
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
        """All or nothing is what one shard can do."""
        homes = {self._homes(message) for message in command.messages}
        if len(homes) > 1 or any(len(one) > 1 for one in homes):
            what = "is for messages of one shard: of one exclusivity value, while none are moved"
            raise RequestInvalid(self._queue, "all_or_nothing", what)
        shard = homes.pop()[0] if homes else 0
        return cast(EnqueuedMany, await self._ask(shard, command))

    async def _many(self, messages: Sequence[Enqueue]) -> EnqueuedMany:
        """Each to its first home, and what has moved from there to its second one."""
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
        """Offer messages to one shard; its refusals, by their places among all."""
        command = EnqueueMany(tuple(messages.values()))
        found = cast(EnqueuedMany, await self._ask(shard, command))
        for at, answer in zip(messages, found.answers, strict=True):
            answers[at] = answer and self._done.setdefault(at, answer)
        places = list(messages)
        return [one._replace(at=places[one.at]) for one in found.refusals]

    def _behind(self, at: int, homes: tuple[int, ...], moved: Refused) -> tuple[int, ...]:
        """Where it is offered next. Raises `Moved`: nowhere by this layout."""
        if len(homes) == 1:
            raise Moved(self._queue, f"message {at}: {moved.text}", moved.floor)
        return homes[1:]
