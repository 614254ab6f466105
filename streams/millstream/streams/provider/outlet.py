"""Where an agent's deliveries go: to the grains of the cluster, or where the failed ones end.

Owns: `SiloOutlet`. Not: when something is sent or given up (`agent`).
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from millstream.runtime import with_options
from millstream.runtime.extending import SiloServices, shown
from millstream.streams.api.inbox import inbox_name
from millstream.streams.api.rendezvous import rendezvous_key, rendezvous_of
from millstream.streams.consumer.batch import Delivered, WireBatch
from millstream.streams.consumer.extension import Consumer
from millstream.streams.contracts.identity import StreamId
from millstream.streams.failures.handler import DeliveryFailure
from millstream.streams.failures.letters import DeadLetter, LetterRows, letter_id
from millstream.streams.inbox.inbox import inbox_grain_of

__all__ = ["SiloOutlet"]

log = logging.getLogger("millstream.delivery")

TELL_S = 10.0
"""How long a method with `@on_error` may take."""


class SiloOutlet:
    """The consumers and the dead letters of one provider (`Outlet`, `Aftermath`).

    `are_known`: a token tells an event for good, so that one that is given up again is known.
    """

    def __init__(
        self, provider: str, services: SiloServices, letters: LetterRows, are_known: bool
    ) -> None:
        self._services = services
        self._letters = letters
        self._are_known = are_known
        self._inbox_kind = inbox_name(provider)
        self.provider = provider
        self.silo = services.address

    def deliver(
        self, kind: str, key: str, batch: WireBatch, timeout_s: float, /
    ) -> Coroutine[Any, Any, Delivered]:
        """Call the consumer of a grain. Raises what calls raise."""
        if kind == self._inbox_kind:
            inbox = self._services.grain(inbox_grain_of(self.provider), key)
            return with_options(inbox, timeout=timeout_s).deliver(batch)
        return self._services.extensions.method(kind, Consumer.deliver, timeout_s)(key, batch)

    def silo_of(self, kind: str, key: str, /) -> str:
        """Where a grain is, as far as this silo knows; empty: it is not known."""
        return self._services.silo_of(kind, key)

    def error_of(self, data: bytes, /) -> Exception:
        """The error in a reply."""
        return self._services.decode_error(data)

    async def dead_letter(self, failure: DeliveryFailure, /) -> None:
        """Store a dead letter. Raises StorageError."""
        now_s = self._services.clock.wall_s()
        unique = "" if self._are_known else f"{int(now_s * 1e6):016x}"
        await self._letters.put(DeadLetter(failure, now_s, letter_id(failure, unique)))

    def tell(self, failure: DeliveryFailure, /) -> None:
        """Tell the grain, if it can be reached; what is delivered next is sent behind it."""
        if failure.grain_type != self._inbox_kind:
            self._services.tasks.start(self._tell(failure))

    async def _tell(self, failure: DeliveryFailure) -> None:
        kind, key = failure.grain_type, failure.grain_key
        try:
            await self._services.extensions.method(kind, Consumer.failed, TELL_S)(key, failure)
        except Exception as error:  # the grain's own, or on the way to it
            text = "%s/%s was not told, or failed, that %s was given up: %s"
            log.warning(text, kind, shown(key), failure.token, error)

    async def fault(self, stream: StreamId, subscription: str, note: str, /) -> None:
        """Mark a subscription as faulted: its events wait until it is resumed."""
        key = rendezvous_key(self.provider, stream)
        await self._services.grain(rendezvous_of(self.provider), key).change(
            subscription, "faulted", note
        )

    async def undo_fault(self, stream: StreamId, subscription: str, /) -> None:
        """A fault whose answer was lost does not hold, also if it is stored later."""
        key = rendezvous_key(self.provider, stream)
        await self._services.grain(rendezvous_of(self.provider), key).undo_fault(subscription)
