"""Members, views and the membership table contract.

Owns: `MemberRow`, `TableView`, `MembershipTable`, `MemoryMembershipTable`. Not: who probes whom
(`prober`), or this silo's own joining and leaving (`member`).
Invariants: the table changes only by compare-and-set on its whole version, by exactly one; so all
status changes and votes of a cluster are totally ordered. A status never goes backwards; `dead` is
final for an address and generation. Heartbeats do not count as changes.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Protocol

import msgspec

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
    """The states of a member, in order; a member never goes back."""

    JOINING = "joining"
    ACTIVE = "active"
    STOPPING = "stopping"
    DEAD = "dead"


class MemberRow(msgspec.Struct, frozen=True, array_like=True):
    """One silo in the table. Times are wall-clock seconds; `suspicions` are (voter, time).

    `declarations`: what the marks of its `grain_types` tell the others. `placements`: the strategy
    of each of them that is not placed at random. `agreement`: what silos of one cluster must have
    alike, by what it is.
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

    @property
    def endpoint(self) -> str:
        """`host:port`, which a silo keeps when it starts again."""
        return endpoint_of(self.silo)

    @property
    def last_sign_s(self) -> float:
        """Wall time of the last sign of the silo: its start, a stamp, or a vote against it."""
        return max(self.started_s, self.alive_s, *(time_s for _, time_s in self.suspicions))


class MemberInfo(msgspec.Struct, frozen=True):
    """A silo that is in the cluster.

    Attributes: `name`, as given to it; `address`, `host:port@generation`; `status`, joining,
    active or stopping; `grain_types`, the names of the grain types that it hosts.
    """

    name: str
    address: str
    status: Status
    grain_types: tuple[str, ...]


class TableView(msgspec.Struct, frozen=True, array_like=True):
    """A consistent snapshot of the table."""

    version: int
    rows: tuple[MemberRow, ...] = ()

    def row(self, silo: SiloAddress) -> MemberRow | None:
        """The row of a silo, or None."""
        for row in self.rows:  # a generator is twice the price, and calls between silos ask here
            if row.silo == silo:
                return row
        return None

    def with_status(self, *statuses: Status) -> tuple[SiloAddress, ...]:
        """Silos in one of the statuses, sorted."""
        return tuple(sorted(row.silo for row in self.rows if row.status in statuses))


def members_of(view: TableView) -> tuple[MemberInfo, ...]:
    """The silos of a view that are not dead, sorted by address."""
    rows = sorted((row for row in view.rows if row.status is not Status.DEAD), key=by_address)
    return tuple(MemberInfo(row.name, row.silo, row.status, row.grain_types) for row in rows)


def by_address(row: MemberRow) -> str:
    """What rows are sorted by."""
    return row.silo


class MembershipTable(Protocol):
    """The sole arbiter of who is a member.

    A table that is read for the first time exists afterwards, with its version at Unix
    milliseconds, so versions never run backwards against rows stored by an earlier cluster. A read
    sees every change that was made before it began.

    A table may also have `secret(fresh: bytes) -> bytes`, which keeps the secret by which its silos
    know each other: `fresh`, if there is none yet. Without, they need `MILLSTREAM_SECRET`.
    """

    async def read(self) -> TableView: ...
    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace one row and raise the version by one; False if the version differs."""
        ...

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        """Store the stamp; no version change; no effect on a silo that is not in the table."""
        ...

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        """Delete the row of a dead silo and raise the version by one; False if it differs."""
        ...

    async def identity(self) -> str:
        """Text that names this very table, as long as silos use it.

        The same for all silos that share the table, whatever path or address leads them there;
        another for every other table, also for a copy of all of its bytes. So it comes from where
        the table is (a file's inode, a server's own id and a database in it), and not only from
        what is stored in the table. Silos whose tables have different identities refuse each other.
        """
        ...

    async def aclose(self) -> None: ...


def is_table(value: object) -> bool:
    """Is it a `MembershipTable`: an object, and no class, with all of the methods?"""
    return not isinstance(value, type) and all(
        callable(getattr(value, method, None)) for method in TABLE_METHODS
    )


def table_id_of(identity: str) -> str:
    """The short form of a table's identity that silos tell each other: 16 hexadecimal digits."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def table_text(table: MembershipTable) -> str:
    """A table as messages show it: its class, and its `place` if it has one."""
    place: str = getattr(table, "place", "")
    return f"{type(table).__qualname__} {place}".rstrip()


class MemoryMembershipTable:
    """A table for the silos of one process. The methods without `async` change it at once.

    Args:
        env: its wall time is the first version, so that versions never run backwards against rows
            that an earlier cluster has stored.
        first_version: instead of that.
    """

    is_of_one_process = True

    def __init__(self, first_version: int | None = None, *, env: Env | None = None) -> None:
        if first_version is None:
            first_version = int((env or Env()).wall_s() * 1000)
        self._view = TableView(first_version)
        self._secret = b""
        self._identity = f"memory of one process, {Env().new_id():016x}"

    def secret(self, fresh: bytes, /) -> bytes:
        """The secret of the silos that share this table: the first that was given."""
        self._secret = self._secret or fresh
        return self._secret

    def view(self) -> TableView:
        """The table as it is."""
        return self._view

    def replace_row(self, row: MemberRow, expect_version: int) -> bool:
        """`write`, at once."""
        others = tuple(other for other in self._view.rows if other.silo != row.silo)
        return self._change((*others, row), expect_version)

    def drop(self, silo: SiloAddress, expect_version: int) -> bool:
        """`forget`, at once."""
        return self._change(
            tuple(row for row in self._view.rows if row.silo != silo), expect_version
        )

    def stamp(self, silo: SiloAddress, alive_s: float) -> None:
        """`heartbeat`, at once."""
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
        return self._view

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        return self.replace_row(row, expect_version)

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        self.stamp(silo, alive_s)

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        return self.drop(silo, expect_version)

    async def identity(self) -> str:
        return self._identity

    async def aclose(self) -> None:
        return None
