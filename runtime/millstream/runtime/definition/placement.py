"""The placement strategies that an author can choose. The package `cluster` chooses the silo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import show_value

__all__ = [
    "HASHED",
    "LEAST_ACTIVATIONS",
    "LEAST_LOADED",
    "LOCAL_WORKERS_MAX",
    "PREFER_LOCAL",
    "RANDOM",
    "Placement",
    "PlacementCandidate",
    "PlacementRequest",
    "PlacementStrategy",
    "StatelessWorker",
    "stateless_worker",
]

LOCAL_WORKERS_MAX = 1_000
"""The most workers that one silo may have for one key. The choice of a worker looks at each."""


class Placement(Enum):
    """Strategies that choose the silo of a new activation, for `@grain(placement=...)`.

    Only active silos that host the grain type are candidates. Each strategy has a constant of its
    own name in `millstream.runtime`.

    Attributes:
        RANDOM: A random silo. This is the default.
        PREFER_LOCAL: The silo of the caller, if it hosts the type. Else a random silo.
        HASHED: The silo that the hash of the grain's name selects. Equal names go to the same silo
            while the membership does not change.
        LEAST_ACTIVATIONS: The silo with fewer activations, of two random silos (power of two
            choices).
        LEAST_LOADED: The silo with the lowest score of a few random silos. The score weighs
            processor time, memory, activations and the lag of the event loop, see
            `PlacementOptions`. The silo of the caller is chosen if it is nearly as good. Overloaded
            silos are left out, unless all are overloaded.
    """

    RANDOM = "random"
    PREFER_LOCAL = "prefer_local"
    HASHED = "hashed"
    LEAST_ACTIVATIONS = "least_activations"
    LEAST_LOADED = "least_loaded"


RANDOM = Placement.RANDOM
"""`Placement.RANDOM`: a random silo."""
PREFER_LOCAL = Placement.PREFER_LOCAL
"""`Placement.PREFER_LOCAL`: the silo of the caller, if it hosts the type."""
HASHED = Placement.HASHED
"""`Placement.HASHED`: the silo that the hash of the grain's name selects."""
LEAST_ACTIVATIONS = Placement.LEAST_ACTIVATIONS
"""`Placement.LEAST_ACTIVATIONS`: the silo with fewer activations, of two random silos."""
LEAST_LOADED = Placement.LEAST_LOADED
"""`Placement.LEAST_LOADED`: the silo with the lowest load, of a few random silos."""


@dataclass(frozen=True, slots=True)
class StatelessWorker:
    """The placement of a class of stateless workers. `stateless_worker` makes it.

    Attributes:
        max_local: The most activations of one key in one silo. None: the number of processors that
            the process may use.
    """

    max_local: int | None = None

    def __post_init__(self) -> None:
        limit = self.max_local
        if limit is None:
            return
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if not is_number or not 1 <= limit <= LOCAL_WORKERS_MAX:
            raise ConfigError(
                f"stateless_worker(max_local=...) is {show_value(limit)}; it must be a whole "
                f"number from 1 to {LOCAL_WORKERS_MAX}, or None for the number of processors"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCandidate:
    """A silo that a strategy of your own may choose.

    Attributes:
        address: The address of the silo, `host:port@generation`.
        name: The name of the silo, as `Silo(name=...)` gave it.
        labels: The labels of the silo. They cannot be changed.
        activations: The number of activations in the silo, up to a second old. 0 until the silo has
            reported it.
    """

    address: str
    name: str
    labels: Mapping[str, str]
    activations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """The argument of a strategy of your own: a grain that needs an activation.

    Attributes:
        grain_type: The name of the grain type.
        key: The key of the grain.
        caller: The address of the silo whose caller needs the activation. For a call of a client,
            the address of its gateway.
        candidates: The active silos that host the type and have the labels that it requires, sorted
            by address. There is at least one.
    """

    grain_type: str
    key: str
    caller: str
    candidates: Sequence[PlacementCandidate]


PlacementStrategy = Placement | StatelessWorker | Callable[[PlacementRequest], PlacementCandidate]
"""The values of `@grain(placement=...)`."""


def stateless_worker(*, max_local: int | None = None) -> StatelessWorker:
    """Make the activations of a class stateless workers, for `@grain(placement=...)`.

    Each silo has its own pool of activations for each key, and no directory knows them. A call runs
    in the silo of its caller, on a worker that is idle. If none is idle, the pool grows up to
    `max_local` workers. Then the call waits for the first worker that becomes free.

    ```python
    @grain(placement=stateless_worker(max_local=4))
    class Resizer(Grain):
        async def resize(self, picture: bytes, width: int) -> bytes: ...
    ```

    If the silo of the caller does not host the class, the call goes to a random silo that does. A
    call of a client runs in the silo of its gateway, if that silo hosts the class. Workers may have
    timers, but neither states nor reminders nor subscriptions.

    Args:
        max_local: The most activations of one key in one silo, from 1 to 1,000. None: the number of
            processors that the process may use. The choice of a worker takes time in proportion to
            the workers of the key.

    Raises:
        ConfigError: `max_local` is not valid.
    """
    return StatelessWorker(max_local)
