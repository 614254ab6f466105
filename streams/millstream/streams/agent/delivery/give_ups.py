"""Gives up an event: asks the failure handler, and carries out its decision.

Owns the question, its time limit, the storage of the outcome, and the report to the consumer.
`delivery` decides when to give up.

Invariants:

- A dead letter or a fault is stored before the answer is given.
- A failure handler that fails or takes too long is asked again, without limit.
- The last answer is valid, even if an earlier one may have been stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from millstream.runtime import MillstreamError
from millstream.runtime.extending import SiloServices, show_text
from millstream.streams.api.inbox import inbox_name
from millstream.streams.api.rendezvous import Rendezvous, rendezvous_key, rendezvous_of
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.contracts.answers import text_of
from millstream.streams.contracts.identity import QueueId
from millstream.streams.failures.handler import DeliveryFailure, FailureHandler
from millstream.streams.failures.letters import DeadLetter, LetterRows, letter_id

from .delivery import Delivery
from .steps import DeliveryState, GiveUp
from .subscriber import Subscriber

__all__ = [
    "GiveUps",
    "error_text",
    "failure_of",
    "is_task",
    "log_outcome",
    "take_back_cancellation",
]

log = logging.getLogger("millstream.delivery")

OUTCOMES = ("dead_letter", "skip", "pause")
ERROR_CHARS_MAX = 16_384  # of a stored error
TELL_S = 10.0
"""Time limit of a method with `@on_error`, in seconds."""


class NoAnswer(Exception):
    """A failure handler took too long."""


class GiveUps:
    """Asks the failure handler of one provider, and carries out its decision.

    Args:
        gave_up: called with each event and its outcome.
        are_known: whether a token identifies an event forever, so that a repeated give-up is
            recognised.
    """

    def __init__(
        self,
        services: SiloServices,
        provider: str,
        handler: FailureHandler,
        letters: LetterRows,
        gave_up: Callable[[DeliveryFailure, str], None],
        *,
        are_known: bool,
    ) -> None:
        self._services = services
        self._provider, self._inbox_kind = provider, inbox_name(provider)
        self._handler = handler
        self._letters = letters
        self._gave_up = gave_up
        self._are_known = are_known

    async def decide(
        self, subscriber: Subscriber, delivery: Delivery, failure: DeliveryFailure
    ) -> Any:
        """Return the outcome after it is stored, or None if the subscription ended meanwhile.

        Raises the errors of the handler and of the store; then the caller asks again.
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
            await self._rendezvous(subscriber).change(subscriber.id, "faulted", failure.error)
        elif subscriber.may_be_faulted:  # the answer was lost, or the fault is stored later
            await self._rendezvous(subscriber).undo_fault(subscriber.id)
        subscriber.may_be_faulted = False
        if outcome == "dead_letter":
            await self.keep(failure)
        self._gave_up(failure, outcome)
        if failure.grain_type != self._inbox_kind:
            self._services.tasks.start(self._tell(failure))  # later deliveries follow this call
        return outcome

    def _rendezvous(self, subscriber: Subscriber) -> Rendezvous:
        kind = rendezvous_of(self._provider)
        return self._services.grain(kind, rendezvous_key(self._provider, subscriber.stream))

    async def keep(self, failure: DeliveryFailure) -> None:
        """Store a dead letter. Raises StorageError."""
        now_s = self._services.clock.wall_s()
        unique = "" if self._are_known else f"{int(now_s * 1e6):016x}"
        await self._letters.put(DeadLetter(failure, now_s, letter_id(failure, unique)))

    async def _tell(self, failure: DeliveryFailure) -> None:
        """Report the outcome to the grain, if it can be reached."""
        kind, key = failure.grain_type, failure.grain_key
        try:
            await self._services.extensions.method(kind, ConsumerExtension.give_up, TELL_S)(
                key, failure
            )
        except Exception as error:  # an error of the grain, or of the call
            text = "the call of @on_error of %s/%s failed for event %s, which was given up: %s"
            log.warning(text, kind, show_text(key), failure.token, error)

    async def _ask(self, failure: DeliveryFailure, timeout_s: float) -> Any:
        """Return the failure handler's answer. Raises its errors, and NoAnswer."""
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                outcome: Any = await self._handler.give_up(failure)
        except TimeoutError:
            if limit.expired():
                raise NoAnswer(
                    f"the failure handler gave no answer within {timeout_s:g} s "
                    "(DeliveryOptions.give_up_timeout_s); the subscription waits for an answer: "
                    "let `give_up` return sooner, or raise the limit"
                ) from None
            raise
        if outcome not in OUTCOMES:
            raise TypeError(f"`give_up` returned {outcome!r}, not one of {', '.join(OUTCOMES)}")
        return outcome

    def log_no_answer(self, failure: DeliveryFailure, error: BaseException) -> None:
        """Log that the failure handler will be asked again, with the reason."""
        is_known = isinstance(error, MillstreamError | NoAnswer)
        log.log(
            logging.WARNING if isinstance(error, MillstreamError) else logging.ERROR,
            "the failure handler (on_give_up) is called again for event %s of %s, subscription "
            "%s: %s",
            failure.token,
            show_text(str(failure.stream)),
            show_text(failure.subscription),
            error_text(error),
            exc_info=None if is_known else error,
        )


def failure_of(
    subscriber: Subscriber, action: GiveUp, provider: str, queue: QueueId
) -> DeliveryFailure:
    """Return the report for the failure handler about an event."""
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
    """Log the outcome of an event."""
    log.error(
        "subscription %s of %s gave up event %s after %d attempts (%s): %s",
        show_text(failure.subscription),
        show_text(str(failure.stream)),
        failure.token,
        failure.attempts,
        outcome,
        failure.error.splitlines()[0],
    )


def is_task(me: asyncio.Task[object] | None) -> bool:
    """Say whether this task is running. It is not if its coroutine is closed because its loop has
    ended."""
    loop = asyncio._get_running_loop()
    return loop is not None and asyncio.current_task(loop) is me


def error_text(error: BaseException) -> str:
    """Return an error with its notes, which have the callee's traceback, as text to store."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {text_of(error)}\n{notes}".rstrip()
    if len(text) > ERROR_CHARS_MAX:  # the end says where it was raised
        half = ERROR_CHARS_MAX // 2 - 20
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def take_back_cancellation(error: BaseException) -> None:
    """Undo a cancellation: while the dispatch is open, only the failure handler can have caused
    it."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None:
        task.uncancel()
