"""The membership table: its rows, its views and its contract.

This module owns `MemberRow`, `TableView`, `MembershipTable` and `MemoryMembershipTable`. The module
`prober` decides who probes whom, and `member` joins and leaves.

The table changes only by compare-and-set on its whole version, by exactly one. So all changes of
status and all votes of a cluster are totally ordered. A status never goes back, and `dead` is final
for an address and generation. Heartbeats do not change the version.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Protocol

import msgspec

from millstream.runtime.definition.labels import Labels, Requirements
from millstream.runtime.definition.markers import Declaration
from millstream.runtime.env import Env
from millstream.runtime.wire.address import SiloAddress, endpoint_of

__all__ = [
    "MemberInfo",
    "MemberRow",
    "MembershipTable",
    "MemoryMembershipTable",
    "Status",
    "TableView",
    "is_table",
    "members_of",
    "table_id_of",
    "table_text",
]

TABLE_METHODS = ("read", "write", "heartbeat", "forget", "identity", "aclose")


class Status(Enum):
    """The states of a silo in the membership table, in order. A silo never goes back.

    Attributes:
        JOINING: The silo connects to the other silos, and hosts no grains yet.
        ACTIVE: The silo hosts grains.
        STOPPING: The silo finishes its turns, and takes no new grains.
        DEAD: The silo has stopped or was evicted. This is final for its address and generation.
    """

    JOINING = "joining"
    ACTIVE = "active"
    STOPPING = "stopping"
    DEAD = "dead"


class MemberRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of one silo in the membership table. Times are in wall-clock seconds since 1970.

    Attributes:
        silo: The address, `host:port@generation`.
        status: The state of the silo.
        name: The name for people and balancers.
        probe_port: The port that answers probes.
        is_gateway: Whether clients may connect to the silo.
        can_own_queues: Whether the silo may read queues.
        grain_types: The names of the grain types that the silo hosts.
        started_s: The time of its start.
        alive_s: The time of its last heartbeat.
        suspicions: The votes that the silo is dead, each with the voter and the time.
        declarations: The data of the marks of its grain types, for other silos.
        placements: The strategy of each grain type that is not placed at random.
        agreement: Settings that all silos of the cluster must have alike, by name.
        labels: The labels of the silo, sorted by name. Rows of older versions have none.
        requirements: For each grain type that requires labels of silos: the names, each with the
            allowed values.
        versions: The version of each grain type whose version is above 1. Rows of older versions
            of Millstream have none.
    """

    silo: SiloAddress
    status: Status
    name: str = ""
    probe_port: int = 0
    is_gateway: bool = True
    can_own_queues: bool = True
    grain_types: tuple[str, ...] = ()
    started_s: float = 0.0
    alive_s: float = 0.0
    suspicions: tuple[tuple[SiloAddress, float], ...] = ()
    declarations: tuple[Declaration, ...] = ()
    placements: tuple[tuple[str, str], ...] = ()
    agreement: tuple[tuple[str, str], ...] = ()
    labels: Labels = ()
    requirements: tuple[tuple[str, Requirements], ...] = ()
    versions: tuple[tuple[str, int], ...] = ()

    @property
    def endpoint(self) -> str:
        """`host:port`, which stays the same when a silo starts again there."""
        return endpoint_of(self.silo)

    @property
    def last_sign_s(self) -> float:
        """The latest time in the row, in Unix seconds: that of the silo's start, of its last
        heartbeat, or of a vote against it."""
        return max(self.started_s, self.alive_s, *(time_s for _, time_s in self.suspicions))


class MemberInfo(msgspec.Struct, frozen=True):
    """A silo that is in the cluster, as `Silo.members` and `Client.members` return it.

    Attributes:
        name: The name that the silo was given, or its address if it has no name.
        address: `host:port@generation`.
        status: Joining, active or stopping.
        grain_types: The names of the grain types that the silo hosts.
        labels: The labels of the silo: names and values, sorted by name.
        versions: The version of each grain type whose version is above 1.
    """

    name: str
    address: str
    status: Status
    grain_types: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, int], ...] = ()


class TableView(msgspec.Struct, frozen=True, array_like=True):
    """A consistent snapshot of the membership table.

    Attributes:
        version: The version of the table. Each change raises it by one.
        rows: One row for each silo, dead silos included.
    """

    version: int
    rows: tuple[MemberRow, ...] = ()

    def row(self, silo: SiloAddress) -> MemberRow | None:
        """Return the row of a silo, or None.

        Args:
            silo: The address of the silo.
        """
        for row in self.rows:  # half the cost of a generator, and calls between silos use it
            if row.silo == silo:
                return row
        return None

    def with_status(self, *statuses: Status) -> tuple[SiloAddress, ...]:
        """Return the addresses of the silos that have one of the statuses, sorted.

        Args:
            statuses: The statuses.
        """
        return tuple(sorted(row.silo for row in self.rows if row.status in statuses))


def members_of(view: TableView) -> tuple[MemberInfo, ...]:
    """Return the silos of a view that are not dead, sorted by address."""
    rows = sorted((row for row in view.rows if row.status is not Status.DEAD), key=by_address)
    return tuple(
        MemberInfo(row.name, row.silo, row.status, row.grain_types, row.labels, row.versions)
        for row in rows
    )


def by_address(row: MemberRow) -> str:
    """Return the sort key of a row."""
    return row.silo


class MembershipTable(Protocol):
    """The table that decides which silos are members of a cluster.

    Implement it to keep the membership in a store of your own. All changes are compare-and-set on
    the version of the whole table. A read sees every change that was made before it began. The
    first read of a new table creates it, with the current Unix time in milliseconds as its version.
    So versions never go back, even if rows of an earlier cluster are stored elsewhere.

    A table may have the method `secret(fresh: bytes) -> bytes`, which keeps the secret by which its
    silos recognise each other. It stores `fresh` if there is no secret yet, and returns the stored
    one. Without it, the silos need the environment variable `MILLSTREAM_SECRET`. The method
    `operator_secret(fresh)` does the same for the secret of operators. `secret_in_file` keeps such
    a secret in a file. Both methods may be coroutines. `is_of_one_process` is True for a table that
    other processes cannot see.

    A table that silos of several machines share may have two more coroutines. `clock_s() -> float`
    returns the wall time of its server; a silo whose clock differs by more than a minute does not
    join. `claim(cluster: str) -> str` stores the name of the cluster if there is none yet, and
    returns the stored one; a silo of another cluster does not join.

    All methods raise StorageUnavailable if the table does not answer.
    """

    async def read(self) -> TableView:
        """Return the current view of the table."""
        ...

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace one row, and raise the version by one.

        Args:
            row: The row.
            expect_version: The version that the table must have.

        Returns:
            False if the table has another version. Nothing was changed.
        """
        ...

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        """Store a heartbeat of a silo, without a change of the version.

        It has no effect on a silo that is not in the table.

        Args:
            silo: The address of the silo.
            alive_s: The wall time, in seconds since 1970.
        """
        ...

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        """Delete the row of a dead silo, and raise the version by one.

        Args:
            silo: The address of the silo.
            expect_version: The version that the table must have.

        Returns:
            False if the table has another version. Nothing was changed.
        """
        ...

    async def identity(self) -> str:
        """Return text that identifies this very table, for as long as silos use it.

        The text is the same for all silos that share the table, whatever path or address leads them
        to it. It is different for every other table, and also for a copy of all its bytes. So it
        must come from the place of the table, such as the inode of a file, or the id of a server
        and of a database in it. It must not come only from stored data. Silos whose tables have
        different identities refuse each other.
        """
        ...

    async def aclose(self) -> None:
        """Close the table."""
        ...


def is_table(value: object) -> bool:
    """Return whether a value is a `MembershipTable`: an object with all its methods, not a
    class.
    """
    return not isinstance(value, type) and all(
        callable(getattr(value, method, None)) for method in TABLE_METHODS
    )


def table_id_of(identity: str) -> str:
    """Return the short form of a table's identity that silos exchange: 16 hexadecimal digits."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def table_text(table: MembershipTable) -> str:
    """Return a table as messages show it: its class, and its `place` if it has one."""
    place: str = getattr(table, "place", "")
    return f"{type(table).__qualname__} {place}".rstrip()


class MemoryMembershipTable:
    """A membership table for the silos of one process.

    The methods without `async` act at once.

    Args:
        first_version: The first version of the table. None: the wall time in milliseconds, so that
            versions never go back behind rows that an earlier cluster has stored.
        env: The source of that wall time.
    """

    is_of_one_process = True
    """Other processes cannot see the table."""

    def __init__(self, first_version: int | None = None, *, env: Env | None = None) -> None:
        if first_version is None:
            first_version = int((env or Env()).wall_s() * 1000)
        self._view = TableView(first_version)
        self._secret = b""
        self._identity = f"memory of one process, {Env().new_id():016x}"

    def secret(self, fresh: bytes, /) -> bytes:
        """Keep the secret of the silos that share this table: the first one that was given.

        Args:
            fresh: The secret to keep if there is none yet.
        """
        self._secret = self._secret or fresh
        return self._secret

    def view(self) -> TableView:
        """Return the table at once, like `read`."""
        return self._view

    def replace_row(self, row: MemberRow, expect_version: int) -> bool:
        """Insert or replace a row at once, like `write`."""
        others = tuple(other for other in self._view.rows if other.silo != row.silo)
        return self._change((*others, row), expect_version)

    def drop(self, silo: SiloAddress, expect_version: int) -> bool:
        """Delete a row at once, like `forget`."""
        return self._change(
            tuple(row for row in self._view.rows if row.silo != silo), expect_version
        )

    def stamp(self, silo: SiloAddress, alive_s: float) -> None:
        """Store a heartbeat at once, like `heartbeat`."""
        rows = tuple(
            msgspec.structs.replace(row, alive_s=alive_s) if row.silo == silo else row
            for row in self._view.rows
        )
        self._view = TableView(self._view.version, rows)

    def _change(self, rows: tuple[MemberRow, ...], expect_version: int) -> bool:
        if self._view.version != expect_version:
            return False
        self._view = TableView(expect_version + 1, rows)
        return True

    async def read(self) -> TableView:
        """Return the current view of the table."""
        return self._view

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace a row. False if the table has another version."""
        return self.replace_row(row, expect_version)

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        """Store a heartbeat of a silo."""
        self.stamp(silo, alive_s)

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        """Delete the row of a silo. False if the table has another version."""
        return self.drop(silo, expect_version)

    async def identity(self) -> str:
        """Return text that identifies this object."""
        return self._identity

    async def aclose(self) -> None:
        """Do nothing: the rows stay."""
        return None
