"""The bodies and queries of requests as types.

They decode requests, and the OpenAPI document is made of them, with their docstrings as
descriptions.

The limits of a queue itself are checked by the core.

Invariants: a field that is not declared here is refused. All layers below can represent the numbers
that are accepted here.
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
    Meta(
        ge=-PRIORITY_MAX,
        le=PRIORITY_MAX,
        description="lower is more urgent, such as a deadline in Unix milliseconds",
    ),
]
ClassName = Literal["DAY_OF_BROADCAST", "URGENT", "HIGH", "STANDARD", "LOW", "BULK"]
Pairs = Annotated[dict[str, str], Meta(max_length=4, description="at most 4 pairs of texts")]
PairTexts = Annotated[
    list[str], Meta(description="key=value; repeat the field for more pairs, each key once")
]
StateName = Literal["invisible", "pending", "running", "completed", "canceled", "errored"]


class NoFields(Struct, forbid_unknown_fields=True):
    """No fields."""


class Message(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message to enqueue.

    `priority` is a number, or a class that counts from the time of the enqueue; the default is
    STANDARD. Without an `id`, the server chooses one.
    """

    payload: bytes
    priority: Urgency | ClassName | None = None
    id: Name | None = None
    metadata: Pairs = {}
    invisible_s: Seconds | None = None
    lease_s: Seconds | None = None
    attempts: Attempts | None = None


class RawMessage(Struct, forbid_unknown_fields=True):
    """The fields of a message in the query of a request whose body is the payload."""

    priority: Urgency | ClassName | UnsetType = UNSET
    id: Name | UnsetType = UNSET
    metadata: PairTexts = []
    invisible_s: Seconds | UnsetType = UNSET
    lease_s: Seconds | UnsetType = UNSET
    attempts: Attempts | UnsetType = UNSET

    def with_payload(self, payload: bytes) -> Message:
        """The message with this payload. Raises Problem (400)."""
        given = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value is not UNSET
        }
        given["metadata"] = pairs_in("metadata", self.metadata)
        return Message(payload, **given)


class EnqueueMany(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Messages to enqueue, in order.

    With `all_or_nothing`, the first refused message refuses all of them.
    """

    messages: Annotated[list[Message], Meta(max_length=COUNT_MAX)]
    all_or_nothing: bool = False


class Requeue(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A copy of an errored or canceled message.

    Without `new_id`, the id is derived from the message and is the same each time.
    """

    new_id: Name | None = None


class Prioritise(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Another priority for a message."""

    priority: Urgency


class Dequeue(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request for leases.

    `wanted` limits it to messages that have all of these pairs. `wait_s` is the time to wait for a
    first message.
    """

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
    """The lease then ends `lease_s` from now.

    The default is the setting of the message or the queue.
    """

    lease_s: Seconds | None = None


class Release(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The message is given back, and can be leased again after `delay_s`.

    With `refund`, the attempt does not count.
    """

    delay_s: Seconds = 0.0
    refund: bool = False
    reason: str = ""


class AfterName(Struct, forbid_unknown_fields=True):
    """A page of names that begin with `prefix`, after the name `after`."""

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=NAMES_MAX)] = PAGE


class AfterSequence(Struct, forbid_unknown_fields=True):
    """A page of messages after the one with the sequence `after`.

    `payload` says whether to include payloads.
    """

    count: Count = PAGE
    after: Number = 0
    state: StateName | UnsetType = UNSET
    wanted: PairTexts = []
    payload: bool = True


class Peek(Struct, forbid_unknown_fields=True):
    """The first messages that a dequeue would lease."""

    count: Count = 1
    wanted: PairTexts = []
    payload: bool = True


class DepthQuery(Struct, forbid_unknown_fields=True):
    """Only messages that have all of these pairs and, if given, this exclusivity value."""

    wanted: PairTexts = []
    value: str | UnsetType = UNSET


class Version(Struct, forbid_unknown_fields=True):
    """The version of the settings on which the change is based."""

    version: Number | UnsetType = UNSET


SETTINGS = (
    "Settings of a queue. PATCH keeps the settings that the body omits; PUT uses their defaults."
)


def settings_type() -> type[Any]:
    """The settings of a queue, each of them optional."""
    hints: dict[str, Any] = get_type_hints(QueueSettings)
    named = [(one.name, hints[one.name] | UnsetType, UNSET) for one in fields(QueueSettings)]
    made: type[Any] = msgspec.defstruct(
        "Settings",
        named,
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": SETTINGS},
    )
    return made


Settings = settings_type()
