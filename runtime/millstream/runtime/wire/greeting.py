"""Who two processes are to each other. Pure.

Owns: what this process says of itself, and what it accepts from the other end.
"""

from __future__ import annotations

from typing import NamedTuple

from .framing import FrameError
from .message import WIRE_VERSION, Hello, Message

__all__ = ["Identity", "check_hello"]


class Identity(NamedTuple):
    """What a process says of itself: the silo's address, or a client's id."""

    cluster: str
    address: str
    is_silo: bool


def check_hello(message: Message, own: Identity, expected: str) -> Hello:
    """The other end's greeting. Raises FrameError: not one, or not of whom we look for."""
    if not isinstance(message, Hello):
        raise FrameError(f"first message is {type(message).__name__}, not Hello")
    if message.version != WIRE_VERSION:
        raise FrameError(f"peer speaks wire version {message.version}, this is {WIRE_VERSION}")
    if message.cluster != own.cluster:
        raise FrameError(f"peer is in cluster {message.cluster!r}, not {own.cluster!r}")
    if "@" in expected and expected != message.sender:
        raise FrameError(f"expected {expected}, found {message.sender}")
    return message
