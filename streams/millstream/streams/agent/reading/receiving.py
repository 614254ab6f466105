"""Calls to one receiver of a queue adapter, contained: whatever they raise, or if they never end.

Owns: `Receiving`, the tasks in which one receiver is called. Not: what is called when, and for how
long (`reader`). Invariants: what an adapter raises becomes an event, its CancelledError too; no
call is cancelled before the receiver was closed; what does not end even then is left behind, and
nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import coroutine
from typing import Any

from millstream.runtime import CursorTooOld, QueueFenced
from millstream.runtime.extending import Budget, Runners, Tasks
from millstream.streams.contracts.answers import fault_of
from millstream.streams.contracts.queue import Measurable, QueueReceiver, TellsFailed
from millstream.streams.contracts.token import Token

from .steps import (
    Ack,
    Acked,
    Closed,
    Event,
    Extended,
    Failed,
    Gone,
    Got,
    Opened,
    Overtaken,
    Release,
    Released,
)

__all__ = ["Receiving", "end_tasks"]

log = logging.getLogger("millstream.agent")

END_S = 1.0  # for a call to end that is cancelled


class Receiving:
    """One receiver.

    Args:
        make: makes it.
        where: names provider and queue.
        tell: takes what comes of the calls.
        limit_s: how long `aclose`, or the last acknowledgement, may take.
        runners: in which it is started and read.
        budget: of the silo: reads that find something at once yield by it.
        given_up: events that are acknowledged as failed, and why; taken out once they are.
    """

    def __init__(
        self,
        serial: int,
        make: Callable[[], QueueReceiver],
        where: str,
        tell: Callable[[Event], None],
        tasks: Tasks,
        limit_s: float,
        runners: Runners,
        budget: Budget,
        given_up: dict[Token, str],
    ) -> None:
        self.serial = serial
        self._make = make
        self._where = where
        self._tell = tell
        self._tasks = tasks
        self._limit_s = limit_s
        self._runners = runners
        self._budget = budget
        self._given_up = given_up
        self._reading: asyncio.Task[Any] | None = None  # the runner of what is out
        self._read_at = ""  # names what is asked
        self._has_found = False  # the last read did
        self._settling: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._is_ended = False
        self.backlog = 0  # events not read yet, when it was measured last
        self.receiver: QueueReceiver | None = None

    # -- calls

    def open(self, after: Token | None) -> None:
        """Make the receiver and start it; then it can be called."""
        self._runners.start(self._open(after))

    async def _open(self, after: Token | None) -> None:
        if not self._is_ended:
            self._reading = asyncio.current_task()
            event = await self._contained("start", lambda: self._start(after))
            self._reading = None
            self._tell(event)

    async def _start(self, after: Token | None) -> Event:
        self.receiver = self._make()
        self._read_at = self._at("read")
        try:
            await self.receiver.start(after)
        except CursorTooOld as error:
            return Gone(self.serial, error.first if isinstance(error.first, Token) else None)
        return Opened(self.serial)

    def read(self, events: int, size_bytes: int, wait_s: float) -> None:
        """Read next; one read is out at a time."""
        self._runners.start(self._read(events, size_bytes, wait_s))

    async def _read(self, events: int, size_bytes: int, wait_s: float) -> None:
        if self._is_ended:
            return
        assert self.receiver is not None, "read before start"
        self._reading = asyncio.current_task()
        try:
            if self._has_found:
                await next_turn()  # what came of that, such as acknowledgements, is not kept off
            answer = await self.receiver.read(events, size_bytes, wait_s)
            self._has_found = bool(answer)
            event: Event = Got(self.serial, answer, self._read_at)
        except BaseException as error:
            event = self._event_of("read", error)
        self._reading = None
        # the deliveries that follow begin as this ends, in the same turn of the loop
        self._runners.goes_on = True
        try:
            self._tell(event)
        finally:
            self._runners.goes_on = False
        self._budget.left -= 1  # `spend`, without its frame
        if not self._budget.left:
            self._runners.share()
            await self._budget.pause()

    def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        """Acknowledge. Of this and the next two one call is out at a time."""

        async def act(receiver: QueueReceiver) -> Event:
            await self._acknowledge(upto, also, receiver)
            return Acked(self.serial)

        self._settle("ack", act)

    async def _acknowledge(
        self, upto: Token | None, also: Sequence[Token], receiver: QueueReceiver
    ) -> None:
        """What was given up is failed, where the queue tells that from what is done."""
        given_up = self._given_up
        if not given_up or not isinstance(receiver, TellsFailed):
            given_up.clear()
            await receiver.ack(upto, also)
            return
        for token in also:
            if token in given_up:
                await receiver.fail([token], given_up[token])
        await receiver.ack(upto, [token for token in also if token not in given_up])
        for token in also:
            given_up.pop(token, None)

    def extend(self, tokens: Sequence[Token], lease_s: float) -> None:
        """Hold messages for longer."""

        async def act(receiver: QueueReceiver) -> Event:
            lost = await receiver.extend(tokens, lease_s)
            return Extended(self.serial, lost, self._at("extend"))

        self._settle("extend", act)

    def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        """Give messages back to the queue."""

        async def act(receiver: QueueReceiver) -> Event:
            await receiver.release(tokens, delay_s, has_run)
            return Released(self.serial)

        self._settle("release", act)

    def _settle(self, method: str, act: Callable[[QueueReceiver], Awaitable[Event]]) -> None:
        receiver = self.receiver
        assert receiver is not None, f"{method} before start"

        async def call() -> None:
            event = await self._contained(method, lambda: act(receiver))
            self._settling = None
            self._tell(event)

        self._settling = self._tasks.start(call())

    async def measure(self) -> None:
        """Ask how much is not read yet, if the receiver can tell; waits no longer than the limit.

        A call that is late goes on, and no other is made while it does.
        """
        receiver = self.receiver
        if not isinstance(receiver, Measurable):
            return

        async def call() -> None:
            try:
                self.backlog = await receiver.backlog()
            except Exception as error:  # whatever an adapter raises
                log.info("%s", fault_of(self._at("backlog"), error))

        if self._measuring is None or self._measuring.done():
            self._measuring = self._tasks.start(call())
        await asyncio.wait([self._measuring], timeout=self._limit_s)

    async def _contained(self, method: str, call: Callable[[], Awaitable[Event]]) -> Event:
        """Call, and make an event of what is raised."""
        try:
            return await call()
        except BaseException as error:
            return self._event_of(method, error)

    def _event_of(self, method: str, error: BaseException) -> Event:
        """What a call has raised, as an event; raises it if it is not the adapter's.

        A task that was cancelled ends with this call: nobody but the adapter can have done that.
        """
        if isinstance(error, QueueFenced):
            return Overtaken(f"{self._at(method)}: {error}")
        if self._is_ended or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise error
        return Failed(self.serial, method, str(fault_of(self._at(method), error)))

    def _at(self, method: str) -> str:
        return f"{self._where}: {type(self.receiver).__name__}.{method}"

    # -- the end

    def abort(self) -> None:
        """Call nothing more, and end what is out."""
        self._is_ended = True
        if self._reading is not None:
            self._reading.cancel()

    def discard(self) -> None:
        """Close it beside everything else; tells `Closed` when that is done, or took too long."""

        async def close() -> None:
            await self.close()
            self._tell(Closed(self.serial))

        self._tasks.start(close())

    async def settle(self, ack: Ack | None, releases: Sequence[Release]) -> bool:
        """What is to be settled before the end, each within the limit; False: `ack` failed."""
        is_acked = True
        if ack is not None:
            is_acked = await self._last("ack", partial(self._acknowledge, ack.upto, ack.also))
        for one in releases:
            await self._last("release", partial(_release, one))
        return is_acked

    async def _last(self, method: str, call: Callable[[QueueReceiver], Awaitable[Any]]) -> bool:
        receiver = self.receiver
        if receiver is None:
            return False
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=self._limit_s)
        return await self._attempt(method, lambda: call(receiver))

    async def close(self) -> None:
        """End: close the receiver, then what is still out; takes the limit and a little at most."""
        self._is_ended = True
        receiver = self.receiver
        if receiver is not None:
            await self._attempt("aclose", receiver.aclose)
        # only now: a runner whose read has ended by that does something else
        calls = [one for one in (self._reading, self._settling, self._measuring) if one is not None]
        left = await end_tasks(calls)
        if self._reading is not None:
            self._runners.leave(self._reading)
        if left:
            log.warning(
                "%s: %d calls do not end although they were cancelled; they are left behind",
                f"{self._where}: {type(receiver).__name__}",
                left,
            )

    async def _attempt(self, method: str, call: Callable[[], Awaitable[Any]]) -> bool:
        """A last step: whatever becomes of it, the queue is let go."""

        async def contained() -> str:
            try:
                await call()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                return str(fault_of(self._at(method), error))
            return ""

        task = self._tasks.start(contained())
        await asyncio.wait([task], timeout=self._limit_s)
        said = f"{self._at(method)} gave no answer for {self._limit_s:g} s, and is left behind"
        if not task.done():
            task.cancel()
        elif task.cancelled():
            said = f"{self._at(method)} was cancelled"
        elif not (said := task.result()):
            return True
        log.warning("%s; the queue is let go", said)
        return False


def _release(back: Release, receiver: QueueReceiver) -> Awaitable[None]:
    return receiver.release(back.tokens, back.delay_s, back.has_run)


@coroutine
def next_turn() -> Generator[None, None, None]:
    """Let the loop go round once."""
    yield


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> int:
    """Cancel tasks and wait a little; returns how many do not end."""
    running = [task for task in tasks if not task.done() and task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    if not running:
        return 0
    _, left = await asyncio.wait(running, timeout=END_S)
    return len(left)
