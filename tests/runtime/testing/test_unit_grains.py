"""Grains as plain objects: the parts that a unit test gives them, and the effects that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.runtime import Contract, Grain, NotInCluster, Silo, state
from millstream.runtime.testing import grain_of, home_of, writes_of
from millstream.streams import StreamNamespace

NEWS = StreamNamespace("news", str)


@dataclass
class Tally:
    count: int = 0


class Other(Grain):
    async def ping(self) -> int:
        return 1


class Device(Grain):
    tally = state(Tally)
    limit = state(int, default=lambda: 10, name="bound")

    def __init__(self) -> None:
        self.made_for = self.key

    async def on_activate(self) -> None:
        self.tally.value.count += 100

    async def add(self, by: int) -> int:
        self.tally.value.count += by
        await self.tally.write()
        return self.tally.value.count

    async def ask(self, key: str) -> int:
        return await self.grain(Other, key).ping()

    async def tell(self, key: str) -> None:
        await self.stream(NEWS, key).publish("x")

    async def rare(self) -> tuple[str, Mapping[str, str]]:
        self.context.keep_alive(5)
        self.context.deactivate_when_idle()
        await self.context.create_task(asyncio.sleep(0))
        return self.context.silo, self.context.headers


class Fake:
    def __init__(self) -> None:
        self.published: list[str] = []

    async def ping(self) -> int:
        return 7

    async def publish(self, item: str) -> None:
        self.published.append(item)


async def test_a_grain_has_the_key_and_states_that_the_test_gives() -> None:
    tally = Tally(5)
    device = grain_of(Device, key="d1", state={"tally": tally})
    assert type(device) is Device
    assert (device.key, device.made_for) == ("d1", "d1")
    assert device.tally.value is tally and device.tally.exists
    assert device.limit.value == 10 and not device.limit.exists
    assert await device.add(1) == 6
    await device.add(1)
    assert writes_of(device.tally) == [Tally(6), Tally(7)] and writes_of(device.limit) == []
    tally.count = 50
    await device.tally.read()  # back to the written value
    assert device.tally.value == Tally(7)
    await device.tally.clear()
    assert device.tally.value == Tally(0)
    await device.on_activate()
    assert device.tally.value == Tally(100)


async def test_read_gives_back_the_value_that_was_given() -> None:
    device = grain_of(Device, state={"tally": Tally(5)})
    device.tally.value.count = 6
    await device.tally.read()
    assert device.tally.value == Tally(5)


async def test_grains_and_streams_are_those_of_the_test() -> None:
    fake = Fake()
    device = grain_of(Device, grains={(Other, "o"): fake}, streams={(NEWS, "n"): fake})
    assert await device.ask("o") == 7
    await device.tell("n")
    assert fake.published == ["x"]
    with pytest.raises(LookupError, match=r"Device/unit asked for Other 'x': .*grains=\{\(Other, "):
        await device.ask("x")
    with pytest.raises(LookupError, match=r"Device/unit asked for news 'x': .*streams="):
        await device.tell("x")


async def test_what_a_grain_asks_of_its_home_is_noted() -> None:
    device = grain_of(Device, headers={"tenant": "a"})
    home = home_of(device)
    assert not home.is_ending
    assert await device.rare() == (home.silo, {"tenant": "a"})
    assert home.is_ending and home.kept_alive_s == [5] and len(home.tasks) == 1


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no state 'tallly'.*'tally'"):
        grain_of(Device, state={"tallly": Tally()})
    with pytest.raises(TypeError, match="Tally"):
        grain_of(Device, state={"tally": 5})
    with pytest.raises(TypeError, match="the key of a grain"):
        grain_of(Device, key=5)  # type: ignore[arg-type]
    for name in ("state", "grains", "streams"):
        arguments: dict[str, Any] = {name: 5}
        with pytest.raises(TypeError, match=rf"grain_of\({name}=5\): pass a dict"):
            grain_of(Device, **arguments)
    fakes: Any = {"a": Device}
    with pytest.raises(TypeError, match=r"grain_of\(grains=\.\.\.\): 'a' is not a pair"):
        grain_of(Device, grains=fakes)
    for wrong in (Contract, Tally, Device):
        value: Any = wrong if wrong is not Device else object()
        with pytest.raises(TypeError, match="pass a Grain class"):
            grain_of(value)


async def test_helpers_are_for_grains_of_unit_tests_only() -> None:
    kept: list[Device] = []

    class Kept(Device):
        async def keep(self) -> None:
            kept.append(self)

    async with Silo(grains=[Kept]) as silo:
        await silo.grain(Kept, "a").keep()
        with pytest.raises(TypeError, match="grain_of"):
            home_of(kept[0])
        with pytest.raises(TypeError, match="grain_of"):
            writes_of(kept[0].tally)
    with pytest.raises(NotInCluster):
        await kept[0].tally.write()
