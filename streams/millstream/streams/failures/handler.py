"""Events that were given up: what is known of one, and who decides what becomes of it.

Owns: `DeliveryFailure`, the `FailureHandler` contract and its default. Not: when an event is given
up (`agent`), where it is kept (`letters`).
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


DECISIONS: tuple[GiveUpDecision, ...] = ("dead_letter", "skip", "pause")


class DeliveryFailure(msgspec.Struct, frozen=True):
    """What is known of an event that was given up.

    `body` is the encoded item; `error` the last error with its traceback, at most 16,384
    characters; `queue`, `grain_type`, `grain_key` and `handler`: where it came from and went to.
    `decision`: what became of it; None: nobody has decided yet.
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
    """Decides what becomes of an event that was given up."""

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision: ...


class Always:
    """The same answer for every event: `on_give_up="pause"`."""

    def __init__(self, decision: GiveUpDecision) -> None:
        self._decision: GiveUpDecision = decision

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        return self._decision


class KeepDeadLetters:
    """The default: store every one."""

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        return "dead_letter"
