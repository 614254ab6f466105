"""Calls through a contract mean the same wherever the grain is: types, defaults, flags, states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conditions import until

from millstream.runtime import (
    Contract,
    Grain,
    LocalCluster,
    MemoryStateStore,
    NotHosted,
    Runtime,
    grain,
    read_only,
    state,
)


@dataclass
class Parcel:
    weight: int
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Label:
    text: str = "hosted"


@dataclass
class Count:
    calls: int = 0


def copies() -> SimpleNamespace:
    """Return the classes of another program that must not import the grain's classes."""

    @dataclass
    class Parcel:
        weight: int
        tags: list[str] = field(default_factory=list)

    @dataclass(frozen=True)
    class Label:
        text: str = "contract"

    globals_of: dict[str, Any] = {"Parcel": Parcel, "Label": Label, "Contract": Contract}
    globals_of["grain"] = grain
    source = """
@grain(name="Depot")
class DepotApi(Contract):
    async def weigh(self, parcel: Parcel) -> int: ...
    async def tag(self, parcel: Parcel, *, label: Label = Label()) -> Parcel: ...
    async def both(self, parcels: list[Parcel], note: str) -> dict[str, Parcel]: ...
    async def one_of(self, item: Parcel | None) -> Parcel | None: ...
    async def wait(self) -> str: ...
    async def wake(self) -> None: ...
    async def count(self) -> int: ...
"""
    exec(source, globals_of)
    return SimpleNamespace(Parcel=Parcel, Label=Label, Api=globals_of["DepotApi"])


COPIES = copies()
WAITING: dict[str, asyncio.Event] = {}


@grain(name="Depot", reentrant=True)
class Depot(Grain):
    kept = state(Count, write="turn")

    async def weigh(self, parcel: Parcel) -> int:
        assert type(parcel) is Parcel
        parcel.tags.append("seen")
        return parcel.weight

    async def tag(self, parcel: Parcel, *, label: Label) -> Parcel:
        assert type(label) is Label
        return Parcel(parcel.weight, [*parcel.tags, label.text])

    async def both(self, parcels: list[Parcel], note: str) -> dict[str, Parcel]:
        assert all(type(parcel) is Parcel for parcel in parcels)
        return {note: parcels[0]}

    async def one_of(self, item: Parcel | None) -> Parcel | None:
        return item

    async def wait(self) -> str:
        event = WAITING[self.key] = asyncio.Event()
        await event.wait()
        return "woken"

    async def wake(self) -> None:
        WAITING.pop(self.key).set()

    async def count(self) -> int:
        self.kept.value.calls += 1
        return self.kept.value.calls


@pytest.fixture
def store() -> MemoryStateStore:
    return MemoryStateStore()


@pytest.fixture(params=["here", "elsewhere", "client"])
async def depot(request: pytest.FixtureRequest, store: MemoryStateStore) -> AsyncIterator[Any]:
    """The contract's reference: from the grain's silo, from another silo, or from a client."""
    async with LocalCluster(silos=2, grains=[Depot], stores={"default": store}) as cluster:
        await cluster.silos[0].grain(Depot, "a").weigh(Parcel(1))
        at = next(i for i, silo in enumerate(cluster.silos) if silo.assembly.catalog.count)
        givers: dict[str, Runtime] = {
            "here": cluster.silos[at],
            "elsewhere": cluster.silos[1 - at],
            "client": cluster.client,
        }
        yield givers[request.param].grain(COPIES.Api, "a")


async def test_a_contract_may_have_classes_of_its_own(depot: Any) -> None:
    parcel = COPIES.Parcel(5, ["new"])
    assert await depot.weigh(parcel) == 5
    assert parcel.tags == ["new"]  # the callee had a copy
    both = await depot.both([parcel], "x")
    assert both == {"x": parcel} and type(both["x"]) is COPIES.Parcel
    assert await depot.one_of(None) is None
    assert await depot.one_of(parcel) == parcel


async def test_values_of_the_hosted_class_are_no_values_of_the_contracts(depot: Any) -> None:
    with pytest.raises(TypeError, match="argument `parcel`: expected `Parcel`, got `Parcel`"):
        await depot.weigh(Parcel(5))


async def test_the_defaults_are_the_contracts(depot: Any) -> None:
    tagged = await depot.tag(COPIES.Parcel(1))
    assert tagged == COPIES.Parcel(1, ["contract"])
    assert (await depot.tag(COPIES.Parcel(1), label=COPIES.Label("mine"))).tags == ["mine"]


async def test_a_call_through_a_contract_interleaves_if_the_grain_does(depot: Any) -> None:
    waiting = asyncio.create_task(depot.wait())
    await until(lambda: "a" in WAITING)
    async with asyncio.timeout(5):
        await depot.wake()
        assert await waiting == "woken"


async def test_a_call_through_a_contract_writes_what_the_turn_changed(
    depot: Any, store: MemoryStateStore
) -> None:
    assert await depot.count() == 1
    row = store.get("Depot/a/kept")
    assert row is not None and b"calls" in row.data


async def test_a_contract_that_names_parameters_otherwise_is_rejected_everywhere() -> None:
    @grain(name="Depot")
    class OtherApi(Contract):
        async def weigh(self, box: Parcel) -> int: ...  # type: ignore[empty-body]

    async with LocalCluster(silos=1, grains=[Depot]) as cluster:
        with pytest.raises(NotHosted, match="differ"):
            await cluster.silos[0].grain(OtherApi, "a").weigh(Parcel(1))


async def test_read_only_calls_of_a_contract_run_together() -> None:
    class Reader(Grain):
        @read_only
        async def wait(self) -> None:
            event = WAITING[self.key] = asyncio.Event()
            await event.wait()

        @read_only
        async def wake(self) -> None:
            WAITING.pop(self.key).set()

    @grain(name="Reader")
    class ReaderApi(Contract):
        async def wait(self) -> None: ...
        async def wake(self) -> None: ...

    async with LocalCluster(silos=1, grains=[Reader]) as cluster:
        ref = cluster.silos[0].grain(ReaderApi, "r")
        waiting = asyncio.create_task(ref.wait())
        await until(lambda: "r" in WAITING)
        async with asyncio.timeout(5):
            await ref.wake()
            await waiting
