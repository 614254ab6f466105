"""A planted fault: one part of the reference breaks one rule, and one check must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.contract.reference import (
    KINDS,
    Broker,
    ReferenceAdapter,
    ReferenceQueues,
    ReferenceReader,
    ReferenceReceiver,
)

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

    def maker(self) -> Callable[[], ReferenceQueues]:
        """Makes factories over one provider."""
        broker = Broker()
        return lambda: self.factory(broker)

    def factory(self, broker: Broker) -> ReferenceQueues:
        queues = ReferenceQueues(broker, KINDS[self.kind])
        if issubclass(self.part, ReferenceAdapter):
            queues.adapter_class = self.part
        elif issubclass(self.part, ReferenceReceiver):
            queues.receiver_class = self.part
        else:
            queues.reader_class = self.part
        return queues


FAULTS: list[Fault] = []


def refused_by(check: str, kind: str = "ledger") -> Callable[[P], P]:
    """Plant this part in a provider of a kind."""

    def plant(part: P) -> P:
        FAULTS.append(Fault(check, kind, part))
        return part

    return plant
