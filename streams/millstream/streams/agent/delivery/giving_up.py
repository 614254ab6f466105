"""Giving up an event: the failure handler is asked, and what it decides is done.

Owns: the question, its time limit, and storing the outcome. Not: when an event is given up
(`delivery`). Invariants: a dead letter is stored, and a fault is written, before the answer is
given; a failure handler that fails, or takes too long, is asked again for ever; the last answer
holds, also where an earlier one may have been stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millstream.runtime import MillstreamError
from millstream.runtime.extending import shown
from millstream.streams.contracts.answers import text_of
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.failures.handler import DeliveryFailure, FailureHandler

from .delivery import Delivery
from .steps import DeliveryState, GiveUp
from .subscriber import Subscriber

__all__ = [
    "Aftermath",
    "GiveUps",
    "error_text",
    "failure_of",
    "is_task",
    "log_outcome",
    "take_back_cancellation",
]

log = logging.getLogger("millstream.delivery")

OUTCOMES = ("dead_letter", "skip", "pause")
ERROR_CHARS_MAX = 16_384  # of an error that is stored


class Aftermath(Protocol):
    """Where the outcome goes."""

    async def dead_letter(self, failure: DeliveryFailure, /) -> None:
        """Store a dead letter. Raises StorageError."""
        ...

    async def fault(self, stream: StreamId, subscription: str, note: str, /) -> None:
        """Mark a subscription as faulted. Raises MillstreamError."""
        ...

    async def undo_fault(self, stream: StreamId, subscription: str, /) -> None:
        """A fault that may be stored, or may be yet, does not hold. Raises MillstreamError."""
        ...

    def tell(self, failure: DeliveryFailure, /) -> None:
        """Tell the consumer, without waiting for it; whatever comes of it is contained."""
        ...


class NoAnswer(Exception):
    """A failure handler took too long."""


class GiveUps:
    """Asks the failure handler of one provider; `tell` hears of each event what became of it."""

    def __init__(
        self,
        handler: FailureHandler,
        aftermath: Aftermath,
        tell: Callable[[DeliveryFailure, str], None],
    ) -> None:
        self._handler = handler
        self._aftermath = aftermath
        self._tell = tell

    async def decide(
        self, subscriber: Subscriber, delivery: Delivery, failure: DeliveryFailure
    ) -> Any:
        """The outcome, once it is stored; None: the subscription ended meanwhile.

        Raises whatever the handler raises, and what storing raises: ask again.
        """
        outcome = subscriber.on_give_up
        if outcome is None:
            outcome = await self._ask(failure, subscriber.options.give_up_timeout_s)
        if delivery.state is DeliveryState.CLOSED:
            return None
        if outcome == "dead_letter" and not subscriber.keeps_dead_letters:
            outcome = "skip"
        failure = msgspec.structs.replace(failure, decision=outcome)
        if outcome == "pause":
            subscriber.may_be_faulted = True
            await self._aftermath.fault(subscriber.stream, subscriber.id, failure.error)
        elif subscriber.may_be_faulted:
            await self._aftermath.undo_fault(subscriber.stream, subscriber.id)
        subscriber.may_be_faulted = False
        if outcome == "dead_letter":
            await self._aftermath.dead_letter(failure)
        self._tell(failure, outcome)
        self._aftermath.tell(failure)
        return outcome

    async def _ask(self, failure: DeliveryFailure, timeout_s: float) -> Any:
        """The failure handler's answer. Raises what it raises, and NoAnswer."""
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                outcome: Any = await self._handler.give_up(failure)
        except TimeoutError:
            if limit.expired():
                raise NoAnswer(
                    f"no answer within {timeout_s:g} s (DeliveryOptions.give_up_timeout_s); the "
                    "subscription waits until there is one: let give_up return, or raise the limit"
                ) from None
            raise
        if outcome not in OUTCOMES:
            raise TypeError(f"give_up returned {outcome!r}, not one of {', '.join(OUTCOMES)}")
        return outcome

    def log_no_answer(self, failure: DeliveryFailure, error: BaseException) -> None:
        """Say that the failure handler will be asked again, and why."""
        is_known = isinstance(error, MillstreamError | NoAnswer)
        log.log(
            logging.WARNING if isinstance(error, MillstreamError) else logging.ERROR,
            "on_give_up for %s of %s for %s is asked again: %s",
            failure.token,
            shown(str(failure.stream)),
            shown(failure.subscription),
            error_text(error),
            exc_info=None if is_known else error,
        )


def failure_of(
    subscriber: Subscriber, action: GiveUp, provider: str, queue: QueueId
) -> DeliveryFailure:
    """What the failure handler is told of an event that is to be given up."""
    item = action.item
    return DeliveryFailure(
        provider,
        subscriber.id,
        subscriber.stream,
        item.token,
        item.body,
        dict(item.headers or {}),
        action.attempts,
        action.error.text,
        queue,
        subscriber.grain_type,
        subscriber.grain_key,
        subscriber.handler,
    )


def log_outcome(failure: DeliveryFailure, outcome: str) -> None:
    """Say what became of an event."""
    log.error(
        "%s gave up %s at %s after %d attempts (%s): %s",
        shown(failure.subscription),
        shown(str(failure.stream)),
        failure.token,
        failure.attempts,
        outcome,
        failure.error.splitlines()[0],
    )


def is_task(me: asyncio.Task[object] | None) -> bool:
    """Does this task run? Not if a coroutine of it is closed, because its loop has ended."""
    loop = asyncio._get_running_loop()
    return loop is not None and asyncio.current_task(loop) is me


def error_text(error: BaseException) -> str:
    """An error with its notes, which hold the callee's traceback, as text that can be stored."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {text_of(error)}\n{notes}".rstrip()
    if len(text) > ERROR_CHARS_MAX:  # the end tells where it was raised
        half = ERROR_CHARS_MAX // 2 - 20
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def take_back_cancellation(error: BaseException) -> None:
    """While the dispatch is open only the failure handler can have cancelled its task."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None:
        task.uncancel()
