"""A silo as handles of queues see it, made of what an adapter is given."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from millstream.runtime import ConfigError, Contract
from millstream.runtime.extending import Gateway
from millstream.streams import AdapterHost

__all__ = ["HostOpener"]

C = TypeVar("C", bound=Contract)


class HostOpener:
    """Opens priority queues in the silo of an adapter (`Opener`)."""

    def __init__(self, host: AdapterHost) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        chance = int(host.clock.uniform(0.0, 1.0) * 2**52)  # opened twice in one silo
        self._name = f"{host.silo}/{host.provider}/{chance:013x}"

    @property
    def gateway(self) -> Gateway | None:
        """None: it is in a silo."""
        return None

    def grain(self, cls: type[C], key: str, /) -> C:
        found: C = self._host.grain(cls, key)
        return found

    def part(self, name: str, /) -> Any:
        raise ConfigError(f"adapters know no parts, also not {name!r}")

    def new_name(self) -> str:
        return f"{self._name}/{next(self._numbers):x}"

    def check_running(self) -> None:
        """A silo that has ended answers no call."""
