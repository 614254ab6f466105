"""Where processes listen, and the names of silos. Pure.

Owns: `Address` and the text of a `SiloAddress`. Not: whether somebody is there (`transport`).
Invariant: what an address prints, `parse` reads, IPv6 included.
"""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import show_text

__all__ = ["Address", "SiloAddress", "check_door", "endpoint_of", "generation_of"]

LOOPBACK_4 = 127  # the first byte
LOOPBACK_6 = bytes(15) + b"\x01"
HOST = re.compile(r"[^\s@/\[\]]+")

# `host:port@generation`: a restarted silo is another member. Text hashes once, encodes as is.
SiloAddress = str


class Address(NamedTuple):
    """Where something listens. Port 0 asks for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """From `host:port` or `[IPv6]:port`; raises ValueError naming the text."""
        host, colon, port = text.rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
        is_bracketed = host.startswith("[") and host.endswith("]") and ":" in host
        if not colon or not is_port or (":" in host and not is_bracketed):
            raise ValueError(
                f"{show_text(text)!r} is not an address: write host:port or [IPv6]:port"
            )
        host = host[1:-1] if is_bracketed else host
        if not host or not HOST.fullmatch(host):
            raise ValueError(
                f"{show_text(text)!r} is not an address: write host:port or [IPv6]:port"
            )
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Can only this machine reach it? Names other than `localhost` are not looked up."""
        try:
            if ":" in self.host:
                return socket.inet_pton(socket.AF_INET6, self.host) == LOOPBACK_6
            return socket.inet_pton(socket.AF_INET, self.host)[0] == LOOPBACK_4
        except OSError:
            return self.host.lower() == "localhost"


def check_door(address: Address, insecure: bool, where: str) -> None:
    """Raise ConfigError for what others than this machine can reach, unless that was said."""
    if not insecure and not address.is_loopback:
        raise ConfigError(
            f"{where}: {address} can be reached from other machines, and nothing is encrypted yet: "
            "listen on 127.0.0.1 or [::1], or say insecure=True (millstream run --insecure) in a "
            "network that you trust"
        )


def endpoint_of(silo: SiloAddress) -> str:
    """`host:port` of a silo address."""
    return silo.partition("@")[0]


def generation_of(silo: SiloAddress) -> int:
    """The generation of a silo address."""
    return int(silo.partition("@")[2])
