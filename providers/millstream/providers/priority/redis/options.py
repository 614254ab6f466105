"""The options of a Redis store. Owns `RedisOptions`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["DURABILITIES", "Durability", "RedisOptions"]

Durability = Literal["always", "everysec", "none"]
DURABILITIES: tuple[Durability, ...] = ("none", "everysec", "always")
"""In order: each one includes the guarantees of those before it."""
PREFIX_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """How a `RedisStore` uses its server. Wrong values raise `ConfigError`.

    Attributes:
        durability: The guarantee of the server before an operation is answered. `"always"`: the
            operation is synced to its disk (`appendonly yes`, `appendfsync always`). `"everysec"`:
            a crash may lose the last seconds, including leases that were given. `"none"`: a crash
            may lose everything. The store refuses a server whose settings guarantee less.
        prefix: Prefix of all keys, so that several clusters can share a server; printable, 1 to 64
            bytes, without braces.
        username: Replaces the user name of the address.
        password: Replaces the password of the address; it is never shown.
        timeout_s: Time for one request, in seconds, including the wait for a connection. Then
            `StorageUnavailable`; the request may have been carried out.
        connect_timeout_s: Time for one attempt to connect, in seconds. Then `StorageUnavailable`.
        connections_max: Open connections of one store. Further requests wait for a connection.
        check_period_s: How often an open store checks the server's settings, in seconds. While they
            guarantee less than `durability`, operations raise `StorageUnavailable`.
        page_rows: Rows in one request while a queue is opened.
        page_bytes: Payload bytes in one such request. A single payload may be larger.
    """

    durability: Durability = "always"
    prefix: str = "millstream"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    connections_max: int = 16
    check_period_s: float = 5.0
    page_rows: int = 1_000
    page_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        check_fields(self)
        size = len(self.prefix.encode(errors="replace"))
        if not 0 < size <= PREFIX_BYTES_MAX or not self.prefix.isprintable():
            what = f"a printable text of 1 to {PREFIX_BYTES_MAX} bytes"
            raise ConfigError(f"RedisOptions.prefix is {self.prefix!r}; it must be {what}")
        if "{" in self.prefix or "}" in self.prefix:
            what = "have no braces, because braces select the part of a key that is hashed"
            raise ConfigError(f"RedisOptions.prefix is {self.prefix!r}; it must {what}")
