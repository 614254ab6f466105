"""A silo that is reduced to its bookie: the parts that it leaves out, and refused cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from millstream.runtime import ConfigError, Grain, MemoryMembershipTable, MemoryStateStore, Silo
from millstream.runtime.extending import SiloPart, SiloServices


class Given(Grain):
    async def ping(self) -> str:
        return "pong"


class Brought(Grain):
    async def ping(self) -> str:
        return "pong"


class Shelf(SiloPart):
    """A part that keeps data."""

    is_open = False

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        return (Brought,)

    def has_bookie(self) -> bool:
        return True

    async def open(self, services: SiloServices, name: str, /) -> None:
        self.is_open = True


class Shop(SiloPart):
    """A part that does work."""

    is_open = False

    def agreement(self) -> Mapping[str, str]:
        return {"prices": "high"}

    async def open(self, services: SiloServices, name: str, /) -> None:
        self.is_open = True


def silo(table: MemoryMembershipTable, **parts: SiloPart) -> Silo:
    stores = {"default": MemoryStateStore(private=True)}
    return Silo(grains=[Given], membership=table, stores=stores, parts=parts)


async def test_it_hosts_nothing_owns_no_queues_and_opens_no_other_part() -> None:
    table, shelf, shop = MemoryMembershipTable(), Shelf(), Shop()
    reduced = silo(table, shelf=shelf, shop=shop)
    reduced.reduce_to_bookie()
    async with reduced, silo(table, shelf=Shelf(), shop=Shop()) as whole:
        (row,) = [row for row in (await table.read()).rows if row.silo == reduced.address]
        assert (row.grain_types, row.declarations, row.can_own_queues) == ((), (), False)
        assert (shelf.is_open, shop.is_open) == (True, False)
        assert await reduced.grain(Given, "a").ping() == "pong"
        assert await reduced.grain(Brought, "a").ping() == "pong"
        assert reduced.services.activation_count == 0
        assert whole.services.activation_count == 2


async def test_it_must_agree_in_all_that_the_whole_silo_must() -> None:
    class Other(Shop):
        def agreement(self) -> Mapping[str, str]:
            return {"prices": "low"}

    table = MemoryMembershipTable()
    reduced = silo(table, shelf=Shelf(), shop=Other())
    reduced.reduce_to_bookie()
    async with silo(table, shelf=Shelf(), shop=Shop()):
        with pytest.raises(ConfigError, match="prices of 'shop' is 'low' here and 'high'"):
            await reduced.start()


def test_a_silo_without_a_bookie_cannot_be_reduced_to_it() -> None:
    with pytest.raises(
        ConfigError, match="no part of this silo has a bookie \\(it has 'shop'\\): pass a"
    ):
        silo(MemoryMembershipTable(), shop=Shop()).reduce_to_bookie()
    with pytest.raises(ConfigError, match="has a bookie \\(it has no parts\\): pass a"):
        silo(MemoryMembershipTable()).reduce_to_bookie()


def test_a_bookie_that_nobody_could_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="its own membership table, so no other silo can find"):
        Silo(grains=[], parts={"shelf": Shelf()}).reduce_to_bookie()


async def test_a_silo_that_was_started_is_not_reduced() -> None:
    async with silo(MemoryMembershipTable(), shelf=Shelf()) as whole:
        with pytest.raises(ConfigError, match="was already started"):
            whole.reduce_to_bookie()
        assert await whole.grain(Given, "a").ping() == "pong"
