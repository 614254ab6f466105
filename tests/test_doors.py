"""The callers that may use each method of the runtime's own grains and system targets.

`OPEN` is the complete list: a method that is missing there must be for silos only. A new method,
target or grain is closed until somebody marks it and adds it to the list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import until
from tests.runtime.wire.pair import Waits, call

import millstream.providers
import millstream.runtime
import millstream.streams
from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.providers.priority import MemoryStore, PriorityQueues
from millstream.providers.sqlite import SqliteReminderTable
from millstream.runtime import (
    Client,
    Grain,
    Metrics,
    Occurrence,
    Rebalancing,
    Role,
    Silo,
    connect,
    operator_secret,
    reminder,
)
from millstream.runtime.codec.failures import rebuild
from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.extending import SystemTarget
from millstream.streams import Broadcast, HashRingMapper, PersistentStreams

OPEN = {
    Role.CLIENT: {
        "$broadcast": {"publish"},
        "$client": {"attach", "detach"},
        "$gateway": {"gateways", "list_evicted", "members"},
        "$ingest": {"publish", "publish_next"},
        "$priority": {"changes_lag_s", "queues"},
        "$retain": {"claim", "let_go", "list_retained", "release", "retain"},
        "$rewind": {"columns", "extents", "measure", "read", "seek"},
        "$staging": {"abort", "begin", "commit", "stage"},
        "InboxGrain": {"leave", "take"},
        "QueueOwner": {"create", "delete", "do", "leave", "look", "poll"},
        "Rendezvous": {"end", "everyone", "join"},
    },
    Role.OPERATOR: {
        "$dead_letters": {"delete", "get", "list_damaged", "page", "redrive"},
        "$holding": {"hold"},
        "$ledgers": {"give_up", "left", "recover"},
        "$staging": {"abandon", "list_refused", "status", "writers"},
        "$streams": {"cluster_stats", "resize", "silo_stats"},
        "$why": {"lagging", "why"},
        "QueueOwner": {"clock"},
        "Rendezvous": {"pause", "remove", "resume"},
    },
}
CLOSED = {
    *("$acks", "$bookie", "$directory", "$ledger", "$member", "$migration", "$placement"),
    *("$rebalancing", "$reminders"),
    *("MemoryQueue", "ReadinessProbe", "StagedWriter"),
}
BY_TYPE = {"$results"}
"""Extensions of grains that are open to those that may call the grain type."""
NEVER_SERVED = {"EncodedIngest", "EncodedStaging"}  # a client's view of a target
OTHERS = ("millstream.runtime.testing", "millstream.streams.testing", ".contracts.suite")
"""Modules of tests."""


def modules() -> Iterator[Any]:
    for package in (millstream.runtime, millstream.streams, millstream.providers):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(other in found.name for other in OTHERS) and "__main__" not in found.name:
                yield importlib.import_module(found.name)


def below(cls: type[Any]) -> Iterator[type[Any]]:
    for derived in cls.__subclasses__():
        yield derived
        yield from below(derived)


def shipped(base: type[Any]) -> list[type[Any]]:
    """Return the classes that the three packages define."""
    names = {module.__name__ for module in modules()}
    return [
        cls for cls in below(base) if cls.__module__ in names and cls.__name__ not in NEVER_SERVED
    ]


def roles(specs: Any) -> dict[Role, set[str]]:
    found: dict[Role, set[str]] = {Role.CLIENT: set(), Role.OPERATOR: set(), Role.SILO: set()}
    for name, spec in specs.items():
        found[spec.open_to or Role.SILO].add(name)
    return found


def expected(name: str, role: Role) -> set[str]:
    return OPEN[role].get(name, set())


def test_each_shipped_method_is_open_to_those_that_the_list_names_and_to_nobody_else() -> None:
    targets = {cls.target_name: cls.target_specs for cls in shipped(SystemTarget)}
    grains = {cls.__name__: cls.__millstream_type__.specs for cls in shipped(Grain)}
    found = {name: roles(specs) for name, specs in {**targets, **grains}.items()}
    for name, by_role in found.items():
        for role in (Role.CLIENT, Role.OPERATOR):
            assert by_role[role] == expected(name, role), f"{name}: open to {role.name}"
    listed = {name for role in OPEN for name in OPEN[role]} | CLOSED
    assert listed == found.keys(), "a target or grain is new, or is gone"


def streams(queues: Any) -> PersistentStreams:
    mapper = HashRingMapper(queues=1)
    return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())


class Reminded(Grain):
    """A grain whose extension takes deliveries of reminders."""

    @reminder
    async def remind(self, occurrence: Occurrence) -> None: ...


@asynccontextmanager
async def everything(directory: Path) -> AsyncIterator[Silo]:
    """Start a silo with all shipped parts."""
    async with Silo(
        grains=[Reminded],
        membership=f"sqlite:{directory}",
        stores={"default": f"sqlite:{directory}"},
        reminders=SqliteReminderTable(directory),
        streams={
            "default": streams(MemoryQueues()),
            "durable": streams(LedgerQueues(directory / "ledger")),
        },
        parts={
            "priority": PriorityQueues(MemoryStore()),
            "news": Broadcast(),
            "metrics": Metrics(),
        },
        rebalancing=Rebalancing(),
    ) as silo:
        yield silo


def asked_for(silo: Silo) -> Iterator[tuple[str, str, str, str, Role]]:
    """Yield each method that can be called: kind, key and method, its name in `OPEN`, and its
    role."""
    inside = silo.assembly
    for target in inside.targets.names():
        kind, _, instance = target.partition("/")
        found = inside.targets.find(target)
        assert found is not None
        for method in found.target_specs:
            yield kind, instance, method, kind, role_for(kind, method)
    for name, known in inside.references.kinds.items():
        if known.hosted is None:
            continue
        cls = known.hosted.cls.__mro__[0].__name__
        for method in known.hosted.specs:
            yield name, "a", method, cls, role_for(cls, method)
        for called in inside.engine.callee._extension_specs:
            extension, _, method = called.partition(".")
            is_by_type = extension in BY_TYPE
            least = known.open_to if is_by_type else role_for(extension, method)
            yield name, "a", called, extension, least


def role_for(name: str, method: str) -> Role:
    for role in OPEN:
        if method in expected(name, role):
            return role
    return Role.SILO


async def is_refused(client: Client, kind: str, key: str, method: str) -> bool:
    """Is a call without arguments refused because of its caller, not because of its arguments?"""
    wait, (peer, *_) = Waits(), client.engine.peers.list_known()
    peer.writer.send_call(call(kind=kind, key=key, method=method), wait)
    await until(lambda: bool(wait.told))
    ((what, body),) = wait.told
    return what == "failure" and type(rebuild(body, KnownErrors([]))).__name__ == "NotAllowed"


@pytest.mark.parametrize("role", [Role.CLIENT, Role.OPERATOR], ids=lambda role: role.name)
async def test_a_silo_with_everything_refuses_each_method_that_is_not_open_to_the_caller(
    tmp_path: Path, role: Role
) -> None:
    async with everything(tmp_path) as silo:
        secret = operator_secret(tmp_path) if role is Role.OPERATOR else ""
        async with connect(silo.gateway, operator_secret=secret) as client:
            seen: set[str] = set()
            for kind, key, method, name, least in asked_for(silo):
                seen.add(name)
                refused = await is_refused(client, kind, key, method)
                assert refused == (role < least), (kind, method, least.name)
    listed = {name for one in OPEN for name in OPEN[one]} | CLOSED
    assert listed <= seen, listed - seen
