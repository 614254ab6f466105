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
    grain,
)
from millstream.runtime.definition.versions import (
    VERSION_MAX,
    find_version,
    select_serving,
    serves,
    show_versions,
)

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
    assert find_version(row.versions, "Port") == 1
    newer = msgspec.structs.replace(row, versions=(("Port", 3),))
    data = msgspec.msgpack.encode(newer)
    assert data == b"\xdc\x00\x10" + OLD_ROW[1:] + b"\x91\x92\xa4Port\x03"
    assert msgspec.msgpack.decode(data, type=MemberRow) == newer
    assert msgspec.msgpack.decode(data, type=OldRow) == OldRow("a:1@1_1", Status.ACTIVE, "a")
    assert find_version(newer.versions, "Port") == 3
    assert find_version(newer.versions, "Other") == 1


# -- the choice of silos


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(versions, max_size=6), versions)
def test_exactly_the_silos_of_a_version_or_a_later_one_are_suitable(
    hosted: list[int], wanted: int
) -> None:
    silos = [(f"s{number}", version) for number, version in enumerate(hosted)]
    found = select_serving(silos, wanted)
    assert found == [silo for silo, version in silos if version >= wanted]
    assert set(found) <= set(select_serving(silos, max(1, wanted - 1)))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(versions, min_size=1, max_size=5), st.lists(versions, max_size=20), st.data())
def test_a_grain_that_calls_of_all_versions_reach_moves_up_and_settles(
    hosted: list[int], calls: list[int], data: st.DataObject
) -> None:
    """The moves of one grain, as calls make them: no version is left twice."""
    silos = [(f"s{number}", version) for number, version in enumerate(hosted)]
    moves = [data.draw(st.sampled_from(hosted))]
    for wanted in calls:
        suitable = select_serving(silos, wanted)
        if not serves(moves[-1], wanted) and suitable:
            moves.append(dict(silos)[data.draw(st.sampled_from(suitable))])
    assert moves == sorted(set(moves)), "each move goes up"
    assert len(moves) <= len(set(hosted))
    possible = [wanted for wanted in calls if select_serving(silos, wanted)]
    assert all(serves(moves[-1], wanted) for wanted in possible)
