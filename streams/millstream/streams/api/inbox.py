"""The inbox of a consumer outside the cluster, as both of its ends know it.

Owns: the contract `Inbox` and its answers. Not: the grain behind it (`inbox`), the loop over its
events (`stream_events`). Invariants: each named subscription has one inbox, found by its key. Of
several sessions, the one with the highest number is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from urllib.parse import quote

import msgspec

from millstream.runtime import Contract, grain
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .stream_key import join_key, split_key

__all__ = [
    "EPHEMERAL",
    "Acks",
    "Inbox",
    "Taken",
    "inbox_id",
    "inbox_key",
    "inbox_name",
    "inbox_of",
    "is_ephemeral",
    "parse_inbox_key",
]


EPHEMERAL = "~"
"""The first character of generated names, for consumers that gave no name."""
QUOTED_AS_IS = " :@#"


class Acks(msgspec.Struct, array_like=True, frozen=True):
    """Acknowledgements of a session: `tokens` of events of one queue; `last`: the newest of all."""

    queue: str = ""
    tokens: Sequence[Token] = ()
    last: Token | None = None


class Taken(msgspec.Struct, array_like=True, frozen=True):
    """The answer of an inbox.

    `seen_before`: number of items, from the first on, that may have been handled before. `beat_s`:
    call again within that time. `is_over`: the reason why the session has ended: another session is
    served, or the subscription ended. `gap`: just before the items, events are missing: those
    stored after the first token and before the second.
    """

    queue: str = ""
    items: Sequence[Item] = ()
    seen_before: int = 0
    attempt: int = 1
    beat_s: float = 0.0
    is_over: str = ""
    gap: tuple[Token | None, Token] | None = None


class Inbox(Contract):
    """Events that wait for a consumer outside the cluster; each provider has its own class."""

    async def take(self, session: int, acks: Acks, events_max: int, wait_s: float) -> Taken:
        """Acknowledge events, and take at most `events_max` events that are not acknowledged.

        Waits up to `wait_s` for the first event. A repeated call does no harm.
        """
        raise NotImplementedError

    async def leave(self, session: int, acks: Acks) -> None:
        """Acknowledge events and end the session; a repeated call does no harm."""
        raise NotImplementedError

    async def look(self) -> None:
        """Activate the inbox, so that it notices if no consumer takes events."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the session: the subscription has ended."""
        raise NotImplementedError


def inbox_key(provider: str, stream: StreamId, name: str) -> str:
    """The key of a subscription's inbox."""
    return join_key(provider, *stream, name)


def parse_inbox_key(key: str) -> tuple[str, StreamId, str]:
    """Provider, stream and name of a subscription."""
    provider, namespace, stream, name = split_key(key)
    return provider, StreamId(namespace, stream), name


def inbox_id(provider: str, stream: StreamId, name: str) -> str:
    """The id of the subscription of a consumer outside the cluster."""
    return "/".join(
        ("outside", *(quote(part, safe=QUOTED_AS_IS) for part in (provider, *stream, name)))
    )


def is_ephemeral(name: str) -> bool:
    """Whether the subscription ends with its consumer."""
    return name.startswith(EPHEMERAL)


def inbox_name(provider: str) -> str:
    """The name of the grain type of a provider's inboxes."""
    return f"millstream.Inbox.{provider}"


@cache  # one class for each provider, in every silo and client of the process
def inbox_of(provider: str) -> type[Inbox]:
    """The class for calls to the inboxes of a provider."""
    named: dict[str, object] = {"__module__": __name__, "__doc__": Inbox.__doc__}
    return grain(name=inbox_name(provider))(type("Inbox", (Inbox,), named))
