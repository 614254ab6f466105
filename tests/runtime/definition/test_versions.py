"""Versions of grain types: their form, the rows that carry them, and the rule of compatibility."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import (
    ConfigError,
    Contract,
    DefinitionError,
    Grain,
    MemberRow,
    Observer,
    Status,
    TableView,
    grain,
)
from millstream.runtime.cluster.placement import HostedTypes, version_in, versions_of_all
from millstream.runtime.cluster.table import members_of
from millstream.runtime.definition.versions import VERSION_MAX, serves, show_versions

versions = st.integers(1, 4)


@pytest.mark.parametrize("wrong", [0, -1, VERSION_MAX + 1, True, "2", 1.0, None])
def test_a_version_is_a_whole_number_in_its_range(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"@grain\(version=\.\.\.\) is .*whole number >= 1"):
        grain(version=wrong)


@pytest.mark.parametrize("right", [1, 2, VERSION_MAX])
def test_a_class_its_subclass_and_its_methods_have_the_version(right: int) -> None:
    @grain(version=right)
    class Port(Grain):
        async def land(self) -> int:
            return 1

    class Harbour(Port):
        async def moor(self) -> int:
            return 2

    for cls in (Port, Harbour):
        assert cls.__millstream_type__.version == right
        assert {spec.version for spec in cls.__millstream_type__.specs.values()} == {right}


def test_a_class_without_a_version_has_version_1() -> None:
    class Port(Contract):
        async def land(self) -> int:
            raise NotImplementedError

    assert Port.__millstream_type__.version == 1
    assert Port.__millstream_type__.specs["land"].version == 1


def test_an_observer_has_no_version() -> None:
    with pytest.raises(DefinitionError, match="Screen is an observer.*remove `version`"):

        @grain(version=2)
        class Screen(Observer):
            async def show(self, text: str) -> None:
                raise NotImplementedError


def test_a_call_runs_on_its_own_version_and_on_later_ones() -> None:
    assert serves(1, 1) and serves(2, 1) and serves(VERSION_MAX, 1)
    assert not serves(1, 2)
    assert show_versions([2, 1, 2]) == "1, 2" and show_versions([]) == "none"


# -- rows


@grain(name="Port", version=3)
class PortOf3(Grain):
    async def land(self) -> int:
        return 3


class Plain(Grain):
    async def land(self) -> int:
        return 1


def test_a_row_names_only_versions_above_1() -> None:
    assert versions_of_all([PortOf3, Plain]) == (("Port", 3),)


OLD_ROW = (
    b"\x9f\xa7a:1@1_1\xa6active\xa1a\x00\xc3\xc3\x91\xa4Port\xcb\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x90\x90\x90\x90\x90\x90"
)


class OldRow(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a row, as a silo reads them that does not know versions."""

    silo: str
    status: Status
    name: str = ""


def test_a_row_of_a_silo_without_versions_reads_as_version_1() -> None:
    row = msgspec.msgpack.decode(OLD_ROW, type=MemberRow)
    assert (row.silo, row.grain_types, row.versions) == ("a:1@1_1", ("Port",), ())
    assert version_in(row, "Port") == 1
    newer = msgspec.structs.replace(row, versions=(("Port", 3),))
    data = msgspec.msgpack.encode(newer)
    assert data == b"\xdc\x00\x10" + OLD_ROW[1:] + b"\x91\x92\xa4Port\x03"
    assert msgspec.msgpack.decode(data, type=MemberRow) == newer
    assert msgspec.msgpack.decode(data, type=OldRow) == OldRow("a:1@1_1", Status.ACTIVE, "a")
    assert version_in(newer, "Port") == 3 and version_in(newer, "Other") == 1


def test_members_show_the_versions_of_their_rows() -> None:
    row = MemberRow("a:1@1", Status.ACTIVE, "a", versions=(("Port", 3),))
    (member,) = members_of(TableView(1, (row,)))
    assert member.versions == (("Port", 3),)


# -- the choice of silos


def row_of(number: int, version: int, status: Status = Status.ACTIVE) -> MemberRow:
    """Return the row of a silo that hosts `Port`."""
    kept = () if version == 1 else (("Port", version),)
    return MemberRow(f"s{number}:1@1", status, grain_types=("Port",), versions=kept)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(versions, st.sampled_from(list(Status))), max_size=6), versions)
def test_exactly_the_active_silos_of_a_version_or_a_later_one_are_suitable(
    silos: list[tuple[int, Status]], wanted: int
) -> None:
    rows = tuple(row_of(number, *silo) for number, silo in enumerate(silos))
    found = HostedTypes(TableView(1, rows)).of("Port", None)
    expected = [
        f"s{number}:1@1"
        for number, (version, status) in enumerate(silos)
        if status is Status.ACTIVE and version >= wanted
    ]
    assert list(found.silos_at(wanted) if found else ()) == expected
    if found is not None:
        assert set(found.silos_at(wanted)) <= set(found.silos_at(1)) == set(found.silos)
        assert len(found.versions) == len(found.silos)


def test_a_suitable_silo_has_the_labels_too() -> None:
    rows = (
        msgspec.structs.replace(row_of(1, 2), labels=(("zone", "a"),)),
        msgspec.structs.replace(row_of(2, 2), labels=(("zone", "b"),)),
        msgspec.structs.replace(row_of(3, 1), labels=(("zone", "b"),)),
    )

    @grain(name="Port", requires={"zone": "b"}, version=2)
    class Port(Grain):
        async def land(self) -> int:
            return 1

    found = HostedTypes(TableView(1, rows)).of("Port", Port.__millstream_type__)
    assert found is not None
    assert found.silos == ("s2:1@1", "s3:1@1") and list(found.silos_at(2)) == ["s2:1@1"]
    assert found.versions == [2, 1]
