"""A planted fault: a part of the reference breaks one rule, and one check must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.contract.adapters.pushing import PushedQueues, PushingBroker, Session, push_hooks
from tests.contract.reference import (
    KINDS,
    Broker,
    ReferenceAdapter,
    ReferenceQueues,
    ReferenceReader,
    ReferenceReceiver,
    hooks_of,
)

from millstream.streams import QueueAdapterFactory
from millstream.streams.testing import AdapterHooks

Make = Callable[[], QueueAdapterFactory]
Part = type[ReferenceAdapter] | type[ReferenceReceiver] | type[ReferenceReader]
P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Fault:
    """`check`: the name of the check that must refuse `part`, in a provider of this kind."""

    check: str
    kind: str
    part: Part

    def __str__(self) -> str:
        return f"{self.part.__name__}-{self.check}"

    def planted(self) -> tuple[Make, AdapterHooks]:
        """Return a function that makes factories over one provider, and the hooks of the suite."""
        broker = Broker()
        return lambda: self.factory(broker), hooks_of(broker)

    def factory(self, broker: Broker) -> ReferenceQueues:
        queues = ReferenceQueues(broker, KINDS[self.kind])
        if issubclass(self.part, ReferenceAdapter):
            queues.adapter_class = self.part
        elif issubclass(self.part, ReferenceReceiver):
            queues.receiver_class = self.part
        else:
            queues.reader_class = self.part
        return queues


@dataclass(frozen=True)
class SourceFault:
    """The same for a source that pushes."""

    check: str
    part: type[Session]

    def __str__(self) -> str:
        return f"{self.part.__name__}-{self.check}"

    def planted(self) -> tuple[Make, AdapterHooks]:
        broker = PushingBroker()
        return lambda: PushedQueues(broker, session_class=self.part), push_hooks(broker, self.part)


FAULTS: list[Fault | SourceFault] = []


def refused_by(check: str, kind: str = "ledger") -> Callable[[P], P]:
    """Plant this part in a provider of a kind."""

    def plant(part: P) -> P:
        FAULTS.append(Fault(check, kind, part))
        return part

    return plant


S = TypeVar("S", bound=type[Session])


def source_refused_by(check: str) -> Callable[[S], S]:
    """Plant this source in the provider that pushes."""

    def plant(part: S) -> S:
        FAULTS.append(SourceFault(check, part))
        return part

    return plant
