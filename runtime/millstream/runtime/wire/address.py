"""Network addresses, and the names of silos. Pure.

This module owns `Address` and the text form of a `SiloAddress`. It does not know whether a process
listens at an address; `transport` does. `Address.parse` reads every text that `str(address)`
produces, IPv6 addresses included.
"""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import show_text

__all__ = ["Address", "SiloAddress", "check_door", "endpoint_of", "generation_of"]

LOOPBACK_4 = 127  # first byte of an IPv4 loopback address
LOOPBACK_6 = bytes(15) + b"\x01"
HOST = re.compile(r"[^\s@/\[\]]+")

# plain text, because text caches its hash and needs no conversion on the wire
SiloAddress = str
"""The name of a silo, as text: `host:port@generation`.

A restarted silo has a new generation, so it is another member of the cluster.
"""


class Address(NamedTuple):
    """A host and a port at which a process listens.

    `str(address)` gives `host:port`, with brackets around an IPv6 address: `[::1]:7700`.

    Attributes:
        host: a host name, an IPv4 address, or an IPv6 address without brackets.
        port: 0 to 65535. A listener with port 0 gets a free port from the operating system.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port` or `[IPv6]:port`.

        Args:
            text: the address as text. The host has no whitespace, `@`, `/` or brackets of its own.

        Returns:
            The address. Host names are not looked up.

        Raises:
            ValueError: the text is not an address, or the port is above 65535. The error names the
                text.
        """
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
        """True if only this machine can reach the address.

        Loopback addresses are `127.x.x.x`, `::1` and `localhost`. Other host names are not looked
        up and count as reachable.
        """
        try:
            if ":" in self.host:
                return socket.inet_pton(socket.AF_INET6, self.host) == LOOPBACK_6
            return socket.inet_pton(socket.AF_INET, self.host)[0] == LOOPBACK_4
        except OSError:
            return self.host.lower() == "localhost"


def check_door(address: Address, is_safe: bool, where: str) -> None:
    """Raise ConfigError if other machines can reach the address, unless it is safe.

    Args:
        is_safe: True if connections are encrypted, or the program has set `insecure`.
    """
    if not is_safe and not address.is_loopback:
        raise ConfigError(
            f"{where}: other machines can reach {address}, and connections are not encrypted: pass "
            "tls=Tls(...), listen on 127.0.0.1 or [::1], or, in a network that you trust, set "
            "insecure=True (millstream run --insecure)"
        )


def endpoint_of(silo: SiloAddress) -> str:
    """Return the `host:port` part of a silo address."""
    return silo.partition("@")[0]


def generation_of(silo: SiloAddress) -> int:
    """Return the generation of a silo address."""
    return int(silo.partition("@")[2])
