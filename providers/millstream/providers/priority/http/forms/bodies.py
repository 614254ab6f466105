"""What requests bring, as types: they decode a request, and the OpenAPI document is made of them.

Owns: bodies and queries. Not: limits that a queue has itself (the core).
Invariants: a field that is not here is refused; numbers are such that every part below can say
them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.providers.priority.core.body import PRIORITY_MAX
from millstream.providers.priority.core.core import COUNT_MAX
from millstream.providers.priority.core.requests.sessions import NUMBER_MAX
from millstream.providers.priority.core.settings import QueueSettings
from millstream.providers.priority.owner.target import NAMES_MAX
from millstream.providers.priority.surface.given import ATTEMPTS_MOST, SECONDS_MAX

from .strict import pairs_in

__all__ = [
    "AfterName",
    "AfterSequence",
    "DepthQuery",
    "Dequeue",
    "EnqueueMany",
    "Extend",
    "Message",
    "NoFields",
    "Peek",
    "Prioritise",
    "RawMessage",
    "Reason",
    "Release",
    "Requeue",
    "Settings",
    "Version",
]

PAGE = 100
Name = Annotated[str, Meta(description="a text of at most 256 bytes")]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Attempts = Annotated[int, Meta(ge=1, le=ATTEMPTS_MOST)]
Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Urgency = Annotated[
    int,
    Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX, description="lower is more urgent, Unix milliseconds"),
]
ClassName = Literal["DAY_OF_BROADCAST", "URGENT", "HIGH", "STANDARD", "LOW", "BULK"]
Pairs = Annotated[dict[str, str], Meta(max_length=4, description="at most 4 pairs of texts")]
PairTexts = Annotated[list[str], Meta(description="key=value, each once; may be repeated")]
StateName = Literal["invisible", "pending", "running", "completed", "canceled", "errored"]


class NoFields(Struct, forbid_unknown_fields=True):
    """No fields."""


class Message(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message to enqueue. `priority`: a number, or a class from the time of the enqueue, which is
    STANDARD by default. Without an `id` one is made."""

    payload: bytes
    priority: Urgency | ClassName | None = None
    id: Name | None = None
    metadata: Pairs = {}
    invisible_s: Seconds | None = None
    lease_s: Seconds | None = None
    attempts: Attempts | None = None


class RawMessage(Struct, forbid_unknown_fields=True):
    """The fields of a message whose payload is the body."""

    priority: Urgency | ClassName | UnsetType = UNSET
    id: Name | UnsetType = UNSET
    metadata: PairTexts = []
    invisible_s: Seconds | UnsetType = UNSET
    lease_s: Seconds | UnsetType = UNSET
    attempts: Attempts | UnsetType = UNSET

    def with_payload(self, payload: bytes) -> Message:
        """The message. Raises Problem (400)."""
        given = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value is not UNSET
        }
        given["metadata"] = pairs_in("metadata", self.metadata)
        return Message(payload, **given)


class EnqueueMany(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Messages in order. `all_or_nothing`: the first refusal refuses all."""

    messages: Annotated[list[Message], Meta(max_length=COUNT_MAX)]
    all_or_nothing: bool = False


class Requeue(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An errored or canceled message once more; without a `new_id` one is made of the message's,
    the same each time."""

    new_id: Name | None = None


class Prioritise(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Another priority."""

    priority: Urgency


class Dequeue(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Lease messages. `wanted`: only those with all of these pairs; `wait_s`: wait so long for a
    first one."""

    worker: Name
    count: Count = 1
    wanted: Pairs = {}
    lease_s: Seconds | None = None
    wait_s: Seconds = 0.0
    same_value_ok: bool = False


class Reason(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Why, in at most 1,024 bytes."""

    reason: str = ""


class Extend(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The lease holds for so long from now; by default as message and queue say."""

    lease_s: Seconds | None = None


class Release(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The message is given back, to be had after `delay_s`; `refund`: the attempt was none."""

    delay_s: Seconds = 0.0
    refund: bool = False
    reason: str = ""


class AfterName(Struct, forbid_unknown_fields=True):
    """A page of names that begin with `prefix`, after one."""

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=NAMES_MAX)] = PAGE


class AfterSequence(Struct, forbid_unknown_fields=True):
    """A page of messages, behind the one with the sequence `after`. `payload`: with payloads."""

    count: Count = PAGE
    after: Number = 0
    state: StateName | UnsetType = UNSET
    wanted: PairTexts = []
    payload: bool = True


class Peek(Struct, forbid_unknown_fields=True):
    """The first so many that a dequeue would lease."""

    count: Count = 1
    wanted: PairTexts = []
    payload: bool = True


class DepthQuery(Struct, forbid_unknown_fields=True):
    """Only messages with all of these pairs, only those of this exclusivity value."""

    wanted: PairTexts = []
    value: str | UnsetType = UNSET


class Version(Struct, forbid_unknown_fields=True):
    """Which version of the settings the caller knew."""

    version: Number | UnsetType = UNSET


def settings_type() -> type[Any]:
    """The settings of a queue, of which each may be left out."""
    hints: dict[str, Any] = get_type_hints(QueueSettings)
    named = [(one.name, hints[one.name] | UnsetType, UNSET) for one in fields(QueueSettings)]
    made: type[Any] = msgspec.defstruct(
        "Settings",
        named,
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": "Settings of a queue; those that are left out stay as they are."},
    )
    return made


Settings = settings_type()
