"""The test kit: whole clusters in one process, in virtual time, with seeded troubles.

Start with `run`: it gives a driver a `Simulation` with hosts, a network, disks and a history.
"""

from __future__ import annotations

from .checkers import (
    check_all,
    check_live_after_repair,
    check_nothing_lost,
    check_one_activation,
    check_one_owner,
    check_tokens_rise,
    check_views,
)
from .cluster import SimCluster
from .disk import SimDisk
from .env import SimEnv
from .errors import Deadlock, HostCrashed, Livelock, SimulationError, VirtualTimeExceeded
from .faults import FaultPlan
from .history import (
    Activated,
    CallEnded,
    CallStarted,
    Deactivated,
    DeadLettered,
    Delivered,
    History,
    HostDown,
    HostUp,
    Published,
    QueueAcquired,
    Repaired,
    SiloDeclaredDead,
    SiloEnded,
    Subscribed,
    Unsubscribed,
    ViewAdopted,
)
from .host import Host, current_host
from .loop import SimLoop
from .nemesis import Nemesis, Script, Step, make_script, parse_script, shrink
from .network import SimNetwork
from .services import SimMembershipTable, SimService, SimStateStore
from .simulation import Outcome, Simulation, SimulationFailed, run
from .transport import SimTransport

__all__ = [
    "Activated",
    "CallEnded",
    "CallStarted",
    "Deactivated",
    "DeadLettered",
    "Deadlock",
    "Delivered",
    "FaultPlan",
    "History",
    "Host",
    "HostCrashed",
    "HostDown",
    "HostUp",
    "Livelock",
    "Nemesis",
    "Outcome",
    "Published",
    "QueueAcquired",
    "Repaired",
    "Script",
    "SiloDeclaredDead",
    "SiloEnded",
    "SimCluster",
    "SimDisk",
    "SimEnv",
    "SimLoop",
    "SimMembershipTable",
    "SimNetwork",
    "SimService",
    "SimStateStore",
    "SimTransport",
    "Simulation",
    "SimulationError",
    "SimulationFailed",
    "Step",
    "Subscribed",
    "Unsubscribed",
    "ViewAdopted",
    "VirtualTimeExceeded",
    "check_all",
    "check_live_after_repair",
    "check_nothing_lost",
    "check_one_activation",
    "check_one_owner",
    "check_tokens_rise",
    "check_views",
    "current_host",
    "make_script",
    "parse_script",
    "run",
    "shrink",
]
