"""Where processes listen, and the names of silos. Pure.

Owns: `Address` and the text of a `SiloAddress`. Not: whether somebody is there (`transport`).
Invariant: what an address prints, `parse` reads, IPv6 included.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Address", "SiloAddress", "endpoint_of", "generation_of"]

# `host:port@generation`: a restarted silo is another member. Text hashes once, encodes as is.
SiloAddress = str


class Address(NamedTuple):
    """Where something listens. Port 0 asks for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """From `host:port`; raises ValueError naming the text."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not an address: write host:port")
        return cls(host, int(port))


def endpoint_of(silo: SiloAddress) -> str:
    """`host:port` of a silo address."""
    return silo.partition("@")[0]


def generation_of(silo: SiloAddress) -> int:
    """The generation of a silo address."""
    return int(silo.partition("@")[2])
