"""What a Redis store asks of its server, and what it may take of it. Owns: `RedisOptions`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["DURABILITIES", "Durability", "RedisOptions"]

Durability = Literal["always", "everysec", "none"]
DURABILITIES: tuple[Durability, ...] = ("none", "everysec", "always")
"""Each with what those before it promise."""
PREFIX_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """How a `RedisStore` uses its server. Raises ConfigError.

    `durability`: what the server must have promised before an operation is answered. "always": it
    is synced to disk (`appendonly yes`, `appendfsync always`); "everysec": a crash may take back
    the last seconds; "none": anything, also all of it. The server's settings are checked with each
    connection and every `check_period_s`, and refused if they are weaker.
    `prefix`: of all keys, so that several clusters can share a server.
    `username`, `password`: instead of those in the address.
    `timeout_s`: of one request, with the wait for a connection; `connect_timeout_s`: of one attempt
    to connect. `connections_max`: open at once, by one store; each commit has one to itself.
    `page_rows`, `page_bytes`: of one request while a queue is read to be opened.
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
            what = "have no braces, as they say which part of a key is hashed"
            raise ConfigError(f"RedisOptions.prefix is {self.prefix!r}; it must {what}")
