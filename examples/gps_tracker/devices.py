"""Devices report their positions; a grain collects them for the web servers."""

import math
from dataclasses import dataclass
from time import time

from millstream.runtime import Grain, Observer, ObserverSet, timer

EARTH_M = 6_371_000
HUB_EXPIRES_S = 60.0
BATCH_EVERY_S = 0.2
WAITING_MAX = 10_000


@dataclass(frozen=True)
class Position:
    """A place on earth in degrees, at a Unix time in seconds."""

    latitude: float
    longitude: float
    at_s: float


@dataclass(frozen=True)
class Movement:
    """The newest position of a device, and its speed in m/s."""

    device: str
    position: Position
    speed: float


class Hub(Observer):
    """A web server that shows movements."""

    async def moved(self, movements: list[Movement]) -> None:
        """Show the newest movements."""


class Device(Grain):
    """One device. It knows its last position, and computes its speed."""

    def __init__(self) -> None:
        self._last: Position | None = None

    async def report(self, position: Position) -> None:
        last, self._last = self._last, position
        if last is not None and position.at_s <= last.at_s:
            return  # an old or repeated report
        speed = 0.0 if last is None else distance_m(last, position) / (position.at_s - last.at_s)
        await self.grain(Notifier, "all").add(Movement(self.key, position, speed))


class Notifier(Grain):
    """Collects movements, and sends them to the web servers in batches."""

    def __init__(self) -> None:
        self._hubs = ObserverSet(self, Hub, expires_s=HUB_EXPIRES_S)
        self._waiting: dict[str, Movement] = {}

    async def add(self, movement: Movement) -> None:
        if len(self._waiting) < WAITING_MAX or movement.device in self._waiting:
            self._waiting[movement.device] = movement

    async def subscribe(self, hub: Hub) -> None:
        """Send movements to a web server. Repeat the call in time."""
        self._hubs.add(hub)

    @timer(every=BATCH_EVERY_S)
    async def _send(self) -> None:
        if self._waiting:
            self._hubs.notify(Hub.moved, list(self._waiting.values()))
            self._waiting.clear()


def distance_m(start: Position, end: Position) -> float:
    """Return the length of the way between two places, in metres (haversine formula)."""
    first, second = math.radians(start.latitude), math.radians(end.latitude)
    across = math.radians(end.longitude - start.longitude)
    half = math.sin((second - first) / 2) ** 2
    half += math.cos(first) * math.cos(second) * math.sin(across / 2) ** 2
    return 2 * EARTH_M * math.asin(math.sqrt(min(1.0, half)))


def here(latitude: float, longitude: float) -> Position:
    """Return a position of this moment."""
    return Position(latitude, longitude, time())
