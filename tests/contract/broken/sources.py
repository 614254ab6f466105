"""Sources that push while they are paused, or lose or repeat messages because of a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.contract.adapters.pushing import Session
from tests.contract.broken.fault import source_refused_by

from millstream.streams import QueueMessage, Token

Push = Callable[[QueueMessage], None]


@source_refused_by("a_paused_source_pushes_nothing")
class HeedsNoPause(Session):
    def pause(self) -> None: ...


@source_refused_by("a_paused_source_pushes_nothing")
class PushesABitWhilePaused(Session):
    """Pushes one message every few milliseconds, even while it is paused."""

    def pause(self) -> None:
        super().pause()
        asyncio.get_running_loop().call_later(0.02, self.push_one)

    def push_one(self) -> None:
        rest = [one for number, one in self._topic.kept.items() if number > self._pushed]
        if rest and self._is_paused and self._push is not None:
            self._push(rest[0])
            self._pushed = rest[0].token.seq
            asyncio.get_running_loop().call_later(0.02, self.push_one)


@source_refused_by("pausing_loses_and_repeats_nothing")
class LosesWhatIsOnItsWay(Session):
    """Drops the messages that were under way when the pause came."""

    def resume(self) -> None:
        self._pushed += 2
        super().resume()


@source_refused_by("pausing_loses_and_repeats_nothing")
class LosesWhatIsRefused(Session):
    """Ignores pauses, and takes each push for accepted."""

    def pause(self) -> None: ...

    def _go_on(self) -> None:
        for number, message in list(self._topic.kept.items()):
            if number > self._pushed and self._push is not None:
                self._pushed = number
                self._push(message)


@source_refused_by("pausing_loses_and_repeats_nothing")
class RepeatsTheFirst(Session):
    """Continues where it had continued before."""

    first: QueueMessage | None = None

    def _go_on(self) -> None:
        self.first = self._topic.kept.get(self._pushed + 1, self.first)
        super()._go_on()

    def resume(self) -> None:
        if self._push is not None and self.first is not None:
            self._push(self.first)
        super().resume()


@source_refused_by("pausing_loses_and_repeats_nothing")
class NeverGoesOn(Session):
    def resume(self) -> None: ...


@source_refused_by("a_process_that_died_keeps_no_queue")
class KeepsItsPartition(Session):
    """Gives the topic to its first session until that says goodbye, although its process has
    crashed."""

    async def start(self, push: Push, after: Token | None, /) -> None:
        if self._topic.session is None:
            await super().start(push, after)
        else:
            self._push = push
            self._topic.__dict__.setdefault("waiting", []).append(self)

    async def aclose(self) -> None:
        is_mine = self._topic.session is self
        await super().aclose()
        waiting: list[Session] = self._topic.__dict__.get("waiting", [])
        if self in waiting:
            waiting.remove(self)
        if is_mine and waiting:
            self._topic.connect(waiting[0])
            waiting.pop(0).wake()
