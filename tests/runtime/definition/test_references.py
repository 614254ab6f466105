"""References: identity, guard, signatures, options, and references as arguments."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.runtime import (
    CallTimeout,
    ConfigError,
    Contract,
    Grain,
    LocalCluster,
    NotInCluster,
    NotRemote,
    Runtime,
    Silo,
    connect,
    grain,
    is_reference,
    state,
    with_options,
)
from millstream.runtime.calls import caller, references
from millstream.runtime.definition import reference
from millstream.runtime.definition.headers import HEADERS_BYTES_MAX, HEADERS_MAX
from millstream.runtime.extending import method_reference


@dataclass
class Tally:
    count: int = 0


class Airport(Grain):
    """An airport."""

    tally = state(Tally)
    constant = 5

    async def add(self, by: int, *, note: str = "none") -> int:
        """Add to the count."""
        self.tally.value.count += by
        return self.tally.value.count

    async def address(self, street: str, /, number: int = 1) -> str:
        return f"{street} {number}"

    async def tags(self) -> dict[str, str]:
        return dict(self.context.headers)

    async def spoil(self) -> dict[str, str]:
        headers: Any = self.context.headers
        found = dict(headers)
        headers["a"] = "changed"
        return found

    async def stuck(self) -> None:
        await asyncio.Event().wait()

    @property
    def size(self) -> int:
        return 1

    async def _private(self) -> int:
        return 1

    @staticmethod
    def fold() -> int:
        return 1


@grain(name="Harbour")
class Port(Grain):
    async def ok(self) -> str:
        return "ok"


class SmallAirport(Airport):
    pass


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Airport, Port, SmallAirport]) as started:
        yield started


@pytest.fixture
def ref(silo: Silo) -> Airport:
    return silo.grain(Airport, "BOS")


# --- calls ---------------------------------------------------------------------------------------


async def test_a_call_is_a_real_coroutine(ref: Airport) -> None:
    call = ref.add(1)
    assert inspect.iscoroutine(call)
    assert await asyncio.create_task(call) == 1
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ref.add(1))
    assert task.result() == 2
    assert inspect.iscoroutinefunction(ref.add)


async def test_wrong_arguments_fail_at_the_caller_before_anything_is_sent(ref: Airport) -> None:
    any_ref: Any = ref
    with pytest.raises(
        TypeError, match=r"Airport\.add\(\) missing 1 required positional argument: 'by'"
    ):
        any_ref.add()
    with pytest.raises(TypeError, match=r"Airport\.add\(\) got an unexpected keyword argument 'b'"):
        any_ref.add(b=1)
    with pytest.raises(TypeError, match=r"Airport\.add\(\) takes"):
        any_ref.add(1, "note")
    with pytest.raises(TypeError, match="positional-only"):
        any_ref.address(street="x")
    assert await ref.add(0) == 0


async def test_wrong_arguments_with_options_fail_the_same_way(ref: Airport) -> None:
    other: Any = with_options(ref, timeout=5)
    with pytest.raises(TypeError, match=r"Airport\.add\(\) missing 1 required .*'by'"):
        other.add()


async def test_a_forgotten_await_names_the_method(ref: Airport) -> None:
    coroutine: Any = ref.add(1)
    assert coroutine.__qualname__ == "Airport.add"
    coroutine.close()


@pytest.mark.parametrize("has_options", [False, True])
async def test_help_and_signature_are_those_of_the_method(ref: Airport, has_options: bool) -> None:
    if has_options:
        ref = with_options(ref, timeout=5)
    assert str(inspect.signature(ref.add)) == "(by: 'int', *, note: 'str' = 'none') -> 'int'"
    assert str(inspect.signature(ref.address)) == "(street: 'str', /, number: 'int' = 1) -> 'str'"
    assert ref.add.__doc__ == "Add to the count."
    assert ref.add.__name__ == "add" and ref.add.__qualname__ == "Airport.add"
    assert ref.add.__module__ == __name__


async def test_positional_only_keyword_only_and_defaults_arrive(ref: Airport) -> None:
    assert await ref.address("Main") == "Main 1"
    assert await ref.address("Main", number=4) == "Main 4"
    assert await ref.add(by=2, note="x") == 2


def test_dir_lists_the_key_and_remote_methods_only_besides_dunders(ref: Airport) -> None:
    names = [name for name in dir(ref) if not name.startswith("__")]
    assert sorted(names) == ["add", "address", "key", "spoil", "stuck", "tags"]


# --- guard ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tally", ["Airport.tally is grain state", "add"]),
        ("_private", ["Airport._private is private", "add"]),
        ("size", ["Airport.size", "add"]),
        ("constant", ["Airport.constant", "add"]),
        ("fold", ["Airport.fold", "add"]),
        ("on_activate", ["Airport.on_activate works only inside the grain", "add"]),
        ("on_deactivate", ["works only inside the grain"]),
        ("grain", ["works only inside the grain"]),
        ("stream", ["works only inside the grain"]),
        ("context", ["works only inside the grain"]),
        ("ad", ["Airport has no method 'ad'", "Did you mean 'add'?"]),
        ("zzz", ["Airport has no method 'zzz'", "you can call methods", "add, address"]),
    ],
)
async def test_what_is_not_remote_is_refused_with_what_can_be_called(
    ref: Airport, name: str, words: list[str]
) -> None:
    with pytest.raises(NotRemote) as caught:
        getattr(ref, name)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(ref, name)


def test_attributes_cannot_be_set_or_deleted(ref: Airport) -> None:
    for name in ("key", "anything", "add", "_ms_key", "tally"):
        with pytest.raises(AttributeError):
            setattr(ref, name, 5)
        with pytest.raises(AttributeError):
            delattr(ref, name)
    assert ref.key == "BOS"


def test_dunder_lookups_are_plain_attribute_errors(ref: Airport) -> None:
    for name in ("__len__", "__await__", "__aiter__", "__iter__"):
        with pytest.raises(AttributeError) as caught:
            getattr(ref, name)
        assert type(caught.value) is AttributeError
    with pytest.raises(TypeError):
        list(ref)  # type: ignore[call-overload]


# --- identity ------------------------------------------------------------------------------------


def test_equal_by_type_name_and_key(silo: Silo, ref: Airport) -> None:
    assert ref == silo.grain(Airport, "BOS") and ref is not silo.grain(Airport, "BOS")
    assert hash(ref) == hash(silo.grain(Airport, "BOS"))
    assert ref != silo.grain(Airport, "JFK")
    strangers: list[Any] = [silo.grain(Port, "BOS"), silo.grain(SmallAirport, "BOS")]
    strangers += ["Airport/BOS", 5, None, Airport]
    assert not any(ref == stranger or stranger == ref for stranger in strangers)
    assert all(ref != stranger for stranger in strangers)
    assert len({ref, silo.grain(Airport, "BOS"), silo.grain(Airport, "JFK")}) == 2
    assert ref == with_options(ref, timeout=1)
    assert hash(ref) == hash(with_options(ref, timeout=1))


async def test_equal_whatever_host_gave_it() -> None:
    async with LocalCluster(silos=2, grains=[Airport]) as cluster:
        runtimes: list[Runtime] = [cluster, cluster.client, *cluster.silos]
        assert len({runtime.grain(Airport, "BOS") for runtime in runtimes}) == 1


def test_text_and_representation(silo: Silo, ref: Airport) -> None:
    assert str(ref) == "Airport/BOS" and repr(ref) == "<reference Airport/BOS>"
    assert str(silo.grain(Port, "x")) == "Harbour/x"
    assert f"{ref}" == "Airport/BOS" and ref.key == "BOS"


def test_copies_are_the_reference_itself(ref: Airport) -> None:
    assert copy.copy(ref) is ref
    assert copy.deepcopy({"a": [ref]})["a"][0] is ref


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_is_refused_with_advice(ref: Airport, protocol: int) -> None:
    with pytest.raises(TypeError, match=r"str\(reference\)"):
        pickle.dumps(ref, protocol)


def test_isinstance_agrees_with_the_type_checker(silo: Silo, ref: Airport) -> None:
    assert isinstance(ref, Airport) and isinstance(ref, Grain) and isinstance(ref, Contract)
    assert not isinstance(ref, Port)
    assert isinstance(silo.grain(SmallAirport, "x"), Airport)
    assert not issubclass(type(ref), Airport)
    assert type(ref).__name__ == "AirportReference"


def test_is_reference_tells_references_from_grains(silo: Silo, ref: Airport) -> None:
    assert is_reference(ref) and is_reference(with_options(ref, timeout=1))
    assert not is_reference(Airport()) and not is_reference(Airport) and not is_reference("x")


@pytest.mark.parametrize("key", [5, None, b"x", ("a",)])
def test_a_key_that_is_not_text_is_refused(silo: Silo, key: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        silo.grain(Airport, key)


@pytest.mark.parametrize("cls", [int, "Airport", Tally, Airport()])
def test_a_class_that_is_not_a_grain_is_refused(silo: Silo, cls: Any) -> None:
    with pytest.raises(TypeError, match="Grain"):
        silo.grain(cls, "x")


@pytest.mark.parametrize("key", ["", "a/b", "ü☃", "a b\n", "$x", "x" * 1000])
async def test_any_text_is_a_key(key: str) -> None:
    async with LocalCluster(silos=2, grains=[Airport]) as cluster:
        runtimes: list[Runtime] = [cluster.silos[0], cluster.silos[1], cluster.client]
        for n, runtime in enumerate(runtimes, 1):
            assert await runtime.grain(Airport, key).add(1) == n


# --- options -------------------------------------------------------------------------------------


async def test_with_options_sets_the_deadline_of_this_reference_only(ref: Airport) -> None:
    quick = with_options(ref, timeout=0.04)
    with pytest.raises(CallTimeout, match=r"0\.04 s"):
        await quick.stuck()
    assert await ref.add(1) == 1


async def test_headers_travel_to_the_callee_and_not_beyond_the_call() -> None:
    async with LocalCluster(silos=2, grains=[Airport]) as cluster:
        for runtime in (cluster.silos[0], cluster.silos[1], cluster.client):
            ref = runtime.grain(Airport, "BOS")
            assert await with_options(ref, headers={"a": "1"}).tags() == {"a": "1"}
            assert await ref.tags() == {}


async def test_headers_are_as_they_were_when_the_options_were_set(ref: Airport) -> None:
    headers = {"a": "1"}
    other = with_options(ref, headers=headers)
    headers["a"] = "2"
    assert await other.tags() == {"a": "1"}


@pytest.mark.parametrize(
    "headers",
    [
        {"a": b"1"},
        {b"a": "1"},
        {"a": "\ud800"},
        {"\ud800": "1"},
        {"a": 1},
        {"a": None},
        [("a", "b")],
    ],
)
async def test_headers_that_are_no_text_are_refused_where_they_are_set(
    ref: Airport, headers: Any
) -> None:
    with pytest.raises(TypeError, match="header"):
        with_options(ref, headers=headers)
    with pytest.raises(TypeError, match="header"):
        with_options(with_options(ref, headers={"ok": "1"}), headers=headers)


async def test_headers_have_limits(ref: Airport) -> None:
    most = {str(number): "" for number in range(HEADERS_MAX)}
    assert await with_options(ref, headers=most).tags() == most
    with pytest.raises(ConfigError, match="HEADERS_MAX is 100"):
        with_options(ref, headers={**most, "more": ""})
    with pytest.raises(ConfigError, match="HEADERS_MAX is 100"):
        with_options(with_options(ref, headers=most), headers={"more": ""})
    largest = {"é": "x" * (HEADERS_BYTES_MAX - 2)}
    assert await with_options(ref, headers=largest).tags() == largest
    with pytest.raises(ConfigError, match="HEADERS_BYTES_MAX is 65536"):
        with_options(ref, headers={"é": "x" * (HEADERS_BYTES_MAX - 1)})


async def test_a_silo_refuses_too_many_headers_of_a_caller_that_does_not_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (caller, reference):
        monkeypatch.setattr(module, "check_size", lambda *parts: None)
    many = {f"h{i}": "x" for i in range(HEADERS_MAX)}
    async with Silo(grains=[Airport]) as silo, connect(silo.gateway) as client:
        boston = client.grain(Airport, "BOS")
        flooding = with_options(boston, headers={"own": "1"}, flowing_headers=many)
        with pytest.raises(ConfigError, match="101 headers: HEADERS_MAX is 100"):
            await flooding.tags()
        assert await boston.tags() == {}


async def test_a_callee_cannot_change_the_headers_of_its_caller(ref: Airport) -> None:
    marked = with_options(ref, headers={"a": "1"})
    assert await marked.spoil() == {"a": "1"}
    assert await marked.tags() == {"a": "1"}


async def test_options_share_one_class_for_each_contract(ref: Airport) -> None:
    classes = {type(with_options(ref, timeout=1 + n, headers={"n": str(n)})) for n in range(20)}
    assert len(classes) == 1
    assert type(with_options(with_options(ref, timeout=1), timeout=2)) in classes


async def test_options_add_up(ref: Airport) -> None:
    both = with_options(with_options(ref, headers={"a": "1"}), timeout=0.04)
    assert await both.tags() == {"a": "1"}
    with pytest.raises(CallTimeout):
        await both.stuck()
    both = with_options(with_options(ref, timeout=0.04), headers={"a": "1"})
    assert await both.tags() == {"a": "1"}
    with pytest.raises(CallTimeout):
        await both.stuck()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), True, "5"])
def test_a_timeout_that_is_no_positive_number_is_refused(ref: Airport, seconds: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        with_options(ref, timeout=seconds)


def test_with_options_needs_a_reference() -> None:
    with pytest.raises(TypeError, match="reference"):
        with_options(Airport(), timeout=1)


# --- before start and after stop -----------------------------------------------------------------


async def test_a_silo_that_is_not_started_gives_no_references() -> None:
    silo = Silo(grains=[Airport])
    with pytest.raises(NotInCluster):
        silo.grain(Airport, "BOS")
    with pytest.raises(NotInCluster):
        connect("127.0.0.1:1").grain(Airport, "BOS")


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_calls_on_a_silo_that_stopped_are_refused(how: str) -> None:
    async with Silo(grains=[Airport, Port]) as silo:
        ref, port = silo.grain(Airport, "BOS"), silo.grain(Port, "x")
        assert await ref.add(1) == 1
        assert await port.ok() == "ok"
        await getattr(silo, how)()
        with pytest.raises(NotInCluster):
            await ref.add(1)
        with pytest.raises(NotInCluster):
            await port.ok()
        with pytest.raises(NotInCluster):
            await silo.grain(Airport, "new").add(1)


async def test_calls_on_a_client_that_closed_are_refused() -> None:
    async with LocalCluster(silos=1, grains=[Airport]) as cluster:
        async with connect(cluster.silos[0].gateway) as client:
            ref = client.grain(Airport, "BOS")
            assert await ref.add(1) == 1
        with pytest.raises(NotInCluster):
            await ref.add(1)


# --- references in messages ----------------------------------------------------------------------

try:

    @dataclass
    class Route:
        start: Airport
        ends: list[Airport]

    class Guide(Grain):
        async def ask(self, airport: Airport, by: int) -> int:
            assert is_reference(airport)
            return await airport.add(by)

        async def give(self, key: str) -> Airport:
            return self.grain(Airport, key)

        async def route(self, route: Route) -> int:
            return sum([await end.add(1) for end in [route.start, *route.ends]])

        async def maybe(self, airport: Airport | None) -> str:
            return "none" if airport is None else airport.key

        async def myself(self) -> Guide:
            return self

except TypeError as error:  # reported by the tests below
    definition_error: TypeError | None = error
else:
    definition_error = None


@pytest.fixture
async def guides() -> AsyncIterator[list[Any]]:
    if definition_error is not None:
        raise definition_error
    async with LocalCluster(silos=2, grains=[Airport, Guide]) as cluster:
        yield [cluster.silos[0], cluster.silos[1], cluster.client]


async def test_a_reference_is_an_argument_and_a_result(guides: list[Any]) -> None:
    for n, runtime in enumerate(guides, 1):
        guide, airport = runtime.grain(Guide, "g"), runtime.grain(Airport, "BOS")
        assert await guide.ask(airport, 1) == n
        given = await guide.give("JFK")
        assert given == runtime.grain(Airport, "JFK")
        assert await given.add(1) == n
        assert await guide.maybe(None) == "none" and await guide.maybe(airport) == "BOS"


async def test_references_travel_inside_messages(guides: list[Any]) -> None:
    for runtime in guides:
        airports = [runtime.grain(Airport, f"{runtime}-{i}") for i in range(3)]
        assert await runtime.grain(Guide, "g").route(Route(airports[0], airports[1:])) == 3


async def test_self_travels_as_a_reference(guides: list[Any]) -> None:
    for runtime in guides:
        got = await runtime.grain(Guide, "me").myself()
        assert is_reference(got) and got == runtime.grain(Guide, "me")


async def test_a_reference_of_another_class_is_refused_by_name(guides: list[Any]) -> None:
    for runtime in guides:
        with pytest.raises(TypeError, match=r"Guide\.ask: argument `airport`"):
            await runtime.grain(Guide, "g").ask(runtime.grain(Guide, "g"), 1)
        with pytest.raises(TypeError, match=r"Guide\.ask: argument `airport`"):
            await runtime.grain(Guide, "g").ask("BOS", 1)


async def test_references_to_many_keys_have_many_hashes(silo: Silo) -> None:
    assert len({hash(silo.grain(Airport, str(number))) for number in range(100)}) > 90


# --- references to derived types -----------------------------------------------------------------


class Visitor(Grain):
    async def visit(self, airport: Airport) -> str:
        assert isinstance(airport, Airport) and is_reference(airport)
        await airport.add(1)
        await with_options(airport, timeout=5).add(1)
        return str(airport)

    async def visit_all(self, airports: list[Airport]) -> list[Airport]:
        return airports

    async def name_of(self, anyone: Grain) -> str:
        return str(anyone)

    async def key_of(self, anyone: Contract) -> str:
        return anyone.key


class Tower(SmallAirport):
    async def itself(self, guide: Visitor) -> str:
        [seen] = await guide.visit_all([self])
        return str(seen)

    async def count(self) -> int:
        return self.tally.value.count


async def test_a_reference_to_a_derived_grain_is_one_to_its_base_everywhere() -> None:
    grains = [Airport, SmallAirport, Tower, Visitor, Port]
    async with LocalCluster(silos=2, grains=grains) as cluster:
        runtimes: list[Runtime] = [cluster.client, *cluster.silos]
        for at, runtime in enumerate(runtimes):
            guide, tower = runtime.grain(Visitor, "g"), runtime.grain(Tower, f"t{at}")
            assert await guide.visit(tower) == f"Tower/t{at}"
            assert await tower.itself(guide) == f"Tower/t{at}"
            assert await tower.count() == 2
            seen = await guide.visit_all([tower, runtime.grain(Airport, "BOS")])
            assert seen == [tower, runtime.grain(Airport, "BOS")]
            assert await guide.visit(seen[0]) == f"Tower/t{at}"  # and sent on from there
            assert await guide.name_of(tower) == f"Tower/t{at}"
            assert await guide.key_of(seen[0]) == f"t{at}"


async def test_a_reference_to_another_grain_is_refused_inside_containers_too() -> None:
    async with LocalCluster(silos=1, grains=[Airport, SmallAirport, Visitor, Port]) as cluster:
        for runtime in (cluster.silos[0], cluster.client):
            guide: Any = runtime.grain(Visitor, "g")
            for wrong in (runtime.grain(Port, "p"), runtime.grain(Visitor, "x")):
                with pytest.raises(TypeError, match=r"visit: argument `airport`"):
                    await guide.visit(wrong)
                with pytest.raises(TypeError, match="expected a reference to Airport"):
                    await guide.visit_all([wrong])


async def test_types_seen_as_their_bases_have_a_limit(
    silo: Silo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "VIEWS_MAX", 1)
    host = silo.assembly.references
    assert host.grain_of("One", Airport, "a") == host.grain_of("One", Airport, "a")
    with pytest.raises(TypeError, match="VIEWS_MAX"):
        host.grain_of("Two", Airport, "a")


# --- methods of references -----------------------------------------------------------------------


async def test_a_method_of_a_reference_knows_its_grain_and_the_options(ref: Airport) -> None:
    found = method_reference(ref.add)
    assert found is not None and (found.type_name, found.key) == ("Airport", "BOS")
    assert (found.spec.name, found.timeout_s, found.headers) == ("add", None, {})
    own = with_options(ref, timeout=2, headers={"a": "1"}, flowing_headers={"b": "2"})
    found = method_reference(own.add)
    assert found is not None and (found.timeout_s, found.headers) == (2.0, {"a": "1"})
    assert found.flowing_headers == {"b": "2"}


async def test_other_objects_are_no_methods_of_references(ref: Airport) -> None:
    for other in (ref, Airport.add, Airport().add, print, None, ref.__repr__):
        assert method_reference(other) is None


async def test_arguments_of_a_method_are_encoded_with_defaults(ref: Airport) -> None:
    found = method_reference(ref.add)
    assert found is not None

    def decoded(*args: object, **kwargs: object) -> object:
        assert found is not None
        return found.spec.arguments.decode(found.encode_arguments(args, kwargs))

    assert decoded(5) == decoded(by=5) == (5, "none")
    assert decoded(5, note="x") == (5, "x")
    for args, kwargs, text in (
        ((), {}, "missing a required argument: 'by'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"other": 2}, "unexpected keyword argument 'other'"),
        (("5",), {}, "argument `by`"),
    ):
        with pytest.raises(TypeError, match=f"Airport.add: .*{text}"):
            found.encode_arguments(args, kwargs)
