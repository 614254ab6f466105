"""Frames of a u32 length over a socket: the basis of both limits."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["Framed"]


class Framed(asyncio.Protocol):
    """Cuts received bytes into frames, for `take`."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data, at = self.rest + data, 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end > len(data):
                break
            self.take(data[at + 4 : end])
            at = end
        self.rest = data[at:]

    def take(self, frame: bytes) -> None:
        raise NotImplementedError
