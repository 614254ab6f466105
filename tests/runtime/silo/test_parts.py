"""Parts of a silo: refused objects, and the parts of the silo that parts and their grains can
use."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conditions import until

from millstream.runtime import ConfigError, Grain, Silo
from millstream.runtime.extending import (
    ExtendedGrain,
    SiloPart,
    SiloServices,
    extension_of,
    is_grain,
    kind_of,
    services_of,
)

FOUND: list[Any] = []


class Notes:
    """An extension that counts."""

    def __init__(self, grain: ExtendedGrain) -> None:
        self.grain = grain
        self.count = 0

    async def note(self, by: int) -> str:
        self.count += by
        return f"{self.grain}: {self.count}"


class OtherNotes(Notes):
    """Another class of the same name."""


class Brought(Grain):
    async def look(self) -> tuple[str, int]:
        services = services_of(self)
        FOUND.append(services.part("desk"))
        FOUND.append(services.store("default"))
        return services.part("desk").name, services.activation_id


class Given(Grain):
    async def look(self) -> None:
        services_of(self)

    async def notes(self) -> int:
        found: Notes = extension_of(self, "notes")
        return found.count if is_grain(self) else -1


class Desk(SiloPart):
    name = "the desk"

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        return (Brought,)

    async def open(self, services: SiloServices, name: str, /) -> None:
        self.services = services
        services.extensions.add("notes", Notes)
        services.extensions.add("notes", Notes)  # a repeat is harmless


async def test_a_grain_that_a_part_brought_gets_services_and_another_does_not() -> None:
    FOUND.clear()
    desk = Desk()
    async with Silo(grains=[Given], parts={"desk": desk}) as silo:
        name, number = await silo.grain(Brought, "a").look()
        assert (name, number > 0) == ("the desk", True)
        assert FOUND == [desk, silo.services.store("default")]
        with pytest.raises(ConfigError, match="Given does not come from a part"):
            await silo.grain(Given, "a").look()
        with pytest.raises(ConfigError, match="no part named 'shop'; it has 'desk'"):
            silo.services.part("shop")


async def test_a_silo_that_stopped_is_held_by_nobody() -> None:
    """A stopped silo must not stay in memory with its grain types and directory."""

    async def stopped() -> weakref.ref[SiloServices]:
        async with Silo(grains=[Given], parts={"desk": Desk()}) as silo:
            await silo.grain(Brought, "a").look()
            return weakref.ref(silo.services)

    def is_free() -> bool:
        gc.collect()
        return services() is None

    services = await stopped()
    FOUND.clear()
    await until(is_free)


async def test_an_extension_lives_with_its_grain_and_its_name_is_one_class_s() -> None:
    desk = Desk()
    async with Silo(grains=[Given], parts={"desk": desk}) as silo:
        note = desk.services.extensions.method(kind_of(Given), Notes.note)
        assert await note("k", 2) == "Given/k: 2"
        assert await note("k", 3) == "Given/k: 5"
        assert await silo.grain(Given, "k").notes() == 5
        with pytest.raises(ConfigError, match=r"'notes' is already .*Notes, not .*OtherNotes"):
            desk.services.extensions.add("notes", OtherNotes)
    assert extension_of(Given(), "notes") is None and not is_grain(Given())


class Half:
    def grains(self, name: str) -> tuple[()]:
        return ()

    async def open(self, services: SiloServices, name: str) -> None: ...
    def stop(self) -> None: ...


def test_what_is_no_part_is_refused_with_all_that_it_lacks() -> None:
    half: Any = Half()
    match = (
        "part 'half': Half is not a SiloPart: no `async def start`; no `async def stop`; "
        "no `async def aclose`; no `def abort`; no `def agreement`; "
        "no `def has_bookie`; derive the class from"
    )
    with pytest.raises(ConfigError, match=match):
        Silo(grains=[], parts={"half": half})


def test_a_name_is_given_once() -> None:
    with pytest.raises(ConfigError, match="both have a part named 'desk'"):
        Silo(grains=[], streams={"desk": Desk()}, parts={"desk": Desk()})
