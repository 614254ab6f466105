"""Placement by labels of silos and by functions of the program, in clusters in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.runtime.worker_world import World, in_cluster

from millstream.runtime import (
    HASHED,
    LEAST_ACTIVATIONS,
    PREFER_LOCAL,
    ConfigError,
    Contract,
    Grain,
    MillstreamError,
    NoSuitableSilo,
    NotHosted,
    PlacementCandidate,
    PlacementFailed,
    PlacementRequest,
    Silo,
    SiloUnavailable,
    grain,
    stateless_worker,
)

LABELS = [{"zone": "a"}, {"zone": "b"}, {"zone": "b", "disk": "ssd"}]
CALLS: list[PlacementRequest] = []
ANSWERS: list[Callable[[PlacementRequest], Any]] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    ANSWERS.clear()


class Where(Grain):
    async def where(self) -> str:
        return self.context.silo


@grain(requires={"zone": "b"})
class InB(Where): ...


@grain(requires={"zone": {"a", "c"}}, placement=PREFER_LOCAL)
class Local(Where): ...


@grain(requires={"zone": ["b"]}, placement=HASHED)
class Hashed(Where): ...


@grain(requires={"zone": "b"}, placement=LEAST_ACTIVATIONS)
class Least(Where): ...


@grain(requires={"disk": "ssd", "zone": "b"})
class OnSsd(Where): ...


@grain(requires={"zone": "b"}, placement=stateless_worker(max_local=2))
class Worker(Where): ...


@grain(requires={"zone": "mars"})
class Nowhere(Where): ...


@grain(requires={"zone": "mars"}, placement=stateless_worker())
class NoWorker(Where): ...


def choose(request: PlacementRequest) -> PlacementCandidate:
    CALLS.append(request)
    return ANSWERS[0](request) if ANSWERS else request.candidates[-1]


class Chosen(Contract):
    async def where(self) -> str:
        raise NotImplementedError


@grain(name="Chosen", placement=choose)
class ChosenGrain(Where, Chosen): ...


@grain(placement=choose, requires={"zone": "b"})
class Both(Where): ...


GRAINS = [InB, Local, Hashed, Least, OnSsd, Worker, Nowhere, NoWorker, ChosenGrain, Both]


async def spread(cls: type[Any], silo: Silo, count: int = 20) -> set[str]:
    return {await silo.grain(cls, f"{i}").where() for i in range(count)}


async def failure(cls: type[Any], runtime: Any) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        await runtime.grain(cls, "a").where()
    return caught.value


def in_zones(main: Callable[[World], Awaitable[None]], **cluster: Any) -> None:
    in_cluster(main, **{"grains": GRAINS, "labels": LABELS, **cluster})


# --- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "suitable"),
    [(InB, {1, 2}), (Local, {0}), (Hashed, {1, 2}), (Least, {1, 2}), (OnSsd, {2}), (Both, {2})],
)
@pytest.mark.parametrize("lacking", [True, False])
def test_grains_are_placed_on_silos_with_the_required_labels(
    cls: type[Where], suitable: set[int], lacking: bool
) -> None:
    """Also if the caller's silo does not host the type, and knows it by the rows of others."""

    async def main(world: World) -> None:
        expected = {world.silo(number).address for number in suitable}
        for number in range(3):
            assert await world.at(number, partial(spread, cls)) == expected

    without = {"silo-1" if 0 in suitable else "silo-0": [cls]} if lacking else {}
    in_zones(main, lacking=without)


def test_workers_run_on_silos_with_the_required_labels() -> None:
    async def main(world: World) -> None:
        one, two = world.silo(1).address, world.silo(2).address
        assert await world.at(1, partial(spread, Worker)) == {one}
        assert await world.at(2, partial(spread, Worker)) == {two}
        assert await world.at(0, partial(spread, Worker)) == {one, two}
        assert 0 not in world.hosts("Worker")

    in_zones(main)


def test_members_show_their_labels() -> None:
    async def main(world: World) -> None:
        async def members(client: Any) -> list[dict[str, str]]:
            return [dict(one.labels) for one in await client.members()]

        by_zone = Counter(one.get("zone") for one in await world.at_client(members))
        assert by_zone == {"a": 1, "b": 2}
        assert [dict(one.labels) for one in world.silo(0).members()] == [
            dict(row.labels) for row in sorted(world.rows(), key=lambda row: row.silo)
        ]

    in_zones(main)


@pytest.mark.parametrize("cls", [Nowhere, NoWorker])
def test_the_error_names_the_labels_the_type_and_the_labels_of_silos(cls: type[Where]) -> None:
    async def main(world: World) -> None:
        name = cls.__name__
        for error in [
            await world.at(0, partial(failure, cls)),
            await world.at_client(partial(failure, cls)),
        ]:
            assert isinstance(error, NoSuitableSilo) and isinstance(error, NotHosted)
            assert str(error).startswith(f"{name}/a requires a silo with zone=mars; of the active")
            assert "silo-0 has zone=a, silo-1 has zone=b, silo-2 has disk=ssd, zone=b" in str(error)

    in_zones(main)


def test_the_only_silo_of_a_cluster_refuses_grains_that_it_does_not_suit() -> None:
    async def main(world: World) -> None:
        assert isinstance(await world.at(0, partial(failure, InB)), NoSuitableSilo)
        assert await world.at(0, partial(spread, Local)) == {world.silo(0).address}

    in_zones(main, silos=1)


def test_calls_wait_for_a_silo_with_the_labels_that_is_starting() -> None:
    async def main(world: World) -> None:
        await world.cluster.stop_silo("silo-2")  # the host starts another silo
        error = await world.at(0, partial(failure, OnSsd))
        assert isinstance(error, NoSuitableSilo | SiloUnavailable)
        await world.cluster.until_active()
        assert await world.at(0, partial(spread, OnSsd)) == {world.silo(2).address}

    in_zones(main)


def test_an_activation_stays_when_a_better_silo_joins() -> None:
    @grain(requires={"zone": {"a", "b"}}, placement=HASHED)
    class Staying(Where): ...

    async def main(world: World) -> None:
        before = [await world.at(0, partial(where, Staying, f"{i}")) for i in range(20)]
        world.cluster.add_silo()
        await world.cluster.until_active()
        assert [await world.at(0, partial(where, Staying, f"{i}")) for i in range(20)] == before

    in_zones(main, grains=[Staying], silos=2, labels=[{"zone": "a"}, {"zone": "a"}, {"zone": "b"}])


async def where(cls: type[Any], key: str, silo: Silo) -> str:
    found: str = await silo.grain(cls, key).where()
    return found


def test_a_silo_restores_labels_that_an_older_version_removed_from_its_row() -> None:
    """A silo of a version without labels writes a row without them when it votes."""

    async def main(world: World) -> None:
        world.strip("silo-2")
        await asyncio.sleep(10.0)
        (row,) = [row for row in world.rows() if row.name == "silo-2"]
        assert dict(row.labels) == LABELS[2] and dict(row.requirements)["InB"]
        assert await world.at(0, partial(spread, OnSsd)) == {world.silo(2).address}

    in_zones(main)


# --- functions of the program --------------------------------------------------------------------


def test_a_function_chooses_among_the_silos_with_their_labels() -> None:
    async def main(world: World) -> None:
        addresses = sorted(world.silo(number).address for number in range(3))
        assert await world.at(0, partial(where, Chosen, "k")) == addresses[-1]
        (request,) = CALLS
        assert (request.grain_type, request.key) == ("Chosen", "k")
        assert request.caller == world.silo(0).address
        assert [one.address for one in request.candidates] == addresses
        named = {one.name: dict(one.labels) for one in request.candidates}
        assert named == {f"silo-{number}": LABELS[number] for number in range(3)}
        with pytest.raises(TypeError):
            request.candidates[0].labels["zone"] = "c"  # type: ignore[index]
        await world.at(1, partial(where, Chosen, "k"))
        assert len(CALLS) == 1  # the activation exists

    in_zones(main)


def test_a_silo_that_does_not_host_the_type_asks_one_that_does() -> None:
    async def main(world: World) -> None:
        ANSWERS.append(lambda request: request.candidates[0])
        first = min(world.silo(number).address for number in (1, 2))
        assert await world.at(0, partial(where, Chosen, "k")) == first
        assert CALLS[0].caller == world.silo(0).address and len(CALLS[0].candidates) == 2
        with_errors(CALLS, ANSWERS)
        error = await world.at(0, partial(failure, Chosen))
        assert isinstance(error, PlacementFailed) and "raised ValueError: no silo today" in str(
            error
        )

    in_zones(main, lacking={"silo-0": [ChosenGrain]})


def with_errors(calls: list[Any], answers: list[Any]) -> None:
    def refuse(request: PlacementRequest) -> Any:
        raise ValueError("no silo today")

    calls.clear()
    answers[:] = [refuse]


async def a_coroutine() -> None: ...


def leave(request: PlacementRequest) -> Any:
    raise SystemExit(3)


BAD: list[tuple[Callable[[PlacementRequest], Any], str]] = [
    (lambda request: request.candidates[0].address, "returned 'silo"),
    (lambda request: None, "returned None; it must return one of the request's candidates"),
    (lambda request: a_coroutine(), "returned <coroutine"),
    (leave, "raised SystemExit: 3"),
    (
        lambda request: PlacementCandidate(address="x", name="x", labels={}, activations=0),
        "returned PlacementCandidate",
    ),
]


@pytest.mark.parametrize(("answer", "text"), BAD)
def test_a_wrong_result_fails_the_call_and_names_the_function(answer: Any, text: str) -> None:
    async def main(world: World) -> None:
        ANSWERS.append(answer)
        for number, cls in ((0, ChosenGrain), (1, Both)):
            error = await world.at(number, partial(failure, cls))
            assert isinstance(error, PlacementFailed)
            assert f"{cls.__millstream_type__.name}/a: the placement strategy" in str(error)
            assert "test_placement.choose" in str(error) and text in str(error)
        ANSWERS.clear()
        assert await world.at(0, partial(where, Chosen, "a"))

    in_zones(main)


def test_the_request_counts_activations() -> None:
    async def main(world: World) -> None:
        await world.at(1, partial(spread, Chosen))
        await asyncio.sleep(2.0)
        await world.at(0, partial(where, Chosen, "more"))
        last = CALLS[-1].candidates
        assert [one.activations for one in last] == [0, 0, 20]

    in_zones(main)


def test_the_only_silo_of_a_cluster_calls_the_function() -> None:
    async def main(world: World) -> None:
        assert await world.at(0, partial(where, Chosen, "a")) == world.silo(0).address
        assert len(CALLS) == 1
        with_errors(CALLS, ANSWERS)
        assert isinstance(await world.at_client(partial(failure, Both)), NoSuitableSilo)
        await world.at(0, partial(where, Chosen, "a"))
        with pytest.raises(PlacementFailed):
            await world.at(0, partial(where, Chosen, "b"))

    in_zones(main, silos=1)


@pytest.mark.parametrize(
    "wrong", [PlacementCandidate, a_coroutine, stateless_worker, lambda: None, "random", 5]
)
def test_a_placement_that_is_no_strategy_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"@grain\(placement=\.\.\.\)"):
        grain(placement=wrong)
