"""An event on its way from a queue's cache to its consumers; also its form on the wire.

Owns: `Item`. Invariant: it is frozen, so consumers in the agent's silo can share it.
"""

from __future__ import annotations

import msgspec

from .token import Token

__all__ = ["Item"]


class Item(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Token, encoded body and headers (None: none) of one event."""

    token: Token
    body: bytes
    headers: dict[str, str] | None = None
