"""Mistakes with the contract suite and the push receiver. A line that ends with the mark E must be
refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.runtime import CursorTooOld
from millstream.streams import Capability, PushReceiver, QueueMessage, Token
from millstream.streams.testing import ADAPTER_CHECKS, AdapterHooks, run_adapter_check


class CannotPause:
    async def start(self, push: Callable[[QueueMessage], None], after: Token | None) -> None: ...
    async def ack(self, upto: Token | None, also: Sequence[Token]) -> None: ...
    async def aclose(self) -> None: ...
    def resume(self) -> None: ...


class PausesLater(CannotPause):
    async def pause(self) -> None: ...


class Pauses(CannotPause):
    def pause(self) -> None: ...


PushReceiver(CannotPause(), {Capability.ITEM_ACK})  # E
PushReceiver(PausesLater(), {Capability.ITEM_ACK})  # E
PushReceiver(Pauses())  # E
PushReceiver(Pauses(), {"item_ack"})  # E
PushReceiver(Pauses(), {Capability.ITEM_ACK}, 10)  # E


async def check() -> None:
    await run_adapter_check(ADAPTER_CHECKS[0], Pauses)  # E
    await run_adapter_check("a_list_is_stored_whole", Pauses)  # E
    ADAPTER_CHECKS[0].name = "mine"  # E
    AdapterHooks(kill=lambda: None)  # E
    CursorTooOld(Token(1, 1))  # E
