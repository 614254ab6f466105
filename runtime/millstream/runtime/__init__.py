"""The runtime of Millstream: grains, silos, calls, membership, the directory of grains and their
state.

A program defines grain classes (`Grain`, `grain`, `state`), runs silos that host them (`Silo`,
`serve`, `LocalCluster`), and calls them from outside of the cluster (`connect`). Import every
public name from here. `__version__` is the version of the installed package.

Errors have one base, `MillstreamError`. Times are seconds as `float`, and sizes are bytes, unless a
name says otherwise.

**Logging.** Millstream logs by the standard `logging` module, under `millstream`. Its loggers are,
among others, `millstream.silo`, `millstream.member`, `millstream.probe`, `millstream.directory`,
`millstream.catalog`, `millstream.connection`, `millstream.agent`, `millstream.delivery` and
`millstream.manager`. No name, key or error text can forge a line of the log. Control characters in
the arguments of a record are escaped, and the lines of a traceback after its first are indented. A
handler on the logger `millstream`, or on the root logger, gets the changed record. A handler on a
single logger such as `millstream.silo` gets the record unchanged.

**Plug-ins.** Plug-ins are entry points. A text `name:argument` stands for the result of calling the
entry point `name` with the argument:

- `Silo(membership="name:argument")` uses the group `millstream.membership`.
- `Silo(stores={"default": "name:argument"})` uses the group `millstream.stores`.
- `Silo(reminders="name:argument")` uses the group `millstream.reminders`.
- `PersistentStreams("memory", balancer="deployment")` uses the groups `millstream.queues` and
  `millstream.balancers`.

Owns every package from the codec to the test kit, and the modules beside them, such as errors,
options, and the seam for clock and chance. Reading starts at `silo/silo.py`.
May import nothing else of this project.
"""

from typing import TYPE_CHECKING

from .calls.observer_set import ObserverSet
from .client.client import Client, connect
from .cluster.rebalancer import Rebalancer, RebalancingStatus
from .cluster.table import (
    MemberInfo,
    MemberRow,
    MembershipTable,
    MemoryMembershipTable,
    Status,
    TableView,
)
from .codec.hooks import register_type
from .definition import reference_codec as reference_codec
from .definition.filters import CallFilter, CallFilters, GrainCall, Proceed
from .definition.grain import (
    Acknowledgeable,
    Contract,
    DeactivationReason,
    Grain,
    GrainContext,
    Openable,
    Runtime,
    grain,
)
from .definition.markers import always_interleave, one_way, open_to, read_only, shielded, timeout
from .definition.observer import Observer
from .definition.placement import (
    HASHED,
    LEAST_ACTIVATIONS,
    LEAST_LOADED,
    PREFER_LOCAL,
    RANDOM,
    Placement,
    PlacementCandidate,
    PlacementRequest,
    StatelessWorker,
    stateless_worker,
)
from .definition.reference import is_reference, with_options
from .definition.reminders import Occurrence, Reminder, Reminders, reminder
from .definition.state import State, StateField, state, upgrade
from .definition.storage import Etag, MemoryStateStore, Row, StateStore
from .definition.timers import Timer, timer
from .env import Env
from .errors import (
    ActivationTimeout,
    CallCycle,
    CallError,
    CallTimeout,
    ClientUnavailable,
    ClusterError,
    ConfigError,
    Conflict,
    Corrupt,
    CursorTooOld,
    DefinitionError,
    EnqueueFailed,
    GrainError,
    MillstreamError,
    NoSuitableSilo,
    NotAllowed,
    NotHosted,
    NotInCluster,
    NotRemote,
    ObserverGone,
    Overloaded,
    PlacementFailed,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    Rejected,
    ResultsAborted,
    SiloUnavailable,
    StaleMapper,
    StateTooNew,
    StorageError,
    StorageUnavailable,
    StreamError,
    SubscriptionFaulted,
    VersionNotHosted,
)
from .log_lines import guard_lines
from .options import MembershipOptions, PlacementOptions, Rebalancing, RuntimeOptions
from .public_names import publish
from .reminders.service import ReminderCounts
from .reminders.table import (
    MemoryReminderTable,
    ReminderPosition,
    ReminderRow,
    ReminderTable,
)
from .role import Role
from .run.local_cluster import LocalCluster
from .run.serve import serve
from .silo.metrics import Metrics
from .silo.metrics_options import MetricsOptions
from .silo.silo import Silo, StopReason
from .version import version
from .wire.address import Address
from .wire.certified_name import CertifiedName
from .wire.secret import operator_secret
from .wire.tls import Tls
from .wire.transport import Link, Listener, TcpTransport, Transport

guard_lines()

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        """Read `__version__` from the package's metadata when it is first needed."""
        if name == "__version__":
            return version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "HASHED",
    "LEAST_ACTIVATIONS",
    "LEAST_LOADED",
    "PREFER_LOCAL",
    "RANDOM",
    "Acknowledgeable",
    "ActivationTimeout",
    "Address",
    "CallCycle",
    "CallError",
    "CallFilter",
    "CallFilters",
    "CallTimeout",
    "CertifiedName",
    "Client",
    "ClientUnavailable",
    "ClusterError",
    "ConfigError",
    "Conflict",
    "Contract",
    "Corrupt",
    "CursorTooOld",
    "DeactivationReason",
    "DefinitionError",
    "EnqueueFailed",
    "Env",
    "Etag",
    "Grain",
    "GrainCall",
    "GrainContext",
    "GrainError",
    "Link",
    "Listener",
    "LocalCluster",
    "MemberInfo",
    "MemberRow",
    "MembershipOptions",
    "MembershipTable",
    "MemoryMembershipTable",
    "MemoryReminderTable",
    "MemoryStateStore",
    "Metrics",
    "MetricsOptions",
    "MillstreamError",
    "NoSuitableSilo",
    "NotAllowed",
    "NotHosted",
    "NotInCluster",
    "NotRemote",
    "Observer",
    "ObserverGone",
    "ObserverSet",
    "Occurrence",
    "Openable",
    "Overloaded",
    "Placement",
    "PlacementCandidate",
    "PlacementFailed",
    "PlacementOptions",
    "PlacementRequest",
    "Proceed",
    "PublishUnknown",
    "QueueFenced",
    "QueueFull",
    "QueueUnavailable",
    "Rebalancer",
    "Rebalancing",
    "RebalancingStatus",
    "Rejected",
    "Reminder",
    "ReminderCounts",
    "ReminderPosition",
    "ReminderRow",
    "ReminderTable",
    "Reminders",
    "ResultsAborted",
    "Role",
    "Row",
    "Runtime",
    "RuntimeOptions",
    "Silo",
    "SiloUnavailable",
    "StaleMapper",
    "State",
    "StateField",
    "StateStore",
    "StateTooNew",
    "StatelessWorker",
    "Status",
    "StopReason",
    "StorageError",
    "StorageUnavailable",
    "StreamError",
    "SubscriptionFaulted",
    "TableView",
    "TcpTransport",
    "Timer",
    "Tls",
    "Transport",
    "VersionNotHosted",
    "always_interleave",
    "connect",
    "grain",
    "is_reference",
    "one_way",
    "open_to",
    "operator_secret",
    "read_only",
    "register_type",
    "reminder",
    "serve",
    "shielded",
    "state",
    "stateless_worker",
    "timeout",
    "timer",
    "upgrade",
    "with_options",
]

publish(__name__)
