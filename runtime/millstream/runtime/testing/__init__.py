"""The test kit: whole clusters in one process, in virtual time, with faults that a seed decides.

Start with `run`, which gives your driver a `Simulation` with hosts, a network, disks and a history.
`SimCluster` runs real silos on the simulated hosts. `make_script` and `Nemesis` inject faults, and
`check_all` searches the history for violations. `grain_of` makes a grain a plain object for a unit
test. `REMINDER_TABLE_CHECKS` are the contract of reminder tables. The package also brings a pytest
plug-in with the fixtures `local_cluster` and `sim_cluster`, and the option `--sim-seed`.

Owns the simulation, clusters of real silos in it, scripts of faults, histories and checkers.
Reading starts at `simulation.py`.
May import `client`, `cluster`, `definition`, `disk`, `reminders`, `runtime`, `silo`, `turns` and
`wire`.
"""

from __future__ import annotations

from millstream.runtime.public_names import publish

from .checkers import (
    Findings,
    NothingToJudge,
    check_all,
    check_live_after_repair,
    check_nothing_lost,
    check_one_activation,
    check_one_owner,
    check_tokens_rise,
    check_views,
)
from .cluster import SimCluster
from .fault_injection import FailingReminderTable, FailingStore, FailingTable
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
from .nemesis import Nemesis
from .reminder_checks import REMINDER_TABLE_CHECKS
from .script import DISK_VERBS, VERBS, Script, Step, make_script, parse_script, shrink
from .services import SimMembershipTable, SimReminderTable, SimService, SimStateStore
from .simulation import Outcome, Simulation, SimulationFailed, run
from .unit import UnitHome, UnitReminders, UnitTimer, grain_of, home_of, writes_of
from .world.disk.simulated import SimDisk
from .world.env import Random, SimEnv, make_random
from .world.errors import Deadlock, HostCrashed, Livelock, SimulationError, VirtualTimeExceeded
from .world.faults import FaultPlan
from .world.host import Host, current_host
from .world.loop import SimLoop
from .world.network import SimNetwork
from .world.transport import SimTransport

__all__ = [
    "DISK_VERBS",
    "REMINDER_TABLE_CHECKS",
    "VERBS",
    "Activated",
    "CallEnded",
    "CallStarted",
    "Deactivated",
    "DeadLettered",
    "Deadlock",
    "Delivered",
    "FailingReminderTable",
    "FailingStore",
    "FailingTable",
    "FaultPlan",
    "Findings",
    "History",
    "Host",
    "HostCrashed",
    "HostDown",
    "HostUp",
    "Livelock",
    "Nemesis",
    "NothingToJudge",
    "Outcome",
    "Published",
    "QueueAcquired",
    "Random",
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
    "SimReminderTable",
    "SimService",
    "SimStateStore",
    "SimTransport",
    "Simulation",
    "SimulationError",
    "SimulationFailed",
    "Step",
    "Subscribed",
    "UnitHome",
    "UnitReminders",
    "UnitTimer",
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
    "grain_of",
    "home_of",
    "make_random",
    "make_script",
    "parse_script",
    "run",
    "shrink",
    "writes_of",
]

publish(__name__)
