"""Calls to a queue adapter, contained: they may raise anything, or never end.

Owns `answer_of`, a call with a time limit, and `ContainedReceiver`, the tasks that call one
receiver. `reader` decides which call is made, when, and for how long.

Invariants:

- An error that an adapter raises becomes a fault of that adapter, even a CancelledError.
- No call is cancelled before the receiver was closed.
- A call that does not end even then is abandoned; no task waits for it.
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
from millstream.streams.contracts.answers import AdapterFault, fault_of
from millstream.streams.contracts.queue import Measurable, QueueReceiver, TellsFailed
from millstream.streams.contracts.token import Token

from .reader import ReaderCore
from .steps import Ack, Extend, Release

__all__ = ["ContainedReceiver", "answer_of", "end_tasks"]

log = logging.getLogger("millstream.agent")

END_S = 1.0  # for a cancelled call to end


class ContainedReceiver:
    """One receiver of an adapter, whose errors do not reach the agent.

    Args:
        make: makes the receiver.
        where: names provider and queue.
        core: learns the end of each call.
        tell: calls a method of `core`, and carries out its actions.
        limit_s: time limit of `aclose`, and of a call of `settle_last`.
        runners: run `open` and `read`.
        budget: of the silo: reads that find messages at once yield by it.
        given_up: events to acknowledge as failed, with their errors; removed once they are.
    """

    def __init__(
        self,
        serial: int,
        make: Callable[[], QueueReceiver],
        where: str,
        core: ReaderCore,
        tell: Callable[..., None],
        tasks: Tasks,
        limit_s: float,
        runners: Runners,
        budget: Budget,
        given_up: dict[Token, str],
    ) -> None:
        self._serial = serial
        self._make = make
        self._where = where
        self._core = core
        self._tell = tell
        self._tasks = tasks
        self._limit_s = limit_s
        self._runners = runners
        self._budget = budget
        self._given_up = given_up
        self._reading: asyncio.Task[Any] | None = None  # the runner of the call in flight
        self._read_at = ""  # names adapter and method
        self._has_found = False  # the last read found messages
        self._settling: asyncio.Task[None] | None = None
        self._measurable: Measurable | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._is_ended = False
        self.backlog = 0  # unread events at the last measurement
        self.receiver: QueueReceiver | None = None

    # -- calls

    async def open(self, after: Token | None) -> None:
        """Make the receiver and start it, in a runner; then it can be called."""
        if self._is_ended:
            return
        self._reading = self._runners.runner
        told: tuple[Any, ...] = (self._core.on_opened, self._serial)
        try:
            self.receiver = receiver = self._make()
            self._measurable = receiver if isinstance(receiver, Measurable) else None
            self._read_at = self._at("read")
            await self.receiver.start(after)
        except CursorTooOld as error:
            first = error.first if isinstance(error.first, Token) else None
            told = (self._core.on_gone, self._serial, first)
        except BaseException as error:
            told = self._failure("start", error)
        self._reading = None
        self._tell(*told)

    async def read(self, events: int, size_bytes: int, wait_s: float) -> None:
        """Read the next messages, in a runner; one read is in flight at a time."""
        if self._is_ended:
            return
        assert self.receiver is not None, "read before start"
        self._reading = self._runners.runner
        told: tuple[Any, ...]
        try:
            if self._has_found:
                await next_turn()  # lets acknowledgements of the last read run
            answer = await self.receiver.read(events, size_bytes, wait_s)
            self._has_found = bool(answer)
            told = (self._core.on_read, self._serial, answer, self._read_at)
        except BaseException as error:
            told = self._failure("read", error)
        self._reading = None
        # The following deliveries begin when this ends, in the same iteration of the loop.
        self._runners.goes_on = True
        try:
            self._tell(*told)
        finally:
            self._runners.goes_on = False
        self._budget.left -= 1  # like `spend`, without its frame
        if not self._budget.left:
            self._runners.share()
            await self._budget.pause()

    def settle(self, call: Ack | Extend | Release) -> None:
        """Make this call. At most one such call and one read are in flight at a time."""
        self._settling = self._tasks.start(self._settle(call))

    async def _settle(self, call: Ack | Extend | Release) -> None:
        method = type(call).__name__.lower()
        told: tuple[Any, ...]
        try:
            answer = await self._answer_to(call)
            told = (self._core.on_settled, self._serial, answer, self._at(method))
        except BaseException as error:
            told = self._failure(method, error)
        self._settling = None
        self._tell(*told)

    async def _answer_to(self, call: Ack | Extend | Release) -> object:
        """Make the call. Raises any error of the adapter."""
        receiver = self.receiver
        assert receiver is not None, "nothing is settled before start"
        if isinstance(call, Extend):
            return await receiver.extend(call.tokens, call.lease_s)
        if isinstance(call, Release):
            await receiver.release(call.tokens, call.delay_s, call.has_run)
        else:
            await self._acknowledge(call, receiver)
        return None

    async def _acknowledge(self, ack: Ack, receiver: QueueReceiver) -> None:
        """Acknowledge; given-up events are acknowledged as failed, if the queue distinguishes
        them."""
        given_up = self._given_up
        if not given_up or not isinstance(receiver, TellsFailed):
            given_up.clear()
            await receiver.ack(ack.upto, ack.also)
            return
        for token in ack.also:
            if token in given_up:
                await receiver.fail([token], given_up[token])
        await receiver.ack(ack.upto, [token for token in ack.also if token not in given_up])
        for token in ack.also:
            given_up.pop(token, None)

    async def measure(self) -> None:
        """Ask for the unread backlog, if the receiver can tell; waits no longer than the limit.

        A late call continues, and no other one is made meanwhile.
        """
        self.ask_backlog()
        if self._measuring is not None:
            await asyncio.wait([self._measuring], timeout=self._limit_s)

    def ask_backlog(self) -> None:
        """Do the same as `measure`, without waiting for the answer."""
        if self._measurable is not None and (self._measuring is None or self._measuring.done()):
            self._measuring = self._tasks.start(self._measure(self._measurable))

    async def _measure(self, receiver: Measurable) -> None:
        try:
            self.backlog = await receiver.backlog()
        except Exception as error:  # an adapter may raise anything
            log.info("%s", fault_of(self._at("backlog"), error))

    def _failure(self, method: str, error: BaseException) -> tuple[Any, ...]:
        """Return the call that tells the core of an error; raises one that is not the adapter's.

        A cancelled task ends with this call, because only the adapter can have cancelled it.
        """
        if isinstance(error, QueueFenced):
            return self._core.overtaken, f"{self._at(method)}: {error}"
        if self._is_ended or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise error
        return self._core.on_failed, self._serial, method, str(fault_of(self._at(method), error))

    def _at(self, method: str) -> str:
        return f"{self._where}: {type(self.receiver).__name__}.{method}"

    # -- the end

    def abort(self) -> None:
        """Make no more calls, and cancel the call in flight."""
        self._is_ended = True
        if self._reading is not None:
            self._reading.cancel()

    async def discard(self) -> None:
        """Close the receiver. Then, or when that took too long, tell the core (`on_closed`)."""
        await self.close()
        self._tell(self._core.on_closed, self._serial)

    async def settle_last(self, ack: Ack | None, releases: Sequence[Release]) -> bool:
        """Make the last calls, each within the limit.

        Return False if `ack` was not made, or failed.
        """
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=self._limit_s)
        is_acked = ack is None or await self._attempt("ack", partial(self._answer_to, ack))
        for one in releases:
            await self._attempt("release", partial(self._answer_to, one))
        return is_acked

    async def close(self) -> None:
        """Close the receiver, then end its calls; takes the limit and a little more."""
        self._is_ended = True
        if self.receiver is not None:
            await self._attempt("aclose", self.receiver.aclose)
        # Only now: a runner whose read has ended by then does other work.
        calls = [one for one in (self._reading, self._settling, self._measuring) if one is not None]
        left = await end_tasks(calls)
        if self._reading is not None:
            self._runners.leave(self._reading)
        if left:
            log.warning(
                "%s: %d calls ignored their cancellation, and were abandoned",
                f"{self._where}: {type(self.receiver).__name__}",
                left,
            )

    async def _attempt(self, method: str, call: Callable[[], Awaitable[object]]) -> bool:
        """Make a last call; the queue is given up whether it succeeds or not."""
        try:
            await answer_of(self._tasks, lambda: self._at(method), call, self._limit_s)
        except AdapterFault as fault:
            log.warning("%s; the agent stops all the same", fault)
            return False
        return True


async def answer_of(
    tasks: Tasks,
    where: Callable[[], str],
    call: Callable[[], Awaitable[object]],
    limit_s: float,
) -> Any:
    """Return the answer of an adapter to a call, which runs in a task of its own.

    Raises AdapterFault for any error of the adapter, even a CancelledError. It is also raised for a
    call without an answer within `limit_s`, which is abandoned. `where` names adapter and method.
    """

    async def contain() -> object:
        try:
            return await call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return AdapterFault(str(fault_of(where(), error)))

    task = tasks.start(contain())
    await asyncio.wait([task], timeout=limit_s)
    if not task.done():
        task.cancel()
        raise AdapterFault(f"{where()} gave no answer for {limit_s:g} s, and was abandoned")
    if task.cancelled():
        raise AdapterFault(f"{where()} was cancelled")
    answer = task.result()
    if isinstance(answer, AdapterFault):
        raise answer
    return answer


@coroutine
def next_turn() -> Generator[None, None, None]:
    """Let the loop run one iteration."""
    yield


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> int:
    """Cancel tasks and wait a little; returns the number of those that do not end."""
    running = [task for task in tasks if not task.done() and task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    if not running:
        return 0
    _, left = await asyncio.wait(running, timeout=END_S)
    return len(left)
