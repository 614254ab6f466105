"""Events that were given up: the facts about one, and the contract of the handler that decides.

Owns: `DeliveryFailure`, the `FailureHandler` contract and its default. Not: the moment at which an
event is given up (`agent`), stored letters (`letters`).
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import msgspec

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = [
    "DECISIONS",
    "Always",
    "DeliveryFailure",
    "FailureHandler",
    "GiveUpDecision",
    "KeepDeadLetters",
]

GiveUpDecision = Annotated[
    Literal["dead_letter", "skip", "pause"], "what becomes of an event that was given up"
]
"""The fate of an event that was given up.

- `"dead_letter"`: it is stored as a dead letter.
- `"skip"`: it is acknowledged and lost.
- `"pause"`: the subscription is faulted until `resume`, and the event is attempted again then.
"""


DECISIONS: tuple[GiveUpDecision, ...] = ("dead_letter", "skip", "pause")


class DeliveryFailure(msgspec.Struct, frozen=True):
    """The facts about an event that was given up.

    Attributes:
        provider: name of the stream provider.
        subscription: id of the subscription that failed.
        stream: the stream.
        token: the position of the event.
        body: the encoded item; `namespace.codec.decode(body)` decodes it.
        headers: the headers of the event.
        attempts: number of attempts.
        error: the last error with its traceback, at most 16,384 characters.
        queue: the queue that carried the event.
        grain_type: type of the grain.
        grain_key: key of the grain.
        handler: name of the method.
        decision: the fate of the event. None: it is not decided yet.
    """

    provider: str
    subscription: str
    stream: StreamId
    token: Token
    body: bytes
    headers: dict[str, str]
    attempts: int
    error: str
    queue: str = ""
    grain_type: str = ""
    grain_key: str = ""
    handler: str = ""
    decision: GiveUpDecision | None = None


class FailureHandler(Protocol):
    """Decides the fate of events that were given up: `PersistentStreams(on_give_up=...)`.

    If the handler raises, or does not answer within `give_up_timeout_s`, it is called again after a
    back-off, without end.
    """

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        """Decide the fate of one event.

        Args:
            failure: the facts about the event; its `decision` is None.
        """
        ...


class Always:
    """The same answer for every event: `on_give_up="pause"`."""

    def __init__(self, decision: GiveUpDecision) -> None:
        self._decision: GiveUpDecision = decision

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        return self._decision


class KeepDeadLetters:
    """The default failure handler: stores every given-up event as a dead letter."""

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        """Return `"dead_letter"`.

        Args:
            failure: the facts about the event.
        """
        return "dead_letter"
