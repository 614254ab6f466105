"""Arguments that `Silo`, `LocalCluster` and `connect` refuse before anything is opened, and the
errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import (
    Client,
    ConfigError,
    Contract,
    Env,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    MemoryStateStore,
    NotInCluster,
    Silo,
    TcpTransport,
    connect,
    state,
)
from millstream.runtime.extending import RealDisk, SiloPart


class Desk(Grain):
    async def ok(self) -> str:
        return "ok"


class Part(SiloPart):
    """A part that does nothing."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grains", None),
        ("grains", Desk),
        ("grains", "Desk"),
        ("grains", {Desk: 1}),
        ("grains", [Grain]),
        ("grains", [Contract]),
        ("address", None),
        ("address", 7700),
        ("advertise", 5),
        ("cluster", None),
        ("cluster", "\ud800"),
        ("name", 5),
        ("name", "\ud800"),
        ("can_own_queues", "no"),
        ("labels", "zone=a"),
        ("labels", [("zone", "a")]),
        ("insecure", "no"),
        ("stores", "sqlite:data"),
        ("stores", [1]),
        ("stores", {"default": None}),
        ("stores", {"default": MemoryStateStore}),
        ("stores", {"default": MemoryMembershipTable()}),
        ("stores", {5: MemoryStateStore()}),
        ("streams", Part()),
        ("streams", {"": Part()}),
        ("streams", {"a/b": Part()}),
        ("parts", 5),
        ("membership", 5),
        ("membership", MemoryStateStore()),
        ("membership", MemoryMembershipTable),
        ("stores", 0),
        ("streams", 0),
        ("streams", []),
        ("parts", []),
        ("env", 5),
        ("env", Env),
        ("transport", 5),
        ("transport", TcpTransport),
        ("disk", 5),
        ("disk", RealDisk),
        ("options", {}),
        ("options", 5),
        ("membership_options", {}),
        ("membership_options", "fast"),
    ],
)
def test_a_silo_refuses_an_argument_of_another_kind_by_its_name(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"grains": [Desk], name: value}
    with pytest.raises(ConfigError, match=rf"Silo\({name}=\.\.\.\)"):
        Silo(**arguments)


@pytest.mark.parametrize("silos", [0, "2", 1.5, None, True])
def test_a_local_cluster_starts_a_whole_number_of_silos(silos: Any) -> None:
    with pytest.raises(ConfigError, match="pass a whole number, at least 1"):
        LocalCluster(grains=[Desk], silos=silos)


def test_a_local_cluster_takes_functions_that_make_parts() -> None:
    streams: Any = {"default": Part()}
    with pytest.raises(
        ConfigError,
        match=r"'default' must be a function that makes an object.*: write a function that",
    ):
        LocalCluster(grains=[Desk], streams=streams)


def test_a_silo_says_that_a_function_of_parts_must_be_called() -> None:
    def make_part() -> Part:
        return Part()

    streams: Any = {"default": make_part}
    with pytest.raises(ConfigError, match=r"part 'default' is a function.*write make_part\(\)"):
        Silo(grains=[Desk], streams=streams)


@pytest.mark.parametrize("name", ["grains", "stores", "streams", "parts"])
def test_a_local_cluster_refuses_an_argument_of_another_kind_by_its_name(name: str) -> None:
    arguments: dict[str, Any] = {"grains": [Desk], name: 5}
    with pytest.raises(ConfigError, match=rf"LocalCluster\({name}=\.\.\.\) is 5"):
        LocalCluster(**arguments)


async def test_a_local_cluster_starts_no_silo_that_nobody_would_stop() -> None:
    cluster, table = LocalCluster(grains=[Desk]), MemoryMembershipTable()
    with pytest.raises(NotInCluster, match="not started, or has stopped"):
        await cluster.start_silo()
    async with LocalCluster(grains=[Desk], membership=table) as cluster:
        await cluster.start_silo()
    version = table.view().version
    with pytest.raises(NotInCluster, match="not started, or has stopped"):
        await cluster.start_silo()
    assert table.view().version == version


async def test_a_silo_that_starts_while_its_local_cluster_ends_is_stopped() -> None:
    async with LocalCluster(grains=[Desk]) as cluster:
        starting = asyncio.ensure_future(cluster.start_silo())
        await asyncio.sleep(0)
    with pytest.raises(NotInCluster, match="not started, or has stopped"):
        await starting
    assert len(cluster.silos) == 1


@pytest.mark.parametrize("name", ["env", "options", "cluster"])
def test_a_client_refuses_an_argument_of_another_kind(name: str) -> None:
    arguments: dict[str, Any] = {name: 5}
    with pytest.raises(ConfigError, match=rf"connect\({name}=\.\.\.\) is 5"):
        Client(["127.0.0.1:1"], **arguments)


@pytest.mark.parametrize("namespace", [5, None, "arrivals"])
async def test_a_stream_needs_a_namespace(namespace: Any) -> None:
    async with Silo(grains=[Desk]) as silo:
        with pytest.raises(TypeError, match=r"stream\(.*the first argument must be a namespace"):
            silo.stream(namespace, "a")


@pytest.mark.parametrize("arguments", [{"options": 5}, {"options": {}}, {"cluster": 5}])
def test_connect_refuses_an_argument_of_another_kind(arguments: Any) -> None:
    with pytest.raises(ConfigError, match=rf"connect\({next(iter(arguments))}=\.\.\.\)"):
        connect("127.0.0.1:1", **arguments)


@pytest.mark.parametrize("argument", ["membership", "stores"])
def test_a_plug_in_without_the_argument_that_it_needs_is_a_wrong_option(argument: str) -> None:
    value: Any = "sqlite" if argument == "membership" else {"default": "sqlite"}
    with pytest.raises(ConfigError, match="'sqlite' needs an argument: write sqlite:argument"):
        Silo(grains=[Desk], **{argument: value})


@pytest.mark.parametrize("make", [SqliteStateStore, SqliteMembershipTable])
@pytest.mark.parametrize("path", ["", None, 5])
def test_an_empty_path_is_not_the_working_directory(
    make: Any, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not the path of a directory"):
        make(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cls", [Grain, Contract, int, "Desk", None])
async def test_a_reference_needs_a_class_of_its_own(cls: Any) -> None:
    async with Silo(grains=[Desk]) as silo:
        with pytest.raises(TypeError, match="is not a Grain or Contract class"):
            silo.grain(cls, "a")


# --- stores that grains name ---------------------------------------------------------------------


class Archived(Grain):
    count = state(int, store="archive")


async def test_a_store_that_a_state_names_and_the_silo_has_not_is_refused_at_the_start() -> None:
    table = MemoryMembershipTable()
    silo = Silo(grains=[Archived], membership=table)
    text = r"Archived\.count needs store 'archive'; this silo has 'default': pass Silo\(s"
    with pytest.raises(ConfigError, match=text):
        await silo.start()
    assert table.view().rows == ()
    async with Silo(grains=[Archived], stores={"archive": MemoryStateStore(private=True)}):
        pass
