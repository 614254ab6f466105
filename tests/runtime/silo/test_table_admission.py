"""A silo compares its cluster and its clock with those of a table that has them."""

from __future__ import annotations

import logging

import pytest

from millstream.runtime import ConfigError, Env, MemoryMembershipTable, Silo, StorageUnavailable


class LateEnv(Env):
    """A clock that is ahead of that of the table."""

    __slots__ = ("ahead_s",)

    def __init__(self, ahead_s: float) -> None:
        super().__init__(1)
        self.ahead_s = ahead_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self.ahead_s


class ServedTable(MemoryMembershipTable):
    """A table of a server with a clock, which knows its cluster and keeps its secrets."""

    def __init__(self, owner: str = "") -> None:
        super().__init__(1)
        self.owner = owner
        self.kept: dict[str, bytes] = {}
        self.is_away = False

    async def claim(self, cluster: str, /) -> str:
        self.owner = self.owner or cluster
        return self.owner

    async def clock_s(self) -> float:
        if self.is_away:
            raise StorageUnavailable("the server is away")
        return 1_700_000_000.0

    async def secret(self, fresh: bytes, /) -> bytes:  # type: ignore[override]
        return self.kept.setdefault("cluster", fresh)

    async def operator_secret(self, fresh: bytes, /) -> bytes:
        return self.kept.setdefault("operator", fresh)


def silo_of(table: MemoryMembershipTable, ahead_s: float = 0.0, cluster: str = "dev") -> Silo:
    return Silo(grains=[], membership=table, env=LateEnv(ahead_s), cluster=cluster)


async def test_a_silo_joins_and_its_table_keeps_cluster_and_secrets() -> None:
    table = ServedTable()
    async with silo_of(table, cluster="shop") as silo:
        assert [one.address for one in silo.members()] == [silo.address]
    assert table.owner == "shop"
    assert {name: len(secret) for name, secret in table.kept.items()} == {
        "cluster": 32,
        "operator": 32,
    }


async def test_silos_of_one_table_have_the_secrets_that_it_keeps() -> None:
    table = ServedTable()
    async with silo_of(table), silo_of(table) as second:
        assert len(second.members()) == 2


async def test_a_table_of_another_cluster_is_refused() -> None:
    table = ServedTable("shop")
    with pytest.raises(ConfigError, match=r"belongs to cluster 'shop'.*in cluster 'dev'.*pass"):
        await silo_of(table).start()
    assert (await table.read()).rows == ()


@pytest.mark.parametrize("ahead_s", [60.5, -3600.0])
async def test_a_silo_whose_clock_is_far_off_does_not_join(ahead_s: float) -> None:
    table = ServedTable()
    side = "ahead of" if ahead_s > 0 else "behind"
    with pytest.raises(ConfigError, match=f"{abs(ahead_s)} s {side} .*NTP"):
        await silo_of(table, ahead_s).start()
    assert (await table.read()).rows == ()


@pytest.mark.parametrize(("ahead_s", "warnings"), [(4.5, 0), (5.5, 1), (-59.5, 1)])
async def test_a_silo_whose_clock_is_off_warns(
    ahead_s: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "millstream.member"):
        async with silo_of(ServedTable(), ahead_s):
            pass
    said = [record for record in caplog.records if "the clock of this silo" in record.message]
    assert len(said) == warnings


async def test_a_table_whose_clock_cannot_be_read_admits_no_silo() -> None:
    table = ServedTable()
    table.is_away = True
    with pytest.raises(StorageUnavailable, match="the server is away"):
        await silo_of(table).start()
